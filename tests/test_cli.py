import json
import math
import os
import re
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from processes import one_line, process

from dyneval import corpora, gradient_stats, models, settings, storage

pytest_plugins = ["checkpoints"]

FIGURES = (
    "tokens",
    "nats",
    "bits_per_token",
    "perplexity",
    "bits_per_character",
    "bits_per_byte",
    "word_perplexity",
    "byte_perplexity",
    "seconds",
)


def json_of(done):
    """The one object that a command printed, and nothing else."""
    assert (done.code, done.err) == (0, "")
    assert done.out.count("\n") == 1
    return json.loads(done.out)


# Help


def test_help_is_instant():
    """In processor time, so that a busy machine does not matter."""
    spent = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        with process("--help") as started:
            out, err = started.communicate()
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        assert (started.returncode, err) == (0, b"")
        assert b"evaluate" in out
    assert min(spent) < 0.3


@pytest.mark.parametrize("name", ["evaluate", "tune", "gradient-stats", "merge-stats", "train"])
def test_every_command_has_help(command, name):
    done = command(name, "--help")
    assert (done.code, done.err) == (0, "")
    assert f"{name} [OPTIONS]" in done.out


def test_the_command_line_waits_for_torch_only_to_work():
    code = "import sys, dyneval.cli; print(sorted({'torch', 'numpy', 'optuna'} & set(sys.modules)))"
    root = {"PYTHONPATH": str(Path(__file__).parent.parent)}
    done = subprocess.run([sys.executable, "-c", code], env=os.environ | root, capture_output=True)
    assert done.stdout == b"[]\n", done.stderr


def test_no_command_shows_the_help(command):
    done = command()
    assert "evaluate" in done.out
    assert "Traceback" not in done.err
    assert "dyneval:" not in done.err


# Evaluate


def test_the_object_has_a_key_for_each_predictor_and_the_run(command, checkpoints, shifted):
    found = json_of(
        command("evaluate", checkpoints["bytes"], shifted, "--limit", 150, "--cache", "--json")
    )
    assert list(found) == ["static", "dynamic", "cache", "dynamic+cache", "run"]
    for name in list(found)[:-1]:
        assert set(FIGURES) <= set(found[name])
        assert found[name]["tokens"] == 149
    run = found["run"]
    assert run["model"] == str(checkpoints["bytes"])
    assert (run["corpus"], run["split"], run["limit"]) == (shifted, "all", 150)
    assert run["checksum"] == corpora.load(shifted).checksum()
    assert run["rule"]["dynamic"] == (
        "Rms(learning_rate=5e-05, epsilon=2e-05) + RmsDecay(rate=0.002), n = 20"
    )
    assert run["first_token"] == "unscored"
    assert set(run["versions"]) >= {"dyneval", "torch", "python"}
    assert run["threads"] == torch.get_num_threads()


@pytest.mark.parametrize("kind", ["bytes", "characters", "words"])
def test_the_figures_are_those_of_the_stored_nats(command, checkpoints, shifted, tmp_path, kind):
    """By hand: what was scored is the text but for its first token."""
    path = tmp_path / "below" / "result.json"
    done = command(
        *("evaluate", checkpoints[kind], shifted, "--json", "--save", path),
        *("--rule", "sgd", "--learning-rate", 0.5),
    )
    found = json_of(done)
    assert storage.read_json(path) == found
    text = Path(shifted).read_text("utf-8")
    lines = text.splitlines()
    first = len(lines[0].split()[0]) if kind == "words" else 1
    characters, size = len(text) - first, len(text.encode()) - first
    words = len(text.split()) - 1
    tokens = {"bytes": size, "characters": characters, "words": words + len(lines)}[kind]
    with np.load(path.with_suffix(".npz")) as arrays:
        every = {name: arrays[f"nats.{name}"] for name in ("static", "dynamic")}
    assert found["dynamic"]["nats"] < found["static"]["nats"]
    for name, nats in every.items():
        figures, total = found[name], float(nats.sum())
        assert figures["tokens"] == len(nats) == tokens
        expected = {
            "nats": total,
            "bits_per_token": total / math.log(2) / tokens,
            "perplexity": math.exp(total / tokens),
            "bits_per_character": total / math.log(2) / characters,
            "bits_per_byte": total / math.log(2) / size,
            "word_perplexity": math.exp(total / words),
            "byte_perplexity": math.exp(total / size),
        }
        for key, value in expected.items():
            assert figures[key] == pytest.approx(value, rel=1e-9), (name, key)


def test_a_uniform_first_token_is_scored(command, checkpoints, shifted, tmp_path):
    line = ["evaluate", checkpoints["bytes"], shifted, "--limit", 60, "--json"]
    without = json_of(command(*line))
    found = json_of(command(*line, "--first-token", "uniform"))
    assert found["run"]["first_token"] == "uniform"
    for name in ("static", "dynamic"):
        assert found[name]["tokens"] == found[name]["bytes"] == 60 == without[name]["tokens"] + 1
        assert found[name]["nats"] == pytest.approx(without[name]["nats"] + math.log(256))


def test_symbols_left_out_count_nowhere(command, checkpoints, tmp_path):
    """ñ and the digits are not in the vocabulary: 9 characters remain, and 8 are scored."""
    path = tmp_path / "a.txt"
    path.write_text("ñ1the2 über\n", "utf-8")
    line = ["evaluate", checkpoints["characters"], path, "--unknown", "drop", "--json"]
    found = json_of(command(*line))["static"]
    assert (found["tokens"], found["characters"], found["bytes"], found["words"]) == (8, 8, 9, 1)


def test_standard_input_and_output_of_a_process(checkpoints, shifted):
    """Also where the terminal writes nothing but ASCII."""
    raw = Path(shifted).read_bytes()[:400] + "ü".encode()
    line = ["evaluate", checkpoints["bytes"], "-", "--json", "--threads", 1]
    with process(*line, env={"PYTHONIOENCODING": "ascii"}) as started:
        out, err = started.communicate(raw)
    assert (started.returncode, err) == (0, b"")
    found = json.loads(out)
    assert found["run"]["corpus"] == "-"
    assert found["static"]["bytes"] == 401


def test_a_name_beyond_ascii_is_printed_anywhere(command, checkpoints, shifted, tmp_path):
    path = tmp_path / "größe"
    path.write_bytes(Path(shifted).read_bytes()[:100])
    done = command("evaluate", checkpoints["bytes"], path, "--json")
    assert done.out.isascii()
    assert json_of(done)["run"]["corpus"] == str(path)


def test_a_mistake_of_a_process():
    with process("evaluate", "nowhere") as started:
        out, err = started.communicate()
    assert (started.returncode, out) == (2, b"")
    assert "nowhere is no checkpoint: it is not a folder" in one_line(err.decode())


def test_a_table_where_nothing_else_is_asked_for(command, checkpoints, shifted):
    done = command("evaluate", checkpoints["words"], shifted, "--limit", 100)
    assert (done.code, done.err) == (0, "")
    assert "perplexity" in done.out
    assert re.search(r"static .* 99 ", done.out)
    assert re.search(r"dynamic .* 99 .*%", done.out)


def test_a_figure_is_named(command, checkpoints, shifted, tmp_path):
    path = tmp_path / "curve.svg"
    done = command("evaluate", checkpoints["words"], shifted, "--limit", 100, "--figure", path)
    assert done.code == 0
    assert f"figure: {path}" in done.out.replace("\n", "")
    assert path.read_bytes().startswith(b"<?xml")


def test_no_learning_is_static_to_the_bit(command, checkpoints, shifted, tmp_path):
    for rule in ("sgd", "sgd+decay", "rms+decay", "rms+rms-decay"):
        json_of(
            command(
                *("evaluate", checkpoints["characters"], shifted, "--limit", 90, "--rule", rule),
                *("--learning-rate", 0, "--decay-rate", 0, "--json", "--save", tmp_path / "a.json"),
            )
        )
        with np.load(tmp_path / "a.npz") as arrays:
            assert np.array_equal(arrays["nats.static"], arrays["nats.dynamic"])


# Settings


def settings_file(path, **rows):
    storage.write_json(path, {"settings": rows})
    return path


def test_settings_come_from_a_file_or_the_models_folder(command, copied, shifted, tmp_path):
    model = copied("words")
    line = ["evaluate", model, shifted, "--limit", 50, "--json"]
    tuned = {"rule": "sgd+decay", "learning_rate": 0.25, "decay_rate": 0.01, "segment_length": 3}
    given = settings_file(tmp_path / "given.json", dynamic=tuned)
    found = json_of(command(*line, "--settings", given))["run"]
    assert found["predictors"]["dynamic"] == tuned
    settings_file(model / settings.FILE, fast=tuned, cache={"segment_length": 5, "cache_size": 9})
    found = json_of(command(*line))
    assert list(found) == ["static", "fast", "cache", "run"]
    assert found["run"]["predictors"]["fast"] == tuned
    found = json_of(command(*line, "--settings", given, "--learning-rate", 0.5))["run"]
    assert found["predictors"]["dynamic"] == tuned | {"learning_rate": 0.5}


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


# Divergence


@pytest.mark.parametrize("rule", ["rms+decay", "rms+rms-decay"])
def test_a_rule_that_diverges_keeps_what_was_scored(
    command, checkpoints, shifted, tmp_path, rule
):
    """At η = 10 the first step ruins the weights: one segment is kept, of all but static."""
    path = tmp_path / "result.json"
    line = ["evaluate", checkpoints["bytes"], shifted, "--limit", 100, "--rule", rule]
    line += ["--learning-rate", 10, "--cache", "--save", path]
    done = command(*line, "--json")
    assert done.code == 2
    message = one_line(done.err)
    assert "dynamic diverged at token 21: " in message
    assert "lower the learning rate (--learning-rate)" in message
    found = json.loads(done.out)
    assert found == storage.read_json(path)
    counts = {name: found[name]["tokens"] for name in found if name != "run"}
    assert counts == {"static": 99, "dynamic": 20, "cache": 99, "dynamic+cache": 20}
    assert found["dynamic"]["diverged"] in message
    with np.load(path.with_suffix(".npz")) as arrays:
        kept = arrays["nats.dynamic"]
        assert np.array_equal(kept, arrays["nats.static"][:20])
    assert found["dynamic"]["nats"] == pytest.approx(kept.sum())
    done = command(*line, "--figure", tmp_path / "curve.png")
    assert done.code == 2
    assert re.search(r"dynamic .* 20 ", done.out)
    assert (tmp_path / "curve.png").stat().st_size > 1000


# Tune


def test_tuned_settings_are_read_by_evaluate(command, copied, shifted, tmp_path):
    model, path = copied("words"), tmp_path / "tuned.json"
    done = command(
        *("tune", model, shifted, "--split", "all", "--row", "sgd", "--row", "sgd+decay"),
        *("--trials", 3, "--prefix", 100, "--confirm", 1, "--limit", 200, "--out", path),
    )
    assert (done.code, done.err) == (0, "")
    assert f"settings: {path}" in done.out
    assert re.search(r"^sgd: Sgd\(.*perplexity", done.out, re.M)
    best = storage.read_json(path)["settings"]
    line = ["evaluate", model, shifted, "--limit", 200, "--json", "--settings", path]
    found = json_of(command(*line))
    assert list(found) == ["static", "sgd", "sgd+decay", "run"]
    assert found["run"]["predictors"]["sgd"] == best["sgd"]
    record = storage.read_json(path)["tuning"]["sgd"]
    assert found["sgd"]["nats"] / 199 == pytest.approx(record["validation_nats"], rel=1e-6)


def test_tuning_on_a_test_split_must_be_forced(command, mistake, copied, shifted):
    model = copied("words")
    line = ["tune", model, shifted, "--split", "test", "--rule", "sgd", "--trials", 1]
    message = mistake(*line)
    assert "test split" in message
    assert "--force" in message
    assert not list(model.glob("settings*"))
    assert command(*line, "--force").code == 0
    assert (model / settings.FILE).exists()


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--trials", "0"], "at least 1 trial"),
        (["--confirm", "0"], "1 to confirm"),
        (["--prefix", "1"], "2 tokens to read"),
        (["--row", "adam"], "no row 'adam'; give some of sgd-n1, sgd,"),
        (["--rule", "adam"], "no rule 'adam'"),
        (["--vary", "momentum"], "momentum cannot be tuned; give some of learning_rate,"),
        (["--segment-length", "0"], "segment of 0 tokens"),
        (["--learning-rate", "-1"], "learning_rate -1.0 of Rms: give 0 or more"),
        (["--split", "dev"], "has no split 'dev'"),
        (["--limit", "0"], "limit of 0 tokens"),
        (["--limit", "1"], "too short to tune on"),
        (["--unknown", "maybe"], "give error, drop or unk"),
        (["--threads", "0"], "0 threads"),
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


# Gradient statistics


def test_statistics_go_into_the_models_folder(command, copied, texts):
    model = copied("bytes")
    line = ["gradient-stats", model, texts["train"], "--batch-size", 7, "--segment-length", 9]
    done = command(*line)
    assert (done.code, done.err) == (0, "")
    path = model / gradient_stats.FILE
    batches = -(-(len(corpora.load(texts["train"]).raw("train")) // 7 - 1) // 9)
    assert done.out.replace("\n", "") == f"{batches:,} batches of 7 streams: {path}"
    found = gradient_stats.load(path).collection
    assert (found.batch_size, found.segment_length, found.batches) == (7, 9, batches)
    assert found.checksum == corpora.load(texts["train"]).checksum("train")
    assert found.model == models.fingerprint(models.load(model).model)


def test_statistics_in_parts_are_merged(command, copied, texts, tmp_path):
    model = copied("characters")
    line = ["gradient-stats", model, texts["train"], "--batch-size", 5, "--split", "all"]
    for name, flags in {"a": ["--batches", 3], "b": ["--skip", 3, "--batches", 4]}.items():
        assert command(*line, *flags, "--out", tmp_path / name).code == 0
    done = command("merge-stats", tmp_path / "merged", tmp_path / "a", tmp_path / "b")
    assert (done.code, done.err) == (0, "")
    assert "7 batches" in done.out
    parts = [gradient_stats.load(tmp_path / name) for name in ("a", "b")]
    merged = gradient_stats.load(tmp_path / "merged")
    assert merged.collection.batches == 7
    for name, rms in merged.rms.items():
        squares = (3 * parts[0].rms[name] ** 2 + 4 * parts[1].rms[name] ** 2) / 7
        torch.testing.assert_close(rms, squares.sqrt())


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


# Train and import


def test_a_model_is_trained_and_evaluated(command, mistake, texts, shifted, tmp_path):
    """One pass, to see the flags arrive; training itself has its own tests."""
    done = command(
        *("train", texts["train"], tmp_path / "model", "--vocabulary", "characters"),
        *("--epochs", 1, "--units", 7, "--layers", 1, "--embedding-size", 5, "--batch-size", 4),
    )
    assert (done.code, done.err) == (0, "")
    assert f"bits/character: {tmp_path / 'model'}" in done.out.replace("\n", "")
    found = models.load(tmp_path / "model").model.settings
    assert (found["units"], found["layers"], found["embedding_size"]) == (7, 1, 5)
    line = ["evaluate", tmp_path / "model", shifted, "--rule", "sgd", "--unknown", "drop"]
    assert json_of(command(*line, "--json", "--limit", 40))["dynamic"]["tokens"] == 39
    line = mistake("train", texts["train"], tmp_path / "other", "--preset", "huge")
    assert "no preset 'huge'; give one of lstm-desk" in line


def test_a_charrnn_that_is_not_there(mistake, tmp_path):
    line = mistake("import-charrnn", tmp_path / "a.npz", tmp_path / "model")
    assert f"{tmp_path / 'a.npz'} does not exist" in line
