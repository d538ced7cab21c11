"""mLSTM layers: an LSTM's, with m_t = (W_mx x_t) ⊙ (W_mh h_{t-1}) in the place of h_{t-1}."""

from __future__ import annotations

from typing import Any

from dyneval.kernels.compiling import call, jit, kernel
from dyneval.kernels.lstm import (
    back_through_gates,
    learn_gates,
    project_gates,
    project_inputs,
    run_cell,
    run_cell_back,
    start_back,
)
from dyneval.kernels.network import collect, copy, move_back, partial, pull_back
from dyneval.kernels.plans import Record, at, layers, only, padded, segment
from dyneval.kernels.threads import enter, meet, share
from dyneval.kernels.vectors import columnwise

_multiply = columnwise(lambda a, b: a * b)
_both = columnwise(lambda error, factor, product: (error * product, error * factor))


@jit
def _multiply_state(
    plan: Record, layer: Record, i: int, first: int, last: int, backwards: int
) -> None:
    """Write W_mh h before token i and m of units [first, last)."""
    units, width = layer.units, padded(plan, layer.units)
    factor, m = at(plan, layer.factor, i, width), at(plan, layer.m, i, width)
    product = at(plan, layer.product, i, width)
    copy(plan.one, first, last, (plan.one * 0,), (product,))
    call(
        plan.project,
        (layer.weight_mh.theta, units, first, last, layer.hidden, width, i, 1)
        + (layer.product, width, backwards),
    )
    _multiply(plan.one, first, last, (factor, product), (m,))


@jit
def _read_layer(plan: Record, layer: Record, thread: int) -> None:
    start, count = plan.start, plan.count
    width, inputs = padded(plan, layer.units), padded(plan, layer.inputs)
    first, last = share(layer.units, thread, plan.threads)
    project_inputs(plan, layer, first, last)
    for i in range(start, start + count):
        copy(plan.one, first, last, (plan.one * 0,), (at(plan, layer.factor, i, width),))
    call(
        plan.project,
        (layer.weight_mx.theta, layer.inputs, first, last, layer.x, inputs, start, count)
        + (layer.factor, width, 0),
    )
    for i in range(start, start + count):
        _multiply_state(plan, layer, i, first, last, i % 2)
        meet(plan)
        project_gates(plan, layer, layer.m, i, first, last, i % 2)
        run_cell(plan, layer, i, first, last)
        meet(plan)


@jit
def _learn_layer(plan: Record, layer: Record, thread: int, side: int) -> int:
    units, width, count = layer.units, padded(plan, layer.units), plan.count
    first, last = share(units, thread, plan.threads)
    start_back(plan, layer, first, last)
    for i in range(count - 1, -1, -1):
        backwards = 1 - i % 2
        run_cell_back(plan, layer, i, first, last)
        error = partial(plan, side, thread, 1, units)
        back_through_gates(plan, layer, i, first, last, backwards, error)
        meet(plan)
        by_product = at(plan, layer.product_error, i, width)
        collect(plan, side, thread, 1, units, by_product, width)
        side = 1 - side
        factor, product = at(plan, layer.factor, i, width), at(plan, layer.product, i, width)
        by_factor = at(plan, layer.factor_error, i, width)
        reads, writes = (by_product, factor, product), (by_factor, by_product)
        _both(plan.one, first, last, reads, writes)
        if i:
            error = partial(plan, side, thread, 1, units)
            call(
                plan.back,
                (layer.weight_mh.theta, units, first, last, by_product, width, 0, 1)
                + (error, width, backwards),
            )
            meet(plan)
            collect(plan, side, thread, 1, units, layer.later, width)
            side = 1 - side
    error = partial(plan, side, thread, count, layer.inputs)
    learn_gates(plan, layer, layer.m, first, last, error)
    pull_back(plan, layer.weight_mx, first, last, layer.factor_error, layer.x, error)
    move_back(plan, layer.weight_mh, first, last, layer.product_error, layer.hidden)
    meet(plan)
    inputs = padded(plan, layer.inputs)
    collect(plan, side, thread, count, layer.inputs, layer.x_error, inputs)
    return 1 - side


@kernel(segment)
def read_mlstm(pointer: Any) -> None:
    """Read tokens [start, start + count) of a segment."""
    plan = only(pointer)
    thread = enter(plan)
    if thread == 0:
        call(plan.embed, (plan,))
    meet(plan)
    stack = layers(plan)
    for k in range(plan.depth):
        _read_layer(plan, stack[k], thread)
    if plan.scored:
        call(plan.score, (plan, thread))


@kernel(segment)
def learn_mlstm(pointer: Any) -> None:
    """Take one step on the mean nats of tokens [0, count) of a segment."""
    plan = only(pointer)
    thread, side = enter(plan), 1
    call(plan.learn_output, (plan, thread))
    stack = layers(plan)
    for k in range(plan.depth - 1, -1, -1):
        side = _learn_layer(plan, stack[k], thread, side)
    meet(plan)
    if thread == 0:
        call(plan.learn_embedding, (plan,))
