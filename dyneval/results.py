"""Results: the nats of every scored token, from which every figure is derived.

Nats are summed and divided once; what they are divided by are the tokens that were scored, and
their words, characters and bytes, only. What one predictor gains over another is a view of the
nats as well (`significance`). A result is a JSON file of the figures and settings, with an `.npz`
beside it: the arrays, and the vocabulary that spells the tokens.
"""

from __future__ import annotations

import json
import math
import zipfile
import zlib
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dyneval import significance, storage
from dyneval.significance import Comparison
from dyneval.vocabularies import Vocabulary

Array = NDArray[Any]
ENDINGS = (".json",)
QUOTED = {  # of a vocabulary: the figure people quote
    "words": "perplexity",
    "characters": "bits_per_character",
    "bytes": "bits_per_byte",
}
FIGURES = {  # that can be compared; what a perplexity is per, if not per token
    "perplexity": None,
    "word_perplexity": "words",
    "byte_perplexity": "bytes",
    "bits_per_token": None,
    "bits_per_character": None,
    "bits_per_byte": None,
}
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
    moved: dict[str, Any] = field(default_factory=dict)  # how far each weight did (`movement`)

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
        others = {"diverged": self.diverged, "moved": self.moved}
        return figures | {name: value for name, value in others.items() if value}


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
    vocabulary: Vocabulary | None = None  # that spells the tokens; old files have none

    @cached_property
    def gains(self) -> dict[str, Comparison]:
        """What predictors gain over the first; those that scored as many tokens, two or more."""
        first = next(iter(self.scores), "")
        return {
            name: significance.compare(self.scores[first].nats, score.nats)
            for name, score in self.scores.items()
            if name != first and len(score.nats) == len(self.scores[first].nats) > 1
        }

    def to_json(self) -> dict[str, Any]:
        """Return the figures of each predictor, with its `gain` over the first, and `run`."""
        figures = {name: score.figures(self.scored) for name, score in self.scores.items()}
        for name, comparison in self.gains.items():
            gain = _gain(comparison, QUOTED[self.run["vocabulary"]["kind"]])
            figures[name]["gain"] = {"over": next(iter(figures)), **gain}
        return {**figures, "run": self.run}

    def save(self, path: Path | str) -> None:
        """Write `path` (JSON) and the arrays of nats beside it (.npz)."""
        path = Path(path)
        storage.check_writable(path, ENDINGS)
        arrays = {f"nats.{name}": score.nats for name, score in self.scores.items()}
        arrays |= {f"scored.{name}": value for name, value in vars(self.scored).items()}
        if self.vocabulary:
            symbols = json.dumps(self.vocabulary.to_json()).encode()
            arrays["vocabulary"] = np.frombuffer(symbols, np.uint8)
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
                name: Score(
                    arrays[f"nats.{name}"],
                    value["seconds"],
                    value.get("diverged", ""),
                    value.get("moved", {}),
                )
                for name, value in figures.items()
            }
            symbols = arrays["vocabulary"].tobytes() if "vocabulary" in arrays else b"null"
        known = json.loads(symbols)
        vocabulary = Vocabulary.from_json(known) if known else None
        for name, score in scores.items():
            if len(score.nats) != figures[name]["tokens"]:
                raise ValueError(f"they differ in the tokens of {name}")
    except UNREADABLE as error:
        reason = " ".join(str(error).split())
        raise ValueError(
            f"{path} and the .npz beside it are no whole result of `evaluate --save`: {reason}"
        ) from None
    return Result(run, scored, scores, vocabulary=vocabulary)


def _gain(comparison: Comparison, figure: str) -> dict[str, Any]:
    """Return by what part a figure is lower, and how many nats that are, as JSON values."""
    relative = comparison.perplexity if "perplexity" in figure else comparison.bits
    return {
        "figure": figure,
        **dict(zip(("relative", "low", "high"), relative or [None] * 3, strict=True)),
        **dict(zip(("nats_per_token", "nats_low", "nats_high"), comparison.nats, strict=True)),
        "standard_error": comparison.standard_error,
        "p_value": comparison.p_value,
        "significant": comparison.significant,
        "level": comparison.level,
        "block_length": comparison.block_length,
        "documents": comparison.documents,
    }


def compare(
    first: Result,
    second: Result,
    names: tuple[str, str],
    *,
    figure: str | None = None,
    block_length: int | None = None,
    level: float = 0.95,
) -> dict[str, Any]:
    """Return what a predictor of the second result gains over one of the first, as JSON values.

    The figure is the one people quote, unless another is named.
    """
    _check_same_text(first, second)
    figure = figure or QUOTED[first.run["vocabulary"]["kind"]]
    if figure not in FIGURES:
        raise ValueError(f"there is no figure {figure!r}; give one of {', '.join(FIGURES)}")
    scores = []
    for result, name in zip((first, second), names, strict=True):
        if name not in result.scores:
            known = ", ".join(result.scores)
            raise ValueError(f"there is no predictor {name!r}; give one of {known}")
        scores.append(result.scores[name])
        if scores[-1].diverged:
            raise ValueError(
                f"{scores[-1].diverged.split(':')[0]}; compare predictors that read all of the text"
            )
    unit = FIGURES[figure]
    comparison = significance.compare(
        scores[0].nats,
        scores[1].nats,
        sizes=getattr(first.scored, unit) if unit else None,
        block_length=block_length,
        level=level,
    )
    values = [score.figures(first.scored)[figure] for score in scores]
    gain = {"over": names[0], **_gain(comparison, figure)}
    return {"a": names[0], "b": names[1], "figures": values, "gain": gain}


def _check_same_text(first: Result, second: Result) -> None:
    """Raise an error that names what keeps two results from being compared."""
    same = "compare results of the same text, read in the same way"
    for name in ("split", "checksum", "first_token"):
        values = first.run.get(name), second.run.get(name)
        if values[0] != values[1]:
            raise ValueError(
                f"the results differ in their {name}: {values[0]}, {values[1]}; {same}"
            )
    tokens = [result.scored.tokens for result in (first, second)]
    if len(tokens[0]) != len(tokens[1]):
        raise ValueError(
            f"the results differ in their tokens: {len(tokens[0]):,}, {len(tokens[1]):,}; {same}"
        )
    # the ids of symbols may differ, but not what is one symbol, as all are that are <unk>
    pairs = tokens[0].astype(np.int64) << 32 | tokens[1]
    if len({len(np.unique(each)) for each in (*tokens, pairs)}) > 1:
        raise ValueError(
            "the results differ in their vocabularies: symbols that one tells apart are one for "
            f"the other; {same}"
        )
