import csv
import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from processes import json_of, killed, process

from dyneval import corpora, gradient_stats, models, storage, timescale_report
from dyneval.evaluation import evaluate
from dyneval.settings import Settings
from dyneval.timescales import Sequences, Timescales

PREDICTORS = {
    "static": Settings(7),
    "dynamic": Settings(7, "rms+rms-decay", learning_rate=1e-3),
    "sgd": Settings(5, "sgd", learning_rate=0.5),
}


def made(**nats):
    """Time scales of made-up nats, in bits."""
    arrays = {name: np.array(rows, float) * math.log(2) for name, rows in nats.items()}
    run = {
        "model": "models/a",
        "corpus": "some $1 text [of $2]",
        "split": "test",
        "note": "a piece",
        "vocabulary": {"kind": "bytes", "size": 256},
        "rule": dict.fromkeys(nats, "n = 5"),
        "sequences": len(next(iter(arrays.values()))),
        "length": len(next(iter(arrays.values()))[0]) + 1,
    }
    return Timescales(run, arrays, dict.fromkeys(nats, 0.5))


def of_gain(gains):
    """Static, and a predictor that is better by so many bits at each token."""
    gains = np.array(gains, float)
    return made(static=np.full(gains.shape, 5.0), dynamic=5 - gains)


def task(checkpoints, shifted, **changes):
    values = {"predictors": PREDICTORS, "length": 31, "count": 5} | changes
    return Sequences(checkpoints["words"], shifted, **values)


# Reading


@pytest.mark.parametrize("streams", [1, 2, 5, 50])
def test_each_sequence_is_read_as_it_would_be_alone(checkpoints, shifted, streams):
    found = task(checkpoints, shifted).execute(streams=streams)
    checkpoint = models.load(checkpoints["words"])
    stats = gradient_stats.load(checkpoints["words"] / gradient_stats.FILE)
    tokens = corpora.load(shifted, checkpoint.vocabulary).read().stream
    assert found.shape == (5, 30)
    for name, settings in PREDICTORS.items():
        for k in range(5):
            predictor = settings.predictor(checkpoint.model, stats)
            stream = tokens[:, 31 * k : 31 * (k + 1)]
            nats = torch.cat(list(evaluate(predictor, stream, settings.segment_length)), 1)[0]
            np.testing.assert_allclose(found.nats[name][k], nats.numpy(), rtol=2e-5)
    assert (found.run["sequences"], found.run["length"]) == (5, 31)
    assert found.run == json.loads(json.dumps(found.run))
    assert all(found.seconds[name] > 0 for name in PREDICTORS)


def test_all_that_a_text_holds_is_read(checkpoints, shifted):
    found = task(checkpoints, shifted, count=None, predictors={"static": Settings(5)}).execute()
    vocabulary = models.load_vocabulary(checkpoints["words"])
    assert found.shape == (len(corpora.load(shifted, vocabulary).read()) // 31, 30)


def test_progress_ends_where_the_work_does(checkpoints, shifted):
    reports = []
    found = task(checkpoints, shifted).execute(reports.append, streams=2)
    for name in PREDICTORS:
        own = [at for at in reports if at.name == name]
        assert [at.done for at in own] == sorted(at.done for at in own)
        assert (own[-1].done, own[-1].total) == (150, 150)
        assert own[-1].nats == pytest.approx(found.nats[name][4:].mean())


@pytest.mark.parametrize(
    ("message", "changes"),
    [
        ("1 sequences of 31 tokens tell nothing", {"count": 1}),
        ("5 sequences of 1 tokens tell nothing", {"length": 1}),
        (r"holds \d+ sequences of 31 tokens, and 5000 are needed", {"count": 5000}),
        ("holds 0 sequences of 99999 tokens, and 2 are needed", {"count": None, "length": 99999}),
        ("no split 'none'", {"split": "none"}),
        ("cannot be named 'run'", {"predictors": {"run": Settings(5)}}),
    ],
)
def test_impossible_sequences(checkpoints, shifted, message, changes):
    with pytest.raises(ValueError, match=message):
        task(checkpoints, shifted, **changes).execute()


def test_a_predictor_that_diverges_ends_the_run(checkpoints, shifted):
    wild = {"static": Settings(7), "wild": Settings(7, "sgd", learning_rate=1e20)}
    for streams in (1, 3):
        with pytest.raises(ValueError, match="wild diverged in sequence 1, behind token 8: "):
            task(checkpoints, shifted, predictors=wild).execute(streams=streams)


# Going on


def test_sequences_that_were_read_are_not_read_again(checkpoints, shifted, tmp_path):
    """Also in other company; and a later run may have more of them."""
    expected = task(checkpoints, shifted).execute()
    task(checkpoints, shifted, count=3).execute(folder=tmp_path, streams=2)
    old = [path.stat().st_mtime_ns for path in sorted(tmp_path.glob("0*"))]
    assert len(old) == 3
    reports = []
    (tmp_path / "000001.safetensors").unlink()
    found = task(checkpoints, shifted).execute(reports.append, folder=tmp_path, resume=True)
    new = [path.stat().st_mtime_ns for path in sorted(tmp_path.glob("0*"))]
    assert [len(new), new[0], new[2]] == [5, old[0], old[2]]
    assert reports[0].done > 60
    for name, nats in expected.nats.items():
        np.testing.assert_allclose(found.nats[name], nats, rtol=2e-5)


def test_a_folder_is_of_one_run(checkpoints, shifted, tmp_path):
    one = task(checkpoints, shifted, count=2)
    one.execute(folder=tmp_path)
    with pytest.raises(ValueError, match="already holds a run"):
        one.execute(folder=tmp_path)
    with pytest.raises(ValueError, match="another run than this one .of another length"):
        replace(one, length=30).execute(folder=tmp_path, resume=True)
    names = ("static", "dynamic", "sgd")
    for tensors in ({"static": torch.zeros(30)}, {name: torch.zeros(30) for name in names}):
        storage.write_tensors(tmp_path / "000001.safetensors", tensors, None)
        with pytest.raises(ValueError, match="000001.* holds no sequence of this run"):
            one.execute(folder=tmp_path, resume=True)


def test_killed_and_resumed_it_ends_with_the_same_digits(checkpoints, shifted, tmp_path):
    line = ["timescales", checkpoints["words"], shifted, "--length", 60, "--sequences", 9]
    line += ["--rule", "sgd", "--threads", 1, "--streams", 2, "--json"]
    folder = tmp_path / "kept"
    kept = ("--checkpoint", folder)
    killed(process(*line, *kept), (folder / "000002.safetensors").exists)
    assert len(list(folder.glob("0*"))) < 9
    found = []
    for flags in ((*kept, "--resume"), ()):
        with process(*line, *flags) as started:
            out, err = started.communicate()
        assert (started.returncode, err) == (0, b"")
        found.append(json.loads(out))
    for each in found:
        del each["static"]["seconds"], each["dynamic"]["seconds"]
    assert found[0] == found[1]


# Means and intervals


def test_buckets_may_end_shorter():
    found = made(static=[[1, 2, 3, 4, 5, 6, 7]] * 2, dynamic=[[1, 2, 3, 4, 5, 6, 3]] * 2)
    spans = found.buckets(3)
    assert spans == [(0, 3), (3, 6), (6, 7)]
    assert [row["mean"] for row in found.loss("static", spans).bits()] == pytest.approx([2, 5, 7])
    assert [row["mean"] for row in found.gain("dynamic", spans).bits()] == pytest.approx([0, 0, 4])
    assert found.buckets(50) == [(0, 7)]
    assert found.last(2) == [(5, 7)]
    assert found.last(50) == [(0, 7)]


def test_a_gain_is_paired():
    """Sequences differ much in their loss, and not at all in what is gained."""
    found = made(static=[[1], [9], [4], [7]], dynamic=[[0.5], [8.5], [3.5], [6.5]])
    spans = found.buckets(1)
    gain, loss = found.gain("dynamic", spans).bits()[0], found.loss("dynamic", spans).bits()[0]
    assert list(gain.values()) == pytest.approx([0.5, 0.5, 0.5])
    assert loss["low"] < loss["mean"] - 1
    assert loss["high"] > loss["mean"] + 1


def test_an_interval_is_that_of_the_normal_approximation():
    """Of 400 sequences, where theory says ±1.96 standard errors: within 8%."""
    values = np.random.default_rng(1).normal(3, 2, (400, 1))
    found = made(static=values)
    band = found.loss("static", found.buckets(1)).bits()[0]
    error = values.std() / 20
    assert band["low"] == pytest.approx(values.mean() - 1.96 * error, abs=0.16 * error)
    assert band["high"] == pytest.approx(values.mean() + 1.96 * error, abs=0.16 * error)


# Break-even


@pytest.mark.parametrize(
    ("gains", "tokens"),
    [
        ([1, 1, 1], 1),
        ([0, 0, 1, -0.5], 3),  # nothing is learned before the first segment ends
        ([-1, 0.5, 0.5, 0.25], 4),
        ([3, -4, 0.5, 1], 4),  # for good only the second time
        ([1e-9, 1e-9, 1e-9, 1], 4),  # rounding is no gain
        ([1, 1, -3], None),
        ([-1, -1, 2], None),
        ([0, 0, 0], None),
    ],
)
def test_break_even_of_made_up_gains(gains, tokens):
    found = of_gain([gains] * 3).break_even("dynamic")
    assert found == (tokens, tokens, tokens)


def test_break_even_is_of_the_mean_and_varies_with_the_sequences():
    """Half of the sequences pay at once, half after 39 tokens; the mean then, after 20."""
    soon, late = [0.1] * 60, [-0.1] * 19 + [0.1] * 41
    found = of_gain([soon, late] * 20).break_even("dynamic")
    assert found.tokens == 1 or found.low <= found.tokens <= found.high
    found = of_gain([[*([0.05] * 60)], late] * 20).break_even("dynamic")
    # after k > 19 tokens the sum of both is 0.05 k - 1.9 + 0.1 (k - 19): positive from 26 on
    assert found.tokens == 26
    assert 19 < found.low < 26 < found.high < 39


def test_break_even_may_be_uncertain():
    found = of_gain([[1.0] * 4, [-0.9] * 4] * 5).break_even("dynamic")
    assert (found.tokens, found.low, found.high) == (1, 1, None)


# What is written


@pytest.fixture
def value():
    static = np.random.default_rng(2).uniform(4, 6, (6, 45))
    return made(static=static, dynamic=static - 0.5, worse=static + 1).to_json(10, 5, True)


def test_the_figures_of_each_predictor(value):
    assert list(value) == ["static", "dynamic", "worse", "buckets", "run"]
    assert value["dynamic"]["all"]["gain"]["mean"] == pytest.approx(0.5)
    assert value["worse"]["last"]["gain"]["mean"] == pytest.approx(-1)
    assert (value["worse"]["last"]["from"], value["worse"]["last"]["to"]) == (41, 45)
    assert value["dynamic"]["break_even"] == {"tokens": 1, "low": 1, "high": 1}
    assert value["worse"]["break_even"] == dict.fromkeys(("tokens", "low", "high"))
    assert "gain" not in value["static"]["all"]
    loss = value["static"]["all"]["bits_per_token"]["mean"]
    assert value["static"]["tokens"] == 270
    assert loss == pytest.approx(value["static"]["nats"] / 270 / math.log(2))


def test_a_row_for_each_bucket(value, tmp_path):
    path = tmp_path / "rows.csv"
    timescale_report.write_csv(value, path)
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["from"], row["to"]) for row in rows] == [
        *(("1", "10"), ("11", "20"), ("21", "30"), ("31", "40"), ("41", "45"))
    ]
    for row, expected in zip(rows, value["buckets"], strict=True):
        assert {key: float(cell) for key, cell in row.items()} == expected
        assert float(row["dynamic.gain.low"]) == pytest.approx(0.5)
        static, worse = (float(row[f"{name}.bits_per_token.mean"]) for name in ("static", "worse"))
        assert worse == pytest.approx(static + 1)


@pytest.mark.parametrize("kind", ["bytes", "words"])
@pytest.mark.parametrize("ending", [".png", ".svg"])
def test_a_figure(value, tmp_path, kind, ending):
    value["run"]["vocabulary"]["kind"] = kind
    path = tmp_path / f"curve{ending}"
    timescale_report.figure(value, path)
    assert path.stat().st_size > 5000


def test_nonsense_spans_are_refused(value):
    for bucket, last in ((0, 5), (5, 0)):
        with pytest.raises(ValueError, match="cannot be told"):
            of_gain([[1, 2]] * 2).to_json(bucket, last, False)


# The command


def test_the_command_line_with_the_bundled_model(command, tmp_path):
    files = {name: tmp_path / f"out.{name}" for name in ("json", "csv", "png")}
    line = ["timescales", "--length", 120, "--sequences", 3, "--bucket", 50, "--last", 40]
    line += ["--break-even", "--save", files["json"], "--csv", files["csv"]]
    found = json_of(command(*line, "--json"))
    assert storage.read_json(files["json"]) == found
    assert [row["to"] for row in found["buckets"]] == [50, 100, 119]
    assert files["csv"].read_text().count("\n") == 4
    assert found["run"]["predictors"]["dynamic"]["learning_rate"] == 2e-5
    assert set(found["dynamic"]) == {"tokens", "nats", "all", "last", "break_even", "seconds"}
    with np.load(tmp_path / "out.npz") as arrays:
        assert arrays["nats.dynamic"].shape == (3, 119)
        assert arrays["nats.static"].sum() == pytest.approx(found["static"]["nats"])
    done = command(*line, "--figure", files["png"])
    assert (done.code, done.err) == (0, "")
    assert "bits/byte, last 40" in done.out
    assert "gain so far is positive" in done.out
    assert f"figure: {files['png']}" in done.out.replace("\n", "")
    assert files["png"].stat().st_size > 5000


def test_words_are_told_in_perplexity(command, checkpoints, shifted):
    line = ["timescales", checkpoints["words"], shifted, "--length", 30, "--sequences", 3]
    done = command(*line, "--rule", "sgd")
    assert (done.code, done.err) == (0, "")
    assert "perplexity" in done.out
    assert "gain, bits/token" in done.out
    assert "last" not in done.out  # 2,000 are all of them
    assert "positive" not in done.out


def test_mistakes_of_the_command(mistake, tmp_path):
    assert "name it with --checkpoint" in mistake("timescales", "--resume")
    assert "buckets of 0 tokens" in mistake("timescales", "--bucket", 0)
    assert "0 streams" in mistake("timescales", "--streams", 0)
    assert "another ending" in mistake("timescales", "--csv", tmp_path / "a.txt")
    line = mistake("timescales", "--sequences", 999)
    assert "sequences of 10000 tokens, and 999 are needed; give fewer or shorter ones" in line
