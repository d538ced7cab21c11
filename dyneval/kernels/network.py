"""Networks: the way of a segment through an embedding, recurrent layers and a softmax, and back.

The two ends are here, the layers between them in `lstm.py` and `mlstm.py`. All threads run through
all of it at once, and meet where one needs what another wrote. On the way back a matrix is
updated right after its last use, and where it fits block by block, while it is in the cache.
"""

from __future__ import annotations

from typing import Any

from dyneval.kernels.compiling import call, jit, kernel
from dyneval.kernels.plans import Record, at, integers, layers, only, padded, segment
from dyneval.kernels.products import BLOCK, TOKENS
from dyneval.kernels.rates import RMS
from dyneval.kernels.threads import enter, meet, share
from dyneval.kernels.updates import catch_up
from dyneval.kernels.vectors import columnwise, exp

copy = columnwise(lambda a: a)
add = columnwise(lambda a, b: a + b)
_subtract = columnwise(lambda a, b: a - b)
_shares = columnwise(lambda log_probs, part: exp(log_probs) * part)


@jit
def partial(plan: Record, side: int, thread: int, rows: int, columns: int) -> int:
    """Return where a thread writes its part of a sum over all threads, set to zero.

    The sides alternate: what is read from one is out of use before all have met again.
    """
    place = at(plan, plan.partial, side * plan.threads + thread, plan.room)
    copy(plan.one, 0, rows * padded(plan, columns), (plan.one * 0,), (place,))
    return place


@jit
def collect(
    plan: Record, side: int, thread: int, rows: int, columns: int, total: int, width: int
) -> None:
    """Write the sums of the threads' parts: each thread in its share of the columns."""
    first, last = share(columns, thread, plan.threads)
    for i in range(rows):
        row = at(plan, total, i, width)
        for k in range(plan.threads):
            part = at(plan, plan.partial, side * plan.threads + k, plan.room)
            part = at(plan, part, i, padded(plan, columns))
            if k:
                add(plan.one, first, last, (row, part), (row,))
            else:
                copy(plan.one, first, last, (part,), (row,))


@kernel(segment)
def embed(pointer: Any) -> None:
    """Bring the rows of tokens [start, start + count) up to date, and to the first layer."""
    plan = only(pointer)
    weight, end = plan.embedding, plan.start + plan.count
    tokens = integers(plan.tokens, end)
    for i in range(plan.start, end):
        if plan.current:
            _bring_up(plan, tokens[i])
        row = at(plan, weight.theta, tokens[i], weight.columns)
        place = at(plan, plan.inputs, i, padded(plan, weight.columns))
        copy(plan.one, 0, weight.columns, (row,), (place,))


@jit
def _bring_up(plan: Record, token: int) -> None:
    """Give a row of the embedding the pulls that it missed; -1 marks one that is at θ_g."""
    current = integers(plan.current, plan.embedding.rows)
    if current[token] >= 0:
        catch_up(plan, plan.embedding, token, plan.step - current[token])
        current[token] = plan.step


@kernel(segment)
def bring_all_up(pointer: Any) -> None:
    """Bring all rows of the embedding up to date."""
    plan = only(pointer)
    for token in range(plan.embedding.rows):
        _bring_up(plan, token)


@kernel(segment)
def score_again(pointer: Any) -> None:
    """Write the logits of the hidden states in place: a kernel for all threads."""
    plan = only(pointer)
    call(plan.score, (plan, enter(plan)))


@kernel(segment, int)
def score(pointer: Any, thread: int) -> None:
    """Write the logits of tokens [start, start + count)."""
    plan = only(pointer)
    weight, start, end = plan.output, plan.start, plan.start + plan.count
    first, last = share(weight.rows, thread, plan.threads)
    top = layers(plan)[plan.depth - 1]
    width, scores = padded(plan, top.units), padded(plan, weight.rows)
    hidden = at(plan, top.hidden, 1, width)
    for i in range(start, end):
        row = at(plan, plan.scores, i, scores)
        copy(plan.one, first, last, (plan.output_bias.theta,), (row,))
    call(
        plan.project,
        (weight.theta, weight.columns, first, last, hidden, width, start, plan.count)
        + (plan.scores, scores, 0),
    )


@kernel(segment, int)
def learn_output(pointer: Any, thread: int) -> None:
    """Bring the gradient of the mean nats of tokens [0, count) to the last layer.

    The scores are log-probabilities by now.
    """
    plan = only(pointer)
    weight, count, one = plan.output, plan.count, plan.one
    first, last = share(weight.rows, thread, plan.threads)
    targets = integers(plan.targets, count)
    top = layers(plan)[plan.depth - 1]
    hidden, width = at(plan, top.hidden, 1, padded(plan, top.units)), padded(plan, weight.rows)
    for i in range(count):  # the gradient of the mean nats by the logits
        row, target = at(plan, plan.scores, i, width), targets[i]
        _shares(one, first, last, (row, one / count), (row,))
        if first <= target < last:
            _subtract(one, target, target + 1, (row, one / count), (row,))
    error = partial(plan, 0, thread, count, top.units)
    pull_back(plan, weight, first, last, plan.scores, hidden, error)
    move_bias(plan, plan.output_bias, first, last, plan.scores)
    meet(plan)
    collect(plan, 0, thread, count, top.units, top.error, padded(plan, top.units))


@jit
def pull_back(
    plan: Record, weight: Record, first: int, last: int, d: int, x: int, error: int
) -> None:
    """E += D W for rows [first, last) and update them: in one pass, or while they are in cache."""
    rows, columns, count = padded(plan, weight.rows), weight.columns, plan.count
    width = padded(plan, columns)
    if count <= TOKENS:
        call(
            plan.learn,
            (weight, weight.reads, first, last, d, rows, x, width, count, error, width),
        )
        return
    for begin in range(first, last, BLOCK):
        end = min(begin + BLOCK, last)
        call(plan.back, (weight.theta, columns, begin, end, d, rows, 0, count, error, width, 0))
        _move_rows(plan, weight, begin, end, d, x)


@jit
def move_back(plan: Record, weight: Record, first: int, last: int, d: int, x: int) -> None:
    """Update rows [first, last) of a matrix by the gradients D of its outputs, X its inputs.

    From the last row to the first: the last ones were read last, and may be in the cache still.
    """
    for k in range((last - first + BLOCK - 1) // BLOCK, 0, -1):
        begin = first + BLOCK * (k - 1)
        _move_rows(plan, weight, begin, min(begin + BLOCK, last), d, x)


@jit
def _move_rows(plan: Record, weight: Record, first: int, last: int, d: int, x: int) -> None:
    rows, columns = padded(plan, weight.rows), weight.columns
    width = padded(plan, columns)
    call(
        plan.move,
        (weight, weight.reads, first, last, 0, columns, d, rows, x, width, plan.count),
    )


@jit
def move_bias(plan: Record, weight: Record, first: int, last: int, d: int) -> None:
    """Update a bias, a single row, by the sum of the gradients D of what it is added to."""
    width, count = padded(plan, weight.columns), plan.count
    call(plan.move, (weight, weight.reads, 0, 1, first, last, plan.ones, 1, d, width, count))


@kernel(segment)
def learn_embedding(pointer: Any) -> None:
    """Move the rows that occurred; of a tied one, which was moved as the softmax, not pulled."""
    plan = only(pointer)
    weight = plan.embedding
    columns = weight.columns
    tokens = integers(plan.tokens, plan.count)
    for i in range(plan.count):
        token, reads = tokens[i], weight.reads
        if plan.tied:
            reads &= RMS
        else:
            current = integers(plan.current, weight.rows)
            if current[token] > plan.step:  # it occurred before: pulled already
                reads &= RMS
            current[token] = plan.step + 1
        row = at(plan, plan.input_error, i, padded(plan, columns))
        # D is 1 for this row
        call(
            plan.move, (weight, reads, token, token + 1, 0, columns, plan.ones, 0, row, columns, 1)
        )
