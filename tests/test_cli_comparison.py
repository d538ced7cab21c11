"""`dyneval compare`, on results that `evaluate` saved."""

import json
import re

import pytest
from processes import json_of

from dyneval import results, storage


@pytest.fixture
def saved(command, checkpoints, shifted, tmp_path):
    """Save a result of a text, and say where."""

    def save(name, *flags, kind="words", text=shifted):
        line = ["evaluate", checkpoints[kind], text, "--limit", 400, "--rule", "sgd", "--quiet"]
        assert command(*line, *flags, "--save", tmp_path / name).code == 0
        return tmp_path / name

    return save


@pytest.fixture
def pair(saved):
    """Two results of the same text: at a low rate, and at a high one."""
    return [saved(f"{rate}.json", "--learning-rate", rate) for rate in (0.01, 0.5)]


def rows(done):
    """The cells of a table by its first column."""
    assert (done.code, done.err) == (0, "")
    lines = [re.split(r"\s*[│|]\s*", line)[1:-1] for line in done.out.splitlines()]
    return {line[0]: line[1:] for line in lines if line}


def test_predictors_of_the_same_name(command, pair):
    found = json_of(command("compare", *pair, "--json"))
    assert found["files"] == list(map(str, pair))
    static, dynamic = found["pairs"]
    assert (static["a"], static["b"]) == ("static", "static")
    assert static["gain"]["relative"] == static["gain"]["low"] == static["gain"]["high"] == 0
    low, high = (storage.read_json(path)["dynamic"]["perplexity"] for path in pair)
    assert dynamic["figures"] == [low, high]
    assert dynamic["gain"]["relative"] == pytest.approx(1 - high / low)
    assert dynamic["gain"]["significant"]
    table = rows(command("compare", *pair))
    assert table["static"][2:] == ["+0.0% (0.0..0.0)", "no, p 1.000"]
    gain = dynamic["gain"]
    cell = f"{gain['relative']:+.1%} ({100 * gain['low']:.1f}..{100 * gain['high']:.1f})"
    assert table["dynamic"] == [f"{low:.2f}", f"{high:.2f}", cell, "yes, p 0.001"]


def test_one_result_alone(command, saved):
    """Its predictors are compared with its first, as they are in the result itself."""
    path = saved("a.json", "--cache")
    found = json_of(command("compare", path, "--json"))
    own = storage.read_json(path)
    assert found["files"] == [str(path)] * 2
    assert [each["b"] for each in found["pairs"]] == ["dynamic", "cache", "dynamic+cache"]
    for each in found["pairs"]:
        assert each["a"] == "static"
        assert each["gain"] == own[each["b"]]["gain"]
    assert "dynamic over static" in rows(command("compare", path))
    line = ["compare", path, "--predictor-a", "cache", "--predictor-b", "dynamic", "--json"]
    (each,) = json_of(command(*line))["pairs"]
    assert (each["a"], each["b"]) == ("cache", "dynamic")


def test_named_predictors(command, pair):
    line = ["compare", *pair, "--predictor-a", "static", "--predictor-b", "dynamic"]
    (each,) = json_of(command(*line, "--json"))["pairs"]
    assert (each["a"], each["b"]) == ("static", "dynamic")
    assert each["gain"] == storage.read_json(pair[1])["dynamic"]["gain"]
    for flag in ("--predictor-a", "--predictor-b"):
        (each,) = json_of(command("compare", *pair, flag, "dynamic", "--json"))["pairs"]
        assert (each["a"], each["b"]) == ("dynamic", "dynamic")


def test_the_interval_can_be_chosen(command, pair):
    line = ["compare", *pair, "--predictor-a", "dynamic", "--json"]
    usual = json_of(command(*line))["pairs"][0]["gain"]
    (each,) = json_of(
        command(*line, "--level", 0.5, "--block-length", 9, "--figure", "word_perplexity")
    )["pairs"]
    gain = each["gain"]
    assert (gain["level"], gain["block_length"], gain["figure"]) == (0.5, 9, "word_perplexity")
    assert usual["nats_low"] < gain["nats_low"] < gain["nats_high"] < usual["nats_high"]
    found = results.load(pair[0]).to_json()["dynamic"]["word_perplexity"]
    assert each["figures"][0] == found


# Mistakes


def test_texts_that_are_not_the_same(mistake, saved, shifted, texts):
    first = saved("a.json")
    for name, flags in {
        "checksum": {"text": texts["train"]},
        "split": {"flags": ["--split", "valid", "--limit", 20]},
        "first_token": {"flags": ["--first-token", "uniform"]},
        "tokens": {"flags": ["--limit", 90]},
    }.items():
        other = saved("b.json", *flags.pop("flags", []), **flags)
        assert f"the results differ in their {name}: " in mistake("compare", first, other)


def test_files_that_are_no_results(mistake, saved, tmp_path):
    path = saved("a.json")
    assert "does not exist" in mistake("compare", tmp_path / "none.json")
    (tmp_path / "other.json").write_text(json.dumps({"no": "result"}))
    assert "no whole result" in mistake("compare", path, tmp_path / "other.json")


def test_predictors_that_are_not_there(command, mistake, saved, tmp_path):
    path = saved("a.json")
    line = mistake("compare", path, "--predictor-b", "fast")
    assert "there is no predictor 'fast'; give one of static, dynamic" in line
    result = results.load(path)
    del result.scores["dynamic"]
    result.save(tmp_path / "static.json")
    line = mistake("compare", tmp_path / "static.json")
    assert "one predictor" in line
    result = results.load(path)
    result.scores["fast"] = result.scores.pop("dynamic")
    del result.scores["static"]
    result.save(tmp_path / "fast.json")
    line = mistake("compare", tmp_path / "static.json", tmp_path / "fast.json")
    assert "no predictor of one name (static; fast); name two with --predictor-a" in line


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--block-length", 300], "blocks of 300 cannot be drawn from 399 tokens"),
        (["--block-length", 0], "blocks of 0 cannot be drawn"),
        (["--level", 2], "show no interval of level 2"),
        (["--figure", "speed"], "there is no figure 'speed'; give one of perplexity, "),
    ],
)
def test_flags_that_cannot_be(mistake, saved, flags, message):
    assert message in mistake("compare", saved("a.json"), *flags)


def test_a_predictor_that_diverged(command, mistake, checkpoints, shifted, tmp_path):
    path = tmp_path / "a.json"
    line = ["evaluate", checkpoints["bytes"], shifted, "--limit", 100, "--rule", "rms+decay"]
    assert command(*line, "--learning-rate", 10, "--save", path).code == 2
    message = "dynamic diverged at token 21; compare predictors that read all of the text"
    assert message in mistake("compare", path)
