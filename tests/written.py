"""Results of texts that tests write, with nats that tests choose."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from dyneval.results import Result, Score, Scored
from dyneval.timescales import Timescales
from dyneval.vocabularies import EOS, Vocabulary

MOVED = {
    "embedding.weight": {"shape": [9, 4], "rms": 0.0123456789, "relative": 0.25},
    "output.bias": {"shape": [9], "rms": 0.5, "relative": None},
}


def vocabulary_of(text: str | bytes, kind: str) -> Vocabulary:
    """Return a vocabulary that can spell a text."""
    if isinstance(text, bytes):
        return Vocabulary("bytes")
    if kind == "words":
        return Vocabulary("words", (EOS, *dict.fromkeys(text.split())))
    return Vocabulary("characters", tuple(dict.fromkeys(text)))


def result_of(
    text: str | bytes,
    kind: str = "bytes",
    nats: dict[str, Any] | None = None,
    moved: Any = MOVED,
    **run: Any,
) -> Result:
    """Return the result of a text: bytes, or words or characters of a string.

    Without `nats` there are those of `static`, and of `dynamic` that gains on what recurs.
    """
    raw = text if isinstance(text, bytes) else text.encode()
    vocabulary = vocabulary_of(text, kind)
    read = vocabulary.read(raw)
    if nats is None:
        random = np.random.default_rng(5)
        static = random.exponential(2.0, len(read)).astype(np.float32)
        better = (static * random.uniform(0.2, 1.3, len(read))).astype(np.float32)
        nats = {"static": static, "dynamic": better}
    scores = {
        name: Score(np.asarray(values, float), 2.0, "", moved if name == "dynamic" else {})
        for name, values in nats.items()
    }
    about = {
        "model": "models/a",
        "architecture": "LSTM",
        "weights": 1234,
        "corpus": "notes.txt",
        "split": "all",
        "checksum": "0",
        "first_token": "unscored",
        "note": "",
        "vocabulary": {"kind": vocabulary.kind, "size": len(vocabulary)},
        "rule": dict.fromkeys(nats, "n = 5"),
        "engines": dict.fromkeys(nats, "fused: in tests"),
        "versions": {"dyneval": "0.1.0"},
    }
    scored = Scored(read.tokens, read.words, read.characters, read.bytes)
    return Result(about | run, scored, scores, vocabulary=vocabulary)


def bits(result: Result, name: str) -> Any:
    """Return the bits of each token."""
    return result.scores[name].nats / math.log(2)


def experiment_of(samples: str = "one\ntwo") -> dict[str, Any]:
    """Return what an experiment found: two studies, one of which answers, a curve and a sample."""
    result = result_of(
        b"the cat saw the dog " * 30, corpus="text8", note="a piece", weights=1_624_320
    )
    figures = result.to_json()
    rows = {
        name: {
            "valid": 1.23456789 + k,
            "test": figures[name]["bits_per_byte"],
            "settings": {"segment_length": 20, "rule": "sgd", "learning_rate": 3.21e-05 * k},
            "seconds": 12.345,
        }
        for k, name in enumerate(("static", "dynamic"))
    }
    rows["dynamic"]["gain"] = figures["dynamic"]["gain"]
    lost = {"valid": 3.0, "test": None, "settings": {}, "diverged": "lost diverged at token 9"}
    study = {
        "name": "small",
        "role": "lstm",
        "rows": rows,
        "plan": {"trials": 4, "tokens": 600},
        "tuning_seconds": {"dynamic": 34.5},
        "run": {key: value for key, value in result.run.items() if key != "rule"},
    }
    other = study | {"name": "other", "rows": {"static": rows["static"], "lost": lost}}
    written = {"seed": 1, "text": samples, "words": 2, "known": 1, "share": 0.5}
    sample = {"samples": [written], "words": 2, "known": 1, "share": 0.5, "run": {"rule": "n = 5"}}
    return {
        "experiment": "own",
        "title": "Table 9: our own",
        "figure": "bits per character",
        "scale": "desk",
        "published": [
            {"name": "theirs", "test": 1.5},
            {"name": "LSTM", "test": 2.0, "valid": 2.1, "parameters": "20M"}
            | {"role": "lstm", "row": "static"},
            {"name": "LSTM + dynamic eval", "test": 1.8, "role": "lstm", "row": "dynamic"},
            {"name": "LSTM + sparse", "test": 1.9, "role": "lstm", "row": "sparse"},
            {"name": "Figure 9", "fact": "it grows"},
        ],
        "studies": [study, other],
        "curves": {"Spanish": timescales_of().to_json(4, 12, False)},
        "samples": {"Spanish": {"static": sample, "dynamic": sample}},
    }


def timescales_of(kind: str = "bytes") -> Timescales:
    """Return twelve sequences of 40 tokens, the later of which are learned better."""
    random = np.random.default_rng(6)
    static = random.exponential(2.0, (12, 40))
    dynamic = static * np.linspace(1.0, 0.5, 40)
    run = {
        "model": "models/a",
        "corpus": "notes.txt",
        "split": "all",
        "note": "",
        "vocabulary": {"kind": kind, "size": 256},
        "rule": {"static": "n = 5", "dynamic": "n = 5"},
        "sequences": 12,
        "length": 41,
    }
    nats = {"static": static, "dynamic": dynamic}
    return Timescales(run, nats, dict.fromkeys(nats, 0.5))
