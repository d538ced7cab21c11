"""Mistakes on the command line: each is one line on standard error, and exit code 2."""

import math
import os
import re
from pathlib import Path

import numpy as np
import pytest
from processes import json_of, one_line, process

from dyneval import gradient_stats, storage


def test_a_mistake_of_a_process():
    with process("evaluate", "nowhere") as started:
        out, err = started.communicate()
    assert (started.returncode, out) == (2, b"")
    assert "nowhere is no checkpoint: it is not a folder" in one_line(err.decode())


@pytest.mark.parametrize("engine", ["auto", "fused"])
def test_a_missing_numba_is_one_line(checkpoints, shifted, tmp_path, engine):
    """A warning where the reference can run instead, a mistake where the kernels were asked for."""
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.modules['numba'] = None")
    there = {"PYTHONPATH": os.pathsep.join(map(str, (tmp_path, Path(__file__).parent.parent)))}
    line = ("evaluate", checkpoints["bytes"], shifted, "--limit", 50, "--engine", engine)
    with process(*line, env=there) as started:
        _, err = started.communicate()
    said = one_line(err.decode())
    assert "numba cannot be used (import of numba halted" in said
    assert started.returncode == (0 if engine == "auto" else 2)
    assert ("the reference engine runs instead" in said) == (engine == "auto")


# Texts that cannot be read, and some that can


def test_random_bytes_are_a_text_for_a_model_of_bytes(command, checkpoints, tmp_path):
    """Nothing predicts them: 8 bits a byte, but for luck."""
    path = tmp_path / "random"
    path.write_bytes(np.random.default_rng(5).bytes(1_000_000))
    line = ["evaluate", checkpoints["bytes"], path, "--json", "--segment-length", 100]
    found = json_of(command(*line, "--limit", 20_000))
    for name in ("static", "dynamic"):
        assert found[name]["tokens"] == found[name]["bytes"] == 19_999
        assert 7.99 < found[name]["bits_per_byte"] < 8.2


def test_random_bytes_are_no_text_for_a_model_of_characters(mistake, checkpoints, tmp_path):
    path = tmp_path / "random"
    path.write_bytes(np.random.default_rng(5).bytes(1_000_000))
    for kind in ("characters", "words"):
        line = mistake("evaluate", checkpoints[kind], path, "--limit", 1000)
        assert re.search("random.* is not UTF-8: byte 0x", line)
        assert "at position" in line


@pytest.mark.parametrize("kind", ["bytes", "characters"])
def test_texts_too_short_to_score(mistake, command, checkpoints, tmp_path, kind):
    path = tmp_path / "short"
    for raw, tokens in ((b"", 0), (b"t", 1)):
        path.write_bytes(raw)
        line = mistake("evaluate", checkpoints[kind], path)
        assert f"{path} has too few tokens to read: {tokens}, and needed are 2 or more" in line
    found = json_of(
        command("evaluate", checkpoints[kind], path, "--json", "--first-token", "uniform")
    )
    assert found["dynamic"]["tokens"] == 1
    assert found["dynamic"]["perplexity"] == pytest.approx(found["run"]["vocabulary"]["size"])
    path.write_bytes(b"")
    line = mistake("evaluate", checkpoints[kind], path, "--first-token", "uniform")
    assert "0, and needed are 1 or more" in line


def test_invalid_utf8_is_named_by_its_place(mistake, checkpoints, tmp_path):
    path = tmp_path / "latin-1.txt"
    path.write_bytes("the über".encode("latin-1"))
    line = mistake("evaluate", checkpoints["characters"], path)
    assert f"{path} is not UTF-8: byte 0xfc at position 4" in line


def test_an_unknown_symbol_is_named_by_its_place(mistake, checkpoints, tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("the ñ")
    line = mistake("evaluate", checkpoints["characters"], path)
    assert "'ñ' (U+00F1) at character 4" in line
    assert "--unknown drop" in line
    assert "no <unk>" in mistake("evaluate", checkpoints["characters"], path, "--unknown", "unk")


def test_an_unknown_word_is_named_by_its_line(command, mistake, checkpoints, tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("the cat\nthe lion\n")
    line = ["evaluate", checkpoints["words"], path, "--json"]
    assert "holds 'lion' in line 2" in mistake(*line, "--unknown", "error")
    assert json_of(command(*line))["static"]["tokens"] == 5
    assert json_of(command(*line, "--unknown", "drop"))["static"]["tokens"] == 4


def test_texts_that_are_not_there(mistake, checkpoints, tmp_path):
    missing = tmp_path / "missing.txt"
    line = mistake("evaluate", checkpoints["bytes"], missing)
    assert f"{missing} is neither a file nor a known corpus (ptb," in line
    assert f"{tmp_path} is a folder; give a text file" in mistake(
        "evaluate", checkpoints["bytes"], tmp_path
    )


@pytest.mark.parametrize("length", [150, 151, 10_000])
def test_a_segment_longer_than_the_text_is_legal(command, checkpoints, shifted, length):
    """There is nothing left to score once something was learned."""
    found = json_of(
        command(
            *("evaluate", checkpoints["bytes"], shifted, "--limit", 151, "--json"),
            *("--segment-length", length, "--learning-rate", 0.001),
        )
    )
    assert found["dynamic"]["nats"] == found["static"]["nats"]


# Flags that make no sense


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--segment-length", "0"], "segment of 0 tokens cannot be read; give 1 or more"),
        (["--segment-length", "-5"], "segment of -5 tokens cannot be read"),
        (["--segment-length", "many"], "Invalid value for '--segment-length'"),
        (["--learning-rate", "-0.1"], "learning_rate -0.1 of Rms: give 0 or more"),
        (["--learning-rate", "nan"], "learning_rate nan of Rms"),
        (["--rule", "sgd", "--learning-rate", "-1"], "learning_rate -1.0 of Sgd: give 0 or more"),
        (["--decay-rate", "-1e-3"], "rate -0.001 of RmsDecay: give 0 or more"),
        (["--rule", "sgd+decay", "--decay-rate", "2"], "overshoots the trained weights"),
        (["--epsilon", "0"], "epsilon 0"),
        (["--from-first-release", "1859"], "the number of batches and of tensors, as 1859,14"),
        (["--from-first-release", "1859,14", "--epsilon", "1e-3"], "give all three"),
        (["--average", "median"], "give tensors or weights"),
        (["--rule", "adam"], "no rule 'adam'; give one of sgd, sgd+decay, rms+decay, rms+rms-dec"),
        (["--split", "dev"], "has no split 'dev'; give one of all, train, valid, test"),
        (["--unknown", "maybe"], "give error, drop or unk"),
        (["--first-token", "maybe"], "give unscored or uniform"),
        (["--threads", "0"], "0 threads cannot work; give 1 or more"),
        (["--threads", "-2"], "-2 threads cannot work"),
        (["--limit", "0"], "a limit of 0 tokens leaves nothing to read"),
        (["--limit", "-7"], "a limit of -7 tokens"),
        (["--limit", "1"], "needed are 2 or more"),
        (["--cache", "--cache-size", "0"], "a cache of size 0"),
        (["--cache-size", "-3"], "a cache of size -3"),
        (["--cache-weight", "1"], "weight 1.0"),
        (["--cache-scale", "-1"], "scale -1.0"),
        (["--settings", "nowhere.json"], "nowhere.json does not exist"),
        (["--stats", "nowhere.safetensors"], "nowhere.safetensors does not exist"),
        (["--figure", "curve"], "curve"),
        (["--figure", "curve.xyz"], "curve.xyz"),
        (["--save", "result.npz"], "result.npz"),
        (["--resume"], "--checkpoint"),
        (["--nonsense"], "No such option: --nonsense"),
        (["three", "names", "given"], "unexpected extra argument"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_flags_are_refused_before_anything_is_read(
    mistake, checkpoints, shifted, tmp_path, monkeypatch, flags, says
):
    monkeypatch.chdir(tmp_path)
    kept = [] if "--resume" in flags else ["--checkpoint", "kept"]
    line = mistake("evaluate", checkpoints["bytes"], shifted, "--limit", 50, *kept, *flags)
    assert says in line
    assert not list(tmp_path.rglob("*.safetensors"))  # not one predictor has begun
    assert not list(tmp_path.rglob(".partial-*"))


def test_an_unknown_command_is_refused(mistake):
    assert "No such command 'evalute'" in mistake("evalute")


@pytest.mark.parametrize("flag", ["--save", "--figure"])
def test_a_result_that_cannot_be_written_is_refused_before_it_is_read(
    mistake, checkpoints, shifted, tmp_path, flag
):
    (tmp_path / "file").write_text("no folder")
    path = tmp_path / "file" / ("a.json" if flag == "--save" else "a.png")
    kept = tmp_path / "kept"
    line = mistake(
        *("evaluate", checkpoints["bytes"], shifted, "--limit", 50),
        *(flag, path, "--checkpoint", kept),
    )
    assert str(path.parent) in line
    assert not list(tmp_path.rglob("*.safetensors"))


@pytest.mark.parametrize(
    "text",
    [
        "no JSON",
        "[1, 2]",
        "{}",
        '{"settings": []}',
        '{"settings": {"dynamic": 5}}',
        '{"settings": {"dynamic": {"rule": "sgd"}}}',
        '{"settings": {"dynamic": {"segment_length": 5, "momentum": 0.9}}}',
        '{"settings": {"dynamic": {"segment_length": 5, "rule": "adam"}}}',
        '{"settings": {"dynamic": {"segment_length": "five"}}}',
        '{"settings": {"dynamic": {"segment_length": 2.5}}}',
        '{"settings": {"dynamic": {"segment_length": 5, "rule": "sgd", "learning_rate": "x"}}}',
        '{"settings": {"cache": {"segment_length": 5, "cache_size": "x"}}}',
    ],
)
def test_a_file_that_holds_no_settings_is_named(mistake, checkpoints, shifted, tmp_path, text):
    path = tmp_path / "settings.json"
    path.write_text(text)
    line = mistake("evaluate", checkpoints["bytes"], shifted, "--settings", path)
    assert str(path) in line


# Checkpoints and statistics that are damaged, or belong to others


def test_models_that_are_not_there(mistake, shifted, tmp_path):
    line = mistake("evaluate", tmp_path / "missing", shifted)
    assert f"{tmp_path / 'missing'} is no checkpoint: it is not a folder" in line
    assert "it has no config.json" in mistake("evaluate", tmp_path, shifted)
    assert "is no checkpoint" in mistake("evaluate", shifted, shifted)


@pytest.mark.parametrize("file", ["config.json", "model.safetensors", "vocab.json"])
@pytest.mark.parametrize("kind", ["bytes", "characters"])
def test_a_checkpoint_cut_in_half(mistake, copied, shifted, kind, file):
    path = copied(kind) / file
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    assert f"{path} is no whole " in mistake("evaluate", path.parent, shifted)
    path.unlink()
    assert file in mistake("evaluate", path.parent, shifted)


def test_weights_that_are_no_numbers(mistake, copied, shifted):
    path = copied("bytes") / "model.safetensors"
    weights, about = storage.read_tensors(path)
    for value in (math.nan, math.inf):
        weights["output.bias"][7] = value
        storage.write_tensors(path, weights, about)
        line = mistake("evaluate", path.parent, shifted)
        assert f"{path} holds NaN or infinity in output.bias" in line


def test_weights_too_large_for_16_bits(mistake, copied, tmp_path):
    path = copied("bytes") / "model.safetensors"
    weights, about = storage.read_tensors(path)
    weights["output.bias"][7] = 1e6
    storage.write_tensors(path, weights, about)
    assert "output.bias is not finite in torch.float16" in mistake(
        "halve", path.parent, tmp_path / "half"
    )
    assert not (tmp_path / "half").exists()


def test_a_rule_without_its_statistics(command, mistake, copied, shifted, tmp_path):
    model = copied("bytes")
    (model / gradient_stats.FILE).unlink()
    line = ["evaluate", model, shifted, "--limit", 50]
    message = mistake(*line, "--checkpoint", tmp_path / "kept")
    assert "no gradient statistics" in message
    assert "dyneval gradient-stats" in message
    assert not list((tmp_path / "kept").glob("*.safetensors"))
    assert command(*line, "--rule", "sgd+decay").code == 0


def test_statistics_of_another_model(mistake, checkpoints, copied, shifted, tmp_path):
    """Of another architecture, and of the same one with other weights."""
    line = ["evaluate", "--limit", 50, "--checkpoint", tmp_path / "kept", "--stats"]
    others = checkpoints["words"] / gradient_stats.FILE
    message = mistake(*line, others, checkpoints["bytes"], shifted)
    assert "belong to other weights" in message
    model = copied("bytes")
    weights, about = storage.read_tensors(model / "model.safetensors")
    weights["output.bias"][7] += 0.1
    storage.write_tensors(model / "model.safetensors", weights, about)
    assert "belong to other weights" in mistake(*line, model / gradient_stats.FILE, model, shifted)
    assert not list((tmp_path / "kept").glob("*.safetensors"))


def test_a_file_that_holds_no_statistics(mistake, checkpoints, shifted, tmp_path):
    line = ["evaluate", checkpoints["bytes"], shifted, "--stats"]
    weights = checkpoints["bytes"] / "model.safetensors"
    assert f"{weights} holds no gradient statistics" in mistake(*line, weights)
    assert f"{shifted} is no whole safetensors file" in mistake(*line, shifted)
    cut = tmp_path / "cut.safetensors"
    whole = (checkpoints["bytes"] / gradient_stats.FILE).read_bytes()
    cut.write_bytes(whole[: len(whole) // 2])
    assert f"{cut} is no whole safetensors file" in mistake(*line, cut)


# Other commands


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--trials", "0"], "at least 1 trial"),
        (["--confirm", "0"], "1 to confirm"),
        (["--prefix", "1"], "2 tokens to read"),
        (["--row", "adam"], "no row 'adam'; give some of sgd-n1, sgd,"),
        (["--rule", "adam"], "no rule 'adam'"),
        (["--sampler", "random"], "no sampler 'random'; give tpe or grid"),
        (["--vary", "momentum"], "momentum cannot be tuned; give some of learning_rate,"),
        (["--segment-length", "0"], "segment of 0 tokens"),
        (["--learning-rate", "-1"], "learning_rate -1.0 of Rms: give 0 or more"),
        (["--split", "dev"], "has no split 'dev'"),
        (["--limit", "0"], "limit of 0 tokens"),
        (["--limit", "1"], "too short to tune on"),
        (["--unknown", "maybe"], "give error, drop or unk"),
        (["--threads", "0"], "0 threads"),
        (["--device", "nowhere"], "no device 'nowhere' here"),
        (["--stats", "nowhere"], "nowhere does not exist"),
        (["--out", "settings.journal"], "settings.journal"),
        (["--nonsense"], "No such option"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_flags_of_tune_that_make_no_sense(
    mistake, copied, shifted, tmp_path, monkeypatch, flags, says
):
    monkeypatch.chdir(tmp_path)
    model = copied("words")
    before = set(tmp_path.rglob("*"))
    assert says in mistake("tune", model, shifted, "--split", "all", *flags)
    assert set(tmp_path.rglob("*")) == before


def test_tuning_a_rule_without_its_statistics(mistake, copied, shifted):
    model = copied("words")
    (model / gradient_stats.FILE).unlink()
    message = mistake("tune", model, shifted, "--split", "all", "--row", "rms+decay")
    assert "no gradient statistics" in message


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--batch-size", "0"], "batch"),
        (["--batch-size", "100000"], "cannot be cut into 100000 streams"),
        (["--segment-length", "0"], "segment of 0 tokens"),
        (["--segment-length", "-5"], "segment of -5 tokens"),
        (["--batches", "0"], "batches"),
        (["--skip", "-1"], "skip"),
        (["--skip", "100000"], "no batch left after 100000"),
        (["--split", "dev"], "has no split 'dev'"),
        (["--threads", "0"], "0 threads"),
        (["--device", "nowhere"], "no device 'nowhere' here"),
        (["--out", "file/below"], "file"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_flags_of_gradient_stats_that_make_no_sense(
    mistake, copied, texts, tmp_path, monkeypatch, flags, says
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    model = copied("words")
    (model / gradient_stats.FILE).unlink()
    before = set(tmp_path.rglob("*"))
    line = ["gradient-stats", model, texts["train"], "--batch-size", 4]
    assert says in mistake(*line, *flags)
    assert set(tmp_path.rglob("*")) == before


def test_statistics_that_do_not_belong_together(mistake, checkpoints, tmp_path):
    files = [checkpoints[kind] / gradient_stats.FILE for kind in ("bytes", "words")]
    assert "cannot be merged" in mistake("merge-stats", tmp_path / "merged", *files)
    assert "does not exist" in mistake("merge-stats", tmp_path / "merged", tmp_path / "a")
    assert "Missing argument" in mistake("merge-stats", tmp_path / "merged")


def test_a_charrnn_that_is_not_there(mistake, tmp_path):
    line = mistake("import-charrnn", tmp_path / "a.npz", tmp_path / "model")
    assert f"{tmp_path / 'a.npz'} does not exist" in line
