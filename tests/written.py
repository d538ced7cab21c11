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
