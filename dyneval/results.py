"""Results: the nats of every scored token, from which every figure is derived.

Nats are summed and divided once; what they are divided by are the tokens that were scored, and
their words, characters and bytes, only. A result is a JSON file of the figures and settings, with
an `.npz` of the arrays beside it.
"""

from __future__ import annotations

import math
import zipfile
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dyneval import storage

Array = NDArray[Any]
ENDINGS = (".json",)
UNREADABLE = (
    *(OSError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error),
    *(KeyError, ValueError, TypeError, AttributeError, IndexError),
)


@dataclass(frozen=True)
class Scored:
    """The tokens of a text that are scored, and what each of them stands for."""

    tokens: Array
    words: Array
    characters: Array
    bytes: Array


@dataclass(frozen=True)
class Score:
    """What one predictor expected: −log p of each scored token, from the first to the last.

    A run that diverged holds the tokens before that, and says where it was.
    """

    nats: Array  # (N,)
    seconds: float
    diverged: str = ""

    def figures(self, scored: Scored) -> dict[str, Any]:
        """Return the totals, and the means per token, word, character and byte.

        `bits_per_byte`, `byte_perplexity` and `word_perplexity` (white-space words) have the
        meaning that they have in lm-evaluation-harness.
        """
        count, nats = len(self.nats), math.fsum(self.nats.tolist())
        words, characters, size = (
            int(getattr(scored, name)[:count].sum()) for name in ("words", "characters", "bytes")
        )
        figures: dict[str, Any] = {
            "tokens": count,
            "nats": nats,
            "bits_per_token": _ratio(nats / math.log(2), count),
            "perplexity": _exp(_ratio(nats, count)),
            "bits_per_character": _ratio(nats / math.log(2), characters),
            "bits_per_byte": _ratio(nats / math.log(2), size),
            "word_perplexity": _exp(_ratio(nats, words)),
            "byte_perplexity": _exp(_ratio(nats, size)),
            "words": words,
            "characters": characters,
            "bytes": size,
            "seconds": round(self.seconds, 3),
        }
        return figures | ({"diverged": self.diverged} if self.diverged else {})


def _ratio(total: float, count: int) -> float | None:
    return total / count if count else None


def _exp(mean: float | None) -> float | None:
    """Return e to the mean, or None where that is no number that can be written down."""
    return math.exp(mean) if mean is not None and mean < 700 else None


@dataclass(frozen=True)
class Result:
    """The scores of one or more predictors on the same tokens, and what makes them comparable."""

    run: dict[str, Any]  # model, corpus, checksum, rules, first-token policy, versions, threads
    scored: Scored
    scores: dict[str, Score] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the figures of each predictor, and `run`."""
        figures = {name: score.figures(self.scored) for name, score in self.scores.items()}
        return {**figures, "run": self.run}

    def save(self, path: Path | str) -> None:
        """Write `path` (JSON) and the arrays of nats beside it (.npz)."""
        path = Path(path)
        storage.check_writable(path, ENDINGS)
        arrays = {f"nats.{name}": score.nats for name, score in self.scores.items()}
        arrays |= {f"scored.{name}": value for name, value in vars(self.scored).items()}
        storage.write_arrays(path.with_suffix(".npz"), arrays)
        storage.write_json(path, self.to_json())


def load(path: Path | str) -> Result:
    """Return the result that `save` wrote."""
    path = Path(path)
    figures = storage.read_json(path)
    try:
        run = figures.pop("run")
        # a file of our own: numpy leaves its own open where the archive is damaged
        with path.with_suffix(".npz").open("rb") as file, np.load(file) as arrays:
            scored = Scored(**{name: arrays[f"scored.{name}"] for name in Scored.__annotations__})
            scores = {
                name: Score(arrays[f"nats.{name}"], value["seconds"], value.get("diverged", ""))
                for name, value in figures.items()
            }
        for name, score in scores.items():
            if len(score.nats) != figures[name]["tokens"]:
                raise ValueError(f"they differ in the tokens of {name}")
    except UNREADABLE as error:
        reason = " ".join(str(error).split())
        raise ValueError(
            f"{path} and the .npz beside it are no whole result of `evaluate --save`: {reason}"
        ) from None
    return Result(run, scored, scores)
