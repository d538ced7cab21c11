"""`dyneval evaluate` and `tune` on documents, as the command line has them."""

import csv
import os
import re

import numpy as np
import pytest
from processes import json_of, killed, process

from dyneval import results, storage


@pytest.fixture
def letters(tmp_path):
    """A folder of a few short files, one of them without a token."""
    folder = tmp_path / "letters"
    folder.mkdir()
    for name, written in (
        ("b.txt", "no red sun\n\nis blue\n"),
        ("a.txt", "half the sun\n"),
        ("c.txt", ""),
        ("d.txt", "no"),
    ):
        (folder / name).write_text(written)
    return folder


def test_each_document_has_a_row(command, checkpoints, letters, tmp_path):
    """In the order of the files' names: what they are called, their tokens, their nats."""
    paths = {ending: tmp_path / f"out.{ending}" for ending in ("json", "csv")}
    line = ["evaluate", checkpoints["words"], letters, "--documents", "files", "--streams", 2]
    line += ["--save", paths["json"], "--documents-csv", paths["csv"]]
    found = json_of(command(*line, "--json"))
    with paths["csv"].open(newline="") as file:
        rows = list(csv.DictReader(file))
    told = [(row["document"], row["label"], row["tokens"]) for row in rows]
    assert told == [("1", "a.txt", "3"), ("2", "b.txt", "7"), ("3", "d.txt", "1")]
    for name in ("static", "dynamic"):
        nats = [float(row[f"nats.{name}"]) for row in rows]
        assert sum(nats) == pytest.approx(found[name]["nats"])
    assert found["dynamic"]["documents"]["count"] == 3
    assert {name: found["run"][name] for name in ("documents", "carry", "streams", "split")} == {
        "documents": "files",
        "carry": "none",
        "streams": 2,
        "split": "all",
    }
    saved = storage.read_json(paths["json"])
    assert [[str(value) for value in row.values()] for row in saved.pop("documents")] == [
        list(row.values()) for row in rows
    ]
    assert saved == found
    with np.load(paths["json"].with_suffix(".npz")) as arrays:
        assert arrays["documents.numbers"].tolist() == [1] * 3 + [2] * 7 + [3]


def test_a_table_tells_how_documents_gain(command, checkpoints, shifted):
    line = ["evaluate", checkpoints["words"], shifted, "--documents", "lines", "--limit", 400]
    done = command(*line, "--rule", "sgd", "--learning-rate", 0.5, "--segment-length", 2)
    assert (done.code, done.err) == (0, "")
    assert re.search(r"dynamic: 60 documents, median gain -\d\.\d%, \d\d\.\d% of them", done.out)


def test_results_that_carry_something_else_are_compared(command, checkpoints, shifted, tmp_path):
    paths = {carry: tmp_path / f"{carry}.json" for carry in ("none", "weights")}
    line = ["evaluate", checkpoints["words"], shifted, "--documents", "lines", "--limit", 400]
    for carry, path in paths.items():
        flags = ["--rule", "sgd", "--learning-rate", 0.5, "--save", path, "--quiet"]
        assert command(*line, "--carry", carry, *flags).code == 0
    found = json_of(command("compare", *paths.values(), "--json"))["pairs"]
    assert [pair["gain"]["significant"] for pair in found] == [False, True]
    assert found[1]["gain"]["documents"] > 20
    assert "none in A, weights (streams: 1) in B" in command("compare", *paths.values()).out


def test_tuning_reads_documents(command, checkpoints, letters, tmp_path):
    line = ["tune", checkpoints["words"], letters, "--split", "all", "--documents", "files"]
    line += ["--rule", "sgd", "--trials", 2, "--confirm", 1, "--out", tmp_path / "s.json"]
    done = command(*line, "--carry", "weights", "--streams", 2, "--quiet")
    assert (done.code, done.err) == (0, "")
    tuned = storage.read_json(tmp_path / "s.json")["tuning"]["dynamic"]
    assert (tuned["documents"], tuned["carry"], tuned["streams"]) == ("files", "weights", 2)


@pytest.mark.parametrize("carry", ["none", "weights+state"])
def test_killed_among_documents_a_run_ends_with_the_same_digits(
    command, checkpoints, shifted, tmp_path, carry
):
    """Killed (-9) twice, within documents of unequal length that are read side by side."""
    kept = tmp_path / "kept"
    line = ["evaluate", checkpoints["bytes"], shifted, "--threads", 1, "--quiet", "--json"]
    line += ["--limit", 1500, "--documents", "lines", "--carry", carry, "--streams", 3]
    line += ["--segment-length", 4, "--learning-rate", 0.001]
    whole, resumed = tmp_path / "whole.json", tmp_path / "resumed.json"
    assert command(*line, "--save", whole).code == 0
    line += ["--checkpoint", kept, "--checkpoint-every", 0]
    for name, flags in (("static", []), ("dynamic", ["--resume"])):
        path = kept / f"{name}.safetensors"
        killed(process(*line, *flags), path.exists)
        assert not storage.read_tensors(path)[1]["ended"]  # otherwise nothing was interrupted
    assert command(*line, "--resume", "--save", resumed).code == 0
    found, expected = results.load(resumed), results.load(whole)
    assert np.array_equal(found.by_document.numbers, expected.by_document.numbers)
    for name, score in expected.scores.items():
        assert np.array_equal(found.scores[name].nats, score.nats), name
    assert "another run than this one (of another streams)" in (
        command(*line, "--resume", "--streams", 2).err
    )


# Mistakes


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--documents", "pages"], "cannot be cut into 'pages'; give lines, blank-lines, files, "),
        (["--documents", "chunks:0"], "cannot be cut into 'chunks:0'"),
        (["--documents", "chunks:many"], "pieces of N tokens, 1 or more"),
        (["--documents", "lines", "--carry", "state"], "give one of none, weights, weights+state"),
        (["--documents", "lines", "--streams", "0"], "0 streams side by side read nothing; give 1"),
        (["--documents", "lines", "--streams", "-1"], "-1 streams side by side"),
        (["--documents", "lines", "--streams", "two"], "Invalid value for '--streams'"),
        (["--carry", "weights"], "is for documents, and the text is read as one"),
        (["--streams", "2"], "say what a document is (--documents)"),
        (["--documents-csv", "a.csv"], "cut the text with --documents"),
        (["--documents", "lines", "--documents-csv", "a.txt"], "a.txt has another ending"),
        (["--documents", "chunks:1", "--limit", "9"], "9 (documents: 9), and needed are 2 or more"),
        (["--documents", "files", "--split", "valid"], "has no split 'valid'; give one of all"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_flags_that_make_no_sense(
    mistake, checkpoints, shifted, tmp_path, monkeypatch, flags, says
):
    monkeypatch.chdir(tmp_path)
    assert says in mistake("evaluate", checkpoints["bytes"], shifted, *flags)
    assert not os.listdir(tmp_path)


def test_a_text_without_a_token_has_no_documents(mistake, checkpoints, tmp_path):
    (tmp_path / "a.txt").touch()
    for cut, name in (("lines", tmp_path / "a.txt"), ("files", tmp_path), ("chunks:9", os.devnull)):
        line = mistake("evaluate", checkpoints["words"], name, "--documents", cut)
        assert f"{name} has too few tokens to read: 0 (documents: 0), and needed are 2" in line


def test_folders_without_a_file(mistake, checkpoints, tmp_path):
    line = mistake("evaluate", checkpoints["bytes"], tmp_path, "--documents", "files")
    assert f"there is no file in {tmp_path}; give a folder of text files, or a pattern" in line
    line = mistake("evaluate", checkpoints["bytes"], tmp_path)
    assert f"{tmp_path} is a folder; give a text file, or let" in line


# Real corpora


@pytest.mark.corpora
def test_paragraphs_of_wikitext_2(command, corpora_folder, monkeypatch):
    """The bundled model of bytes learns in the long ones; scores as recorded."""
    monkeypatch.setenv("DYNEVAL_DATA", str(corpora_folder))
    line = ["evaluate", "bundled", "wikitext-2", "--documents", "blank-lines", "--limit", 8000]
    found = json_of(command(*line, "--streams", 4, "--json", "--quiet"))
    assert found["static"]["tokens"] == 8000 - 17
    assert found["static"]["bits_per_byte"] == pytest.approx(3.42533, rel=1e-4)
    assert found["dynamic"]["bits_per_byte"] == pytest.approx(2.30503, rel=1e-4)
    assert found["dynamic"]["documents"] == {
        "count": 17,
        "median_gain": pytest.approx(0.02918, rel=1e-3),
        "share_with_gain": 14 / 17,
    }
