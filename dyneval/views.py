"""Views: what a result shows beyond its totals, as plain numbers for figures, tables and pages.

Every number comes from the nats of tokens, in bits here. A gain is what the second of two
predictors needs less than the first for the same token.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dyneval import significance
from dyneval.results import UNITS_OF, Result
from dyneval.spelling import Cells

Array = NDArray[Any]
Shown = Result | Mapping[str, Any]  # a mapping: what `timescales` or `experiment --save` wrote
BUCKETS = 40
SMALLEST = 50  # tokens of a bucket
MARKED = r"&\w+;|\w+|[^\w\s]|\s"  # an entity of XML, a word, a mark, a space
# what counts as one piece of a text when words and patterns are told apart
PIECES = {"words": r"\S+|\s", "characters": MARKED, "bytes": MARKED, "tokens": MARKED}
LONGEST = 12  # pieces of a pattern
OFTEN = 3  # times that a pattern occurs at least
CANDIDATES = 200  # patterns of each length that are looked at
FACTOR = np.uint64(0x9E3779B97F4A7C15)  # of the hash of a pattern: odd, its bits well mixed


def pair(result: Result) -> tuple[str, str] | None:
    """Return the two predictors that a report is about: the first, and `dynamic` or the last."""
    names = [name for name, score in result.scores.items() if len(score.nats)]
    if len(names) < 2 or names[0] != next(iter(result.scores)):
        return None
    return names[0], "dynamic" if "dynamic" in names[1:] else names[-1]


def gains(result: Result, first: str, second: str) -> Array:
    """Return the bits that each token both scored gained."""
    before, after = (result.scores[name].nats for name in (first, second))
    count = min(len(before), len(after))
    difference: Array = (before[:count] - after[:count]) / math.log(2)
    return difference


def cumulative(result: Result, points: int = 500) -> dict[str, dict[str, list[float]]]:
    """Return each predictor's bits so far, in all and per unit of its vocabulary, at some tokens.

    The unit is a character or a byte; for words it is the token. The tokens are the same for all,
    as far as each one came.
    """
    kind = result.run["vocabulary"]["kind"]
    sizes = np.ones(len(result.scored.tokens))
    if unit := UNITS_OF[kind]:
        sizes = getattr(result.scored, unit).astype(float)
    most = max((len(score.nats) for score in result.scores.values()), default=0)
    places = np.unique(np.linspace(0, most - 1, min(points, most)).astype(int))
    found = {}
    for name, score in result.scores.items():
        count = len(score.nats)
        chosen = places[places < count]
        bits = np.cumsum(score.nats)[chosen] / math.log(2)
        units = np.maximum(1, np.cumsum(sizes[:count])[chosen])
        found[name] = {
            "tokens": (chosen + 1).tolist(),
            "bits": bits.tolist(),
            "mean": (bits / units).tolist(),
        }
    return found


def by_position(result: Result, first: str, second: str) -> list[dict[str, Any]]:
    """Return the mean gain of stretches of the text, each with its interval of 95%."""
    before, after = (result.scores[name].nats for name in (first, second))
    count = min(len(before), len(after))
    buckets = max(1, min(BUCKETS, count // SMALLEST))
    edges = np.linspace(0, count, buckets + 1).astype(int).tolist()
    rows = []
    for start, end in zip(edges[:-1], edges[1:], strict=True):
        row: dict[str, Any] = {"from": start + 1, "to": end, "low": None, "high": None}
        if end - start > 1:
            found = significance.compare(before[start:end], after[start:end]).nats
            bits = (value / math.log(2) for value in found)
            row |= dict(zip(("gain", "low", "high"), bits, strict=True))
        elif end > start:
            row["gain"] = float(before[start] - after[start]) / math.log(2)
        else:
            continue
        rows.append(row)
    return rows


def by_document(result: Result, first: str, second: str) -> list[dict[str, Any]]:
    """Return each document's number, label and tokens, mean bits by predictor, and gain.

    What is not known, since nothing of it was scored, is None.
    """
    relative, _ = result.gains_of_documents(second)
    rows = []
    for row, gain in zip(result.documents(), relative.tolist(), strict=True):
        found = {key: row[key] for key in ("document", "label", "tokens")}
        for name in (first, second):
            nats = row[f"nats.{name}"]
            known = nats is not None and row["tokens"]
            found[name] = nats / math.log(2) / row["tokens"] if known else None
        rows.append(found | {"gain": gain if math.isfinite(gain) else None})
    return rows


@dataclass(frozen=True)
class Recurring:
    """A word or pattern, and the bits it gained where it stood: in all, at first, and later."""

    text: str
    count: int
    gain: float
    first: float
    later: float | None  # the mean of all but the first

    @classmethod
    def of(cls, text: str, bits: Array) -> Recurring:
        """Sum up the gains of occurrences in their order."""
        later = float(bits[1:].mean()) if len(bits) > 1 else None
        return cls(text, len(bits), math.fsum(bits.tolist()), float(bits[0]), later)


class Pieces:
    """A text cut into words, marks and spaces, with the bits that each of them gained."""

    def __init__(self, cells: Cells, bits: Array, kind: str) -> None:
        text = cells.text
        spans = [match.span() for match in re.finditer(PIECES[kind], text)]
        running = np.zeros(len(text) + 1)
        if len(text):
            own = np.zeros(len(text))
            reached = cells.places < len(text)  # a cell without text may stand at the end
            np.add.at(own, cells.places[reached], cells.sums(bits)[reached])
            running[1:] = np.cumsum(own)
        bounds = np.array(spans, np.int64).reshape(-1, 2)
        self.bits = running[bounds[:, 1]] - running[bounds[:, 0]]
        self.texts = [text[start:end] for start, end in spans]
        symbols = {piece: k for k, piece in enumerate(dict.fromkeys(self.texts))}
        self.ids = np.array([symbols[piece] for piece in self.texts], np.int64)

    def words(self) -> list[Recurring]:
        """Return every word, those that gained most first."""
        order = np.argsort(self.ids, kind="stable")
        cuts = np.flatnonzero(np.diff(self.ids[order])) + 1
        found = [
            Recurring.of(self.texts[places[0]], self.bits[places])
            for places in np.split(order, cuts)
            if len(places) and _is_word(self.texts[places[0]])
        ]
        return sorted(found, key=lambda word: -word.gain)

    def patterns(self, most: int = 20) -> list[Recurring]:
        """Return sequences of pieces that recur, those that gained most first.

        They hold two words, or else four pieces. None counts what another
        has counted, so that their gains add up.
        """
        free = np.ones(len(self.ids), bool)
        found: list[Recurring] = []
        for _, length, places in self._candidates():
            kept, behind = [], 0
            for place in places.tolist():
                if place >= behind and free[place : place + length].all():
                    kept.append(place)
                    behind = place + length
            bits = np.array([self.bits[place : place + length].sum() for place in kept])
            if len(kept) < OFTEN or bits.sum() <= 0:
                continue
            for place in kept:
                free[place : place + length] = False
            text = "".join(self.texts[kept[0] : kept[0] + length])
            found.append(Recurring.of(text, bits))
            if len(found) == most:
                break
        return sorted(found, key=lambda pattern: -pattern.gain)

    def _candidates(self) -> Sequence[tuple[float, int, Array]]:
        """Return the gain, the length and the places of what occurs often, most gain first."""
        spaces = np.array([piece.isspace() for piece in self.texts], bool)
        words = [_is_word(piece) for piece in self.texts]
        running = np.concatenate([[0.0], np.cumsum(self.bits)])
        running_words = np.concatenate([[0], np.cumsum(words)])
        hashes = self.ids.astype(np.uint64)
        found = []
        for length in range(2, min(LONGEST, len(self.ids)) + 1):
            last = self.ids[length - 1 :].astype(np.uint64)
            hashes = (hashes[: len(last)] + np.uint64(1)) * FACTOR + last
            hashes ^= hashes >> np.uint64(29)
            enough = (running_words[length:] - running_words[:-length] > 1) | (length > 3)
            places = np.flatnonzero(~spaces[: len(last)] & ~spaces[length - 1 :] & enough)
            _, inverse, counts = np.unique(hashes[places], return_inverse=True, return_counts=True)
            gain = np.bincount(inverse, running[places + length] - running[places], len(counts))
            often = np.flatnonzero((counts >= OFTEN) & (gain > 0))
            for number in often[np.argsort(-gain[often], kind="stable")[:CANDIDATES]].tolist():
                found.append((float(gain[number]), length, places[inverse == number]))
        return sorted(found, key=lambda each: -each[0])


def _is_word(piece: str) -> bool:
    return any(map(str.isalnum, piece)) and not piece.startswith("&")
