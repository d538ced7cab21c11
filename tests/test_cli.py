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
from processes import json_of, one_line, process

from dyneval import corpora, gradient_stats, models, settings, storage
from dyneval.cli import COMMANDS

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


@pytest.mark.parametrize("name", COMMANDS)
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


# Divergence


@pytest.mark.parametrize("rule", ["rms+decay", "rms+rms-decay"])
def test_a_rule_that_diverges_keeps_what_was_scored(command, checkpoints, shifted, tmp_path, rule):
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


def test_a_model_is_stored_in_half_the_size(command, mistake, copied, shifted, tmp_path):
    """Its weights are others then, and so must its statistics be."""
    model, half = copied("characters"), tmp_path / "half"
    assert command("halve", model, half).code == 0
    sizes = [(folder / "model.safetensors").stat().st_size for folder in (model, half)]
    assert sizes[1] < 0.7 * sizes[0]
    line = ["--limit", 60, "--rule", "sgd", "--json"]
    whole, halved = (json_of(command("evaluate", each, shifted, *line)) for each in (model, half))
    assert halved["static"]["nats"] == pytest.approx(whole["static"]["nats"], rel=1e-3)
    stats = model / gradient_stats.FILE
    line = mistake("evaluate", half, shifted, "--rule", "rms+decay", "--stats", stats)
    assert "belong to other weights" in line


def test_statistics_are_stored_in_half_the_size(command, copied, texts, shifted, tmp_path):
    model, half = copied("bytes"), tmp_path / "half.safetensors"
    line = ["gradient-stats", model, texts["train"], "--batch-size", 10, "--batches", 5]
    assert command(*line).code == command(*line, "--half", "--out", half).code == 0
    whole = model / gradient_stats.FILE
    assert half.stat().st_size < 0.6 * whole.stat().st_size
    for name, rms in gradient_stats.load(whole).rms.items():
        torch.testing.assert_close(gradient_stats.load(half).rms[name], rms, rtol=2**-8, atol=1e-30)
    found = json_of(command("evaluate", model, shifted, "--limit", 50, "--stats", half, "--json"))
    assert found["dynamic"]["tokens"] == 49


def test_settings_in_the_units_of_the_first_release(command, checkpoints, shifted):
    """The published ones of the AWD-LSTM on Penn Treebank, and what they are here."""
    line = ("evaluate", checkpoints["bytes"], shifted, "--limit", 60, "--json")
    old = ("--learning-rate", 0.002, "--decay-rate", 0.02, "--epsilon", 0.001)
    found = json_of(command(*line, *old, "--from-first-release", "1859,14"))
    row = found["run"]["predictors"]["dynamic"]
    root = 1859**0.5
    assert row["rule"] == "rms+rms-decay"
    assert row["learning_rate"] == pytest.approx(0.002 / root, rel=1e-12)
    assert row["epsilon"] == pytest.approx(0.001 / root, rel=1e-12)
    assert row["decay_rate"] == pytest.approx(0.02 / 14, rel=1e-12)
