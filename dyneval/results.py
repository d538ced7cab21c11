"""Results: the nats of every scored token, from which every figure is derived.

Nats are summed and divided once; what they are divided by are the tokens that were scored, and
their words, characters and bytes, only. What one predictor gains over another is a view of the
nats as well (`significance`), and so is what one document brought. A result is a JSON file of the
figures and settings, with an `.npz` beside it: the arrays, and the vocabulary that spells the
tokens.
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
    "tokens": "bits_per_byte",  # so that models with other tokenizers compare
}
UNITS_OF = {  # what the quoted figure is per; None: a token
    "words": None,
    "characters": "characters",
    "bytes": "bytes",
    "tokens": "bytes",
}
FIGURES = {  # that can be compared; what a perplexity is per, if not per token
    "perplexity": None,
    "word_perplexity": "words",
    "byte_perplexity": "bytes",
    "bits_per_token": None,
    "bits_per_character": None,
    "bits_per_byte": None,
}
ROUNDING = 1e-6  # nats a token: a gain below this is rounding
MOST_ROWS = 1000  # documents that a result's JSON file lists
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
class ByDocument:
    """Which document each scored token is of, and what to call the documents."""

    numbers: Array  # (N,) from 1
    labels: Array  # (D,)

    @cached_property
    def tokens(self) -> Array:
        """(D,): how many tokens of each are scored."""
        return np.bincount(self.numbers - 1, minlength=len(self.labels))

    def sums(self, values: Array) -> Array:
        """(N,) -> (D,) the sum of each document; NaN where values end before it does."""
        count = len(self.labels)
        total = np.bincount(self.numbers[: len(values)] - 1, values, count).astype(float)
        if len(values) < len(self.numbers):
            total[self.numbers[len(values)] - 1 :] = np.nan
        return total


@dataclass(frozen=True)
class Result:
    """The scores of one or more predictors on the same tokens, and what makes them comparable."""

    run: dict[str, Any]  # model, corpus, checksum, rules, first-token policy, versions, threads
    scored: Scored
    scores: dict[str, Score] = field(default_factory=dict)
    by_document: ByDocument | None = None  # None: one text
    vocabulary: Vocabulary | None = None  # that spells the tokens; old files have none

    @cached_property
    def gains(self) -> dict[str, Comparison]:
        """What predictors gain over the first; those that scored as much, and enough to tell."""
        first, *others = self.scores or [""]
        count = len(self.scores[first].nats) if others else 0
        numbers = self.by_document.numbers[:count] if self.by_document else None
        documents = 1 if numbers is None else len(np.unique(numbers))
        # in few documents of one token each nothing varies
        enough = count > (documents if documents < significance.MANY else 1)
        return {
            name: significance.compare(
                self.scores[first].nats, self.scores[name].nats, documents=numbers
            )
            for name in others
            if enough and len(self.scores[name].nats) == count
        }

    def documents(self) -> list[dict[str, Any]]:
        """Return a row for each document: its number, label, scored tokens, nats of predictors.

        The nats are None where a predictor diverged before the end of the document.
        """
        if not self.by_document:
            return []
        by, count = self.by_document, len(self.by_document.labels)
        columns = {
            "document": range(1, count + 1),
            "label": by.labels.tolist(),
            "tokens": by.tokens.tolist(),
        }
        for name, score in self.scores.items():
            sums = by.sums(score.nats).tolist()
            columns[f"nats.{name}"] = [None if math.isnan(nats) else nats for nats in sums]
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]

    def gains_of_documents(self, name: str) -> tuple[Array, Array]:
        """(D,) by what part each document's figure is lower than the first predictor's, and
        (D,) how many nats a token that are; not finite where nothing is scored.
        """
        by = self.by_document
        assert by
        first, second = (by.sums(self.scores[k].nats) for k in (next(iter(self.scores)), name))
        with np.errstate(all="ignore"):
            fewer = (first - second) / by.tokens  # nats
            if QUOTED[self.run["vocabulary"]["kind"]] == "perplexity":
                return -np.expm1(-fewer), fewer
            return 1 - second / first, fewer

    def _summary_of_documents(self, name: str) -> dict[str, Any]:
        """Return the median of what documents gain, and how many of them do, as JSON values."""
        relative, fewer = self.gains_of_documents(name)
        known = np.isfinite(relative)  # of documents with a scored token
        return {
            "count": int(known.sum()),
            "median_gain": float(np.median(relative[known])) if known.any() else None,
            "share_with_gain": float((fewer[known] > ROUNDING).mean()) if known.any() else None,
        }

    def to_json(self) -> dict[str, Any]:
        """Return the figures of each predictor, with its `gain` over the first, and `run`."""
        figures = {name: score.figures(self.scored) for name, score in self.scores.items()}
        for name, comparison in self.gains.items():
            gain = _gain(comparison, QUOTED[self.run["vocabulary"]["kind"]])
            figures[name]["gain"] = {"over": next(iter(figures)), **gain}
        if self.by_document:
            for name in list(figures)[1:]:
                figures[name]["documents"] = self._summary_of_documents(name)
        return {**figures, "run": self.run}

    def save(self, path: Path | str) -> None:
        """Write `path` (JSON) and the arrays of nats beside it (.npz).

        Both tell of each document, unless there are too many for a JSON file.
        """
        path = Path(path)
        storage.check_writable(path, ENDINGS)
        arrays = {f"nats.{name}": score.nats for name, score in self.scores.items()}
        arrays |= {f"scored.{name}": value for name, value in vars(self.scored).items()}
        if self.vocabulary:
            symbols = json.dumps(self.vocabulary.to_json()).encode()
            arrays["vocabulary"] = np.frombuffer(symbols, np.uint8)
        value = self.to_json()
        if by := self.by_document:
            arrays |= {"documents.numbers": by.numbers, "documents.labels": by.labels}
            if len(by.labels) <= MOST_ROWS:
                value["documents"] = self.documents()
        storage.write_arrays(path.with_suffix(".npz"), arrays)
        storage.write_json(path, value)


def load(path: Path | str) -> Result:
    """Return the result that `save` wrote."""
    path = Path(path)
    figures = storage.read_json(path)
    try:
        run, by = figures.pop("run"), None
        figures.pop("documents", None)  # the arrays have them all
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
            if "documents.numbers" in arrays:
                by = ByDocument(arrays["documents.numbers"], arrays["documents.labels"])
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
    return Result(run, scored, scores, by, vocabulary)


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
        documents=first.by_document.numbers if first.by_document else None,
        block_length=block_length,
        level=level,
    )
    values = [score.figures(first.scored)[figure] for score in scores]
    gain = {"over": names[0], **_gain(comparison, figure)}
    found = {"a": names[0], "b": names[1], "figures": values, "gain": gain}
    carried = [_carried(result.run) for result in (first, second)]
    return found | ({"carry": carried} if carried[0] != carried[1] else {})


def _carried(run: dict[str, Any]) -> str:
    """Return what went on from one document to the next, and in how many rows if that matters."""
    carry: str = run.get("carry", "none")
    return carry if carry == "none" else f"{carry} (streams: {run['streams']})"


def _check_same_text(first: Result, second: Result) -> None:
    """Raise an error that names what keeps two results from being compared."""
    same = "compare results of the same text, read in the same way"
    tokens = [result.scored.tokens for result in (first, second)]
    read = [result.run | {"carry": _carried(result.run)} for result in (first, second)]
    for name in ("split", "checksum", "first_token", "documents", "carry"):
        values = [run.get(name) for run in read]
        # what is carried may differ, where the same tokens are scored all the same
        if values[0] != values[1] and (name != "carry" or len(tokens[0]) != len(tokens[1])):
            raise ValueError(
                f"the results differ in their {name}: {values[0]}, {values[1]}; {same}"
            )
    if len(tokens[0]) != len(tokens[1]):
        raise ValueError(
            f"the results differ in their tokens: {len(tokens[0]):,}, {len(tokens[1]):,}; {same}"
        )
    by = first.by_document, second.by_document
    if by[0] and by[1] and not np.array_equal(by[0].numbers, by[1].numbers):
        raise ValueError(f"the results differ in where their documents begin; {same}")
    # the ids of symbols may differ, but not what is one symbol, as all are that are <unk>
    pairs = tokens[0].astype(np.int64) << 32 | tokens[1]
    if len({len(np.unique(each)) for each in (*tokens, pairs)}) > 1:
        raise ValueError(
            "the results differ in their vocabularies: symbols that one tells apart are one for "
            f"the other; {same}"
        )
