"""`--target` and `--memory`, from statistics to what is written."""

import json

import numpy as np
import pytest
from processes import json_of

from dyneval import storage
from dyneval.settings import Settings

TARGETS = ["hidden-matrix:4", "low-rank:2", "matching:*bias*"]


def quietly(command, *arguments):
    done = command(*arguments, "--quiet")
    assert (done.code, done.err) == (0, "")
    return done


@pytest.mark.parametrize("target", TARGETS)
def test_from_statistics_to_what_is_written(command, copied, texts, tmp_path, target):
    """Each command takes a target, and finds what the one before left in the folder."""
    folder, text = copied("bytes"), texts["shifted"]
    collected = ["--split", "all", "--batch-size", 10, "--batches", 20, "--target", target]
    quietly(command, "gradient-stats", folder, texts["train"], *collected)
    tuned = ["--split", "all", "--trials", 2, "--prefix", 300, "--limit", 400, "--target", target]
    quietly(command, "tune", folder, text, *tuned, "--force")
    name = {"hidden-matrix": "sparse"}.get(target.partition(":")[0], target.partition(":")[0])
    row = storage.read_json(folder / "settings.json")["settings"][name]
    assert row["target"] == target

    found = json_of(command("evaluate", folder, text, "--limit", 300, "--json", "--quiet"))
    assert found.keys() == {"static", name, "run"}
    asked = ["evaluate", folder, text, "--limit", 300, "--target", target, "--json", "--quiet"]
    again = json_of(command(*asked))  # the row of that target is found by it
    assert again["dynamic"]["nats"] == pytest.approx(found[name]["nats"], rel=1e-6)
    assert again["dynamic"]["nats"] != again["static"]["nats"]
    assert again["run"]["predictors"]["dynamic"]["target"] == target
    assert again["run"]["statistics"].keys() == {target}

    sequences = ["timescales", folder, text, "--length", 100, "--streams", 3, "--target", target]
    scales = json_of(command(*sequences, "--json", "--quiet"))
    assert scales["run"]["predictors"]["dynamic"]["target"] == target
    written = ["generate", folder, "--conditioning", text, "--limit", 100, "--length", 20]
    assert quietly(command, *written, "--target", target).out


def test_full_and_sparse_beside_each_other(command, copied, texts):
    """Rows of several targets, each with statistics of its own."""
    folder = copied("bytes")
    collected = ["--split", "all", "--batch-size", 10, "--batches", 20]
    quietly(command, "gradient-stats", folder, texts["train"], *collected, "--target", TARGETS[0])
    full = Settings(5, "rms+rms-decay", learning_rate=1e-3)
    sparse = Settings(5, "rms+rms-decay", learning_rate=1e-4, target=TARGETS[0])
    rows = {"settings": {"dynamic": full.to_json(), "sparse": sparse.to_json()}}
    storage.write_json(folder / "both.json", rows)
    asked = ["timescales", folder, texts["shifted"], "--length", 100, "--settings", "both.json"]
    found = json_of(command(*asked, "--json", "--quiet"))
    assert list(found) == ["static", "dynamic", "sparse", "buckets", "run"]
    assert found["run"]["statistics"].keys() == {"all-weights", TARGETS[0]}


def test_a_memory_changes_nothing_but_how_many_are_read_at_a_time(command, checkpoints, shifted):
    sequences = ["timescales", checkpoints["bytes"], shifted, "--length", 100, "--streams", 3]
    asked = [*sequences, "--rule", "sgd", "--learning-rate", 0.1, "--json", "--quiet"]
    free, tight = (json_of(command(*asked, *more)) for more in ([], ["--memory", "1kB"]))
    assert (free["run"]["streams"], tight["run"]["streams"]) == (3, 1)
    assert np.isclose(free["dynamic"]["nats"], tight["dynamic"]["nats"], rtol=1e-6)

    documents = ["evaluate", checkpoints["bytes"], shifted, "--documents", "lines", "--streams", 4]
    asked = [*documents, "--rule", "sgd", "--learning-rate", 0.1, "--json", "--quiet"]
    free, tight = (json_of(command(*asked, *more)) for more in ([], ["--memory", "1kB"]))
    assert np.isclose(free["dynamic"]["nats"], tight["dynamic"]["nats"], rtol=1e-6)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--target", "half"], "there is no target 'half'; give all-weights"),
        (["--target", "hidden-matrix:4"], "--target hidden-matrix:4"),  # statistics to collect
        (["--target", "hidden-matrix:99", "--rule", "sgd"], "reaches beyond the model"),
        (["--target", "matching:nothing", "--rule", "sgd"], "no weight matches 'nothing'"),
        (["--memory", "much"], "'much' is no size; give bytes, or as 500MB or 4GB"),
        (["--memory", "0"], "a memory of 0 bytes holds nothing"),
        (
            ["--memory", "1kB", "--documents", "lines", "--streams", "4", "--carry", "weights"],
            "4 streams do not fit into 1,000 bytes",
        ),
    ],
    ids=" ".join,
)
def test_mistakes(mistake, checkpoints, shifted, flags, message):
    assert message in mistake("evaluate", checkpoints["bytes"], shifted, *flags)


def test_statistics_of_another_target_are_refused(command, mistake, copied, texts, tmp_path):
    folder, path = copied("bytes"), tmp_path / "sparse.safetensors"
    collected = ["--split", "all", "--batch-size", 10, "--batches", 20, "--target", TARGETS[0]]
    quietly(command, "gradient-stats", folder, texts["train"], *collected, "--out", path)
    said = mistake("evaluate", folder, texts["shifted"], "--stats", path)
    assert "of the target hidden-matrix:4, not of all-weights" in said
    value = json.dumps({"settings": {"dynamic": {"segment_length": 5, "target": "x:1"}}})
    (tmp_path / "settings.json").write_text(value)
    asked = [folder, texts["shifted"], "--settings", tmp_path / "settings.json"]
    assert "there is no target 'x:1'" in mistake("evaluate", *asked)
