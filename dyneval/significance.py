"""Significance: whether one predictor beats another by more than the luck of one text.

Both score the same tokens, so what counts is the difference of their nats, token by token. How
much its mean would vary from text to text is found by resampling. Differences that stand near
each other are alike, so whole stretches are drawn instead of tokens: documents where there are
many, and else blocks (the circular block bootstrap of Politis and Romano, 1992).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
MANY = 20  # documents from which on whole documents are resampled
MOST = 2000  # blocks, or groups of documents, that make up a resample where we choose
CHUNK = 2**18  # draws held in memory at a time


class Estimate(NamedTuple):
    """A value and the ends of its interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Comparison:
    """What the second of two predictors gains over the first: positive where it is better.

    A relative gain is None where it is no number, as that of a perplexity beyond all numbers.
    """

    nats: Estimate  # fewer per token
    standard_error: float  # of that
    p_value: float  # two-sided, of no difference
    bits: Estimate | None  # by what part the total is lower, and so bits per anything
    perplexity: Estimate | None  # by what part that is lower
    tokens: int
    documents: int
    block_length: int | None  # None where documents were resampled whole
    level: float  # of the intervals

    @property
    def significant(self) -> bool:
        """Whether the interval leaves out that there is no difference."""
        return self.nats.low > 0 or self.nats.high < 0


def compare(
    first: Array,
    second: Array,
    *,
    sizes: Array | None = None,
    documents: Array | None = None,
    block_length: int | None = None,
    level: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> Comparison:
    """Compare the (N,) nats of two predictors of the same tokens.

    `sizes` are what each token counts for in the perplexity (its words or bytes; default: one).
    Bits per byte need none: the bytes are the same for both, so the gain is that of the total.
    Both sides of a ratio are resampled together.

    `documents` holds the number of each token's document; a new one begins where it changes. No
    block reaches from one into another. A document as a whole may gain more than others, which
    blocks within documents do not show: from 20 documents on whole ones are resampled, unless a
    block length is given. Fewer tell too little of others of their kind; the interval is then
    about these very documents, and the chance within them.

    Without a `block_length`, `choose_block_length` finds one. Intervals are widened as for the
    mean of few numbers, since a few long blocks do not show well how much they vary.
    """
    if not 0 < level < 1 or resamples * (1 - level) < 2:
        raise ValueError(
            f"{resamples} resamples show no interval of level {level}; give some 1,000 and 0.95"
        )
    first, second, sizes = _checked(first, second, sizes)
    draws = _draws(first - second, documents, block_length)
    columns = [first - second, first] + ([] if sizes is None else [sizes])
    random = np.random.default_rng(seed)
    sums = draws.sums(np.stack(columns), random, resamples)
    # the spread of a few numbers is too small and not exactly known: Student's distribution
    widening = np.sqrt(draws.units / random.chisquare(draws.freedom, resamples))
    total = np.array([len(first), *map(np.sum, columns)])
    below = [0, 2, 0 if sizes is None else 3]  # per token, per nat of the first, per unit
    with np.errstate(all="ignore"):  # what is no number becomes None
        means = total[1] / total[below]
        deviations = sums[1] / sums[below] - means[:, None]
        drawn = means[:, None] + deviations * widening
        tails = [(1 - level) / 2, (1 + level) / 2]
        rows = np.stack([means, *np.quantile(drawn, tails, axis=1, method="weibull")], 1)
        rows[2] = -np.expm1(-rows[2])
    known = (total[below] > 0) & (sums[below] > 0).all(1) & np.isfinite(rows).all(1)
    nats, bits, perplexity = (Estimate(*row) for row in rows.tolist())
    other = min(int((drawn[0] <= 0).sum()), int((drawn[0] >= 0).sum()))
    return Comparison(
        nats=nats,
        standard_error=float(deviations[0].std() * math.sqrt(draws.units / draws.freedom)),
        p_value=min(1.0, 2 * (1 + other) / (1 + resamples)),
        bits=bits if known[1] else None,
        perplexity=perplexity if known[2] else None,
        tokens=len(first),
        documents=draws.documents,
        block_length=draws.length,
        level=level,
    )


def choose_block_length(difference: Array, documents: Array | None = None) -> int:
    """Return the length of blocks that shows best how much the mean of a series varies.

    b = (2 G² / D)^⅓ N^⅓ of Politis and White (2004), D = 4/3 g(0)² as corrected by Patton,
    Politis and White (2009); g and G sum autocovariances, and those times their lag, under a
    window that is flat as far as they are told from chance. A long series would be cut into
    hundred thousands of blocks; 2,000 longer ones show its variation as well, and what depends on
    the more distant past too.
    """
    count, bounds = len(difference), _bounds(len(difference), documents)
    longest = max(1, min(3 * math.isqrt(count), count // (3 * (len(bounds) - 1))))
    shortest = -(-count // MOST)
    run = max(5, math.ceil(math.sqrt(math.log10(count))))
    widest = math.isqrt(count - 1) + 1 + run
    covariances = _autocovariances(difference, bounds, widest + run)
    if covariances[0] <= 0:
        return min(shortest, longest)
    bound = 2 * math.sqrt(math.log10(count) / count)
    significant = np.abs(covariances[1:]) >= bound * covariances[0]
    seen = np.concatenate([[0], np.cumsum(significant)])
    # the first lag that no significant one follows soon, or else the last significant one
    quiet = np.flatnonzero(seen[run:] == seen[:-run])
    last = int(quiet[0] if len(quiet) else significant.nonzero()[0][-1] + 1)
    width = min(2 * max(1, last), widest)
    lags = np.arange(-width, width + 1)
    weighted = np.minimum(1, 2 * (1 - np.abs(lags) / width)) * covariances[np.abs(lags)]
    spectrum, slope = weighted.sum(), (np.abs(lags) * weighted).sum()
    if spectrum <= 0:
        return longest
    best: float = (1.5 * (slope / spectrum) ** 2 * count) ** (1 / 3)
    return min(max(math.ceil(best), shortest), longest)


def _autocovariances(series: Array, bounds: Array, lags: int) -> Array:
    """Return the autocovariances at lags 0, 1, … of documents, each about its own mean."""
    total = np.zeros(lags + 1)
    for start, end in zip(bounds[:-1], bounds[1:], strict=True):
        part = series[start:end] - series[start:end].mean()
        reach = min(lags, len(part) - 1)
        size = 1 << (len(part) + reach).bit_length()  # with zeros, so that ends do not meet
        power = np.abs(np.fft.rfft(part, size)) ** 2
        total[: reach + 1] += np.fft.irfft(power, size)[: reach + 1]
    return total / len(series)


@dataclass(frozen=True)
class _Draws:
    """How a resample is drawn: stretches of a series, each by a chance from 0 to 1."""

    order: Array  # of tokens in the series: blocks may go round from a document's end to its start
    span: Callable[[Array], tuple[Array, Array]]  # (R, K) chances -> where stretches begin, end
    stretches: int  # in a resample
    units: int  # those of them that count as whole
    freedom: int  # units less the means they vary about
    documents: int
    length: int | None  # of a block

    def sums(self, columns: Array, random: np.random.Generator, resamples: int) -> Array:
        """(K, N) columns -> (1 + K, R): how many tokens each resample has, and its sums."""
        running = np.zeros((len(columns), len(self.order) + 1))
        np.cumsum(columns[:, self.order], 1, out=running[:, 1:])
        sums = np.empty((1 + len(columns), resamples))
        rows = max(1, CHUNK // self.stretches)
        for done in range(0, resamples, rows):
            part = slice(done, min(done + rows, resamples))
            begin, end = self.span(random.random((part.stop - done, self.stretches)))
            sums[0, part] = (end - begin).sum(1)
            for column, total in zip(running, sums[1:], strict=True):
                total[part] = (column[end] - column[begin]).sum(1)
        return sums


def _draws(difference: Array, documents: Array | None, block_length: int | None) -> _Draws:
    bounds = _bounds(len(difference), documents)
    if block_length is None and len(bounds) > MANY:
        return _whole_documents(bounds)
    if block_length is None:
        block_length = choose_block_length(difference, documents)
    return _blocks(bounds, block_length)


def _blocks(bounds: Array, length: int) -> _Draws:
    """Draw each document anew, from blocks of it that may go round from its end to its start."""
    count, documents = int(bounds[-1]), len(bounds) - 1
    order, origins, choices, sizes = [], [], [], []
    begin = units = 0
    for start, end in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        tokens = np.arange(start, end)
        whole, rest = divmod(end - start, max(1, length))
        blocks = [length] * whole + [rest] * (rest > 0)
        order += [tokens, tokens[: length - 1]]
        origins += [begin] * len(blocks)
        choices += [end - start] * len(blocks)
        sizes += blocks
        begin += end - start + len(order[-1])
        units += max(1, whole)
    freedom = units - documents
    if length < 1 or freedom < 1:
        raise ValueError(
            f"blocks of {length} cannot be drawn from {count} tokens (documents: {documents}); "
            "give a block length of 1 or more that fits into a document twice"
        )
    origin, choice, size = np.array(origins), np.array(choices), np.array(sizes)

    def span(chances: Array) -> tuple[Array, Array]:
        begin = origin + (chances * choice).astype(np.intp)
        return begin, begin + size

    return _Draws(np.concatenate(order), span, len(sizes), units, freedom, documents, length)


def _whole_documents(bounds: Array) -> _Draws:
    """Draw as many documents as there are, or groups of them where they are very many."""
    documents = len(bounds) - 1
    units = min(documents, MOST)
    bounds = bounds[np.arange(units + 1) * documents // units]

    def span(chances: Array) -> tuple[Array, Array]:
        chosen = (chances * units).astype(np.intp)
        return bounds[chosen], bounds[chosen + 1]

    return _Draws(np.arange(bounds[-1]), span, units, units, units - 1, documents, None)


def _bounds(count: int, documents: Array | None) -> Array:
    """Return where each document begins, and where the last one ends."""
    if documents is None:
        return np.array([0, count])
    if len(documents) != count:
        raise ValueError(
            f"the numbers of the documents are {len(documents)}, and the tokens {count}; give one "
            "for each token"
        )
    changes = np.flatnonzero(np.diff(documents)) + 1
    return np.concatenate([[0], changes, [count]])


def _checked(first: Array, second: Array, sizes: Array | None) -> tuple[Array, Array, Array | None]:
    """Return two predictors' nats, and the sizes of tokens, as numbers that can be compared."""
    if len(first) != len(second):
        raise ValueError(
            f"the first predictor scored {len(first)} tokens and the second {len(second)}; "
            "compare what both scored"
        )
    if len(first) < 2:
        raise ValueError(f"{len(first)} tokens show no interval; compare 2 or more")
    if sizes is not None and len(sizes) != len(first):
        raise ValueError(f"{len(sizes)} sizes are given for {len(first)} tokens; give one for each")
    found = []
    for name, values in (("first", first), ("second", second), ("sizes", sizes)):
        found.append(None if values is None else np.asarray(values, float))
        if values is not None and not np.isfinite(values).all():
            place = int(np.isfinite(values).argmin())
            raise ValueError(
                f"{name} holds {values[place]} at token {place + 1}; give a number for every token"
            )
    return found[0], found[1], found[2]  # type: ignore[return-value]
