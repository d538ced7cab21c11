"""LSTM layers: each thread owns some units, and with them four blocks of rows, one a gate."""

from __future__ import annotations

from typing import Any

from dyneval.kernels.compiling import call, jit, kernel
from dyneval.kernels.network import add, collect, copy, move_back, move_bias, partial, pull_back
from dyneval.kernels.plans import Record, at, layers, only, padded, segment
from dyneval.kernels.threads import enter, meet, share
from dyneval.kernels.vectors import Vector, columnwise, sigmoid, tanh


def _cell(
    i: Vector, f: Vector, g: Vector, o: Vector, before: Vector
) -> tuple[Vector, Vector, Vector, Vector, Vector, Vector]:
    """Return the gates after their functions, the cell and the hidden state."""
    i, f, g, o = sigmoid(i), sigmoid(f), tanh(g), sigmoid(o)
    cell = f * before + i * g
    return i, f, g, o, cell, o * tanh(cell)


def _cell_back(
    i: Vector,
    f: Vector,
    g: Vector,
    o: Vector,
    before: Vector,
    cell: Vector,
    error: Vector,
    later: Vector,
    carried: Vector,
) -> tuple[Vector, Vector, Vector, Vector, Vector]:
    """Return the gradients of the four gates, and of the cell before."""
    squashed = tanh(cell)
    h = error + later
    c = carried + h * o * (1 - squashed * squashed)
    return (
        c * g * i * (1 - i),
        c * before * f * (1 - f),
        c * i * (1 - g * g),
        h * squashed * o * (1 - o),
        c * f,
    )


_run_cell = columnwise(_cell)
_run_cell_back = columnwise(_cell_back)


@jit
def project_inputs(plan: Record, layer: Record, first: int, last: int) -> None:
    """Write biases and W_ih x of all tokens to the gates of units [first, last)."""
    units, start, count, zero = layer.units, plan.start, plan.count, plan.one * 0
    width, gates = padded(plan, layer.inputs), padded(plan, 4 * units)
    for gate in range(4):
        begin, end = gate * units + first, gate * units + last
        for i in range(start, start + count):
            row, bias = at(plan, layer.gates, i, gates), layer.bias_ih.theta
            if layer.bias_hh.theta:
                add(plan.one, begin, end, (bias, layer.bias_hh.theta), (row,))
            else:
                add(plan.one, begin, end, (bias, zero), (row,))
        call(
            plan.project,
            (layer.weight_ih.theta, layer.inputs, begin, end, layer.x, width, start, count)
            + (layer.gates, gates, 0),
        )


@jit
def project_gates(
    plan: Record, layer: Record, x: int, i: int, first: int, last: int, backwards: int
) -> None:
    """Add W_hh x_i to the gates of token i of units [first, last)."""
    units = layer.units
    width, gates = padded(plan, units), padded(plan, 4 * units)
    for k in range(4):
        begin = units * (3 - k if backwards else k) + first
        call(
            plan.project,
            (layer.weight_hh.theta, units, begin, begin + last - first, x, width, i, 1)
            + (layer.gates, gates, backwards),
        )


@jit
def run_cell(plan: Record, layer: Record, i: int, first: int, last: int) -> None:
    """Write the cell and hidden state after token i of units [first, last)."""
    units, width = layer.units, padded(plan, layer.units)
    z = at(plan, layer.gates, i, padded(plan, 4 * units))
    gates = (z, at(plan, z, 1, units), at(plan, z, 2, units), at(plan, z, 3, units))
    before, after = at(plan, layer.cells, i, width), at(plan, layer.cells, i + 1, width)
    hidden = at(plan, layer.hidden, i + 1, width)
    _run_cell(plan.one, first, last, gates + (before,), gates + (after, hidden))


@jit
def run_cell_back(plan: Record, layer: Record, i: int, first: int, last: int) -> None:
    """Turn the gates of token i of units [first, last) into their gradients."""
    units, width = layer.units, padded(plan, layer.units)
    z = at(plan, layer.gates, i, padded(plan, 4 * units))
    gates = (z, at(plan, z, 1, units), at(plan, z, 2, units), at(plan, z, 3, units))
    before, after = at(plan, layer.cells, i, width), at(plan, layer.cells, i + 1, width)
    error = at(plan, layer.error, i, width)
    _run_cell_back(
        plan.one,
        first,
        last,
        gates + (before, after, error, layer.later, layer.carried),
        gates + (layer.carried,),
    )


@jit
def back_through_gates(
    plan: Record, layer: Record, i: int, first: int, last: int, backwards: int, error: int
) -> None:
    """Add this thread's part of W_hhᵀ times the gates' gradients of token i."""
    units, width, gates = layer.units, padded(plan, layer.units), padded(plan, 4 * layer.units)
    z = at(plan, layer.gates, i, gates)
    for k in range(4):
        begin = units * (3 - k if backwards else k) + first
        call(
            plan.back,
            (layer.weight_hh.theta, units, begin, begin + last - first, z, gates, 0, 1)
            + (error, width, backwards),
        )


@jit
def learn_gates(
    plan: Record, layer: Record, recurrent: int, first: int, last: int, error: int
) -> None:
    """Update the gates' rows of units [first, last); add their part of the inputs' error.

    First what the way back through time has left in the cache.
    """
    for gate in range(3, -1, -1):
        begin, end = gate * layer.units + first, gate * layer.units + last
        move_back(plan, layer.weight_hh, begin, end, layer.gates, recurrent)
    for gate in range(4):
        begin, end = gate * layer.units + first, gate * layer.units + last
        pull_back(plan, layer.weight_ih, begin, end, layer.gates, layer.x, error)
        move_bias(plan, layer.bias_ih, begin, end, layer.gates)
        if layer.bias_hh.theta:
            move_bias(plan, layer.bias_hh, begin, end, layer.gates)


@jit
def start_back(plan: Record, layer: Record, first: int, last: int) -> None:
    """Begin behind the segment's last token: nothing comes from later."""
    copy(plan.one, first, last, (plan.one * 0,), (layer.later,))
    copy(plan.one, first, last, (plan.one * 0,), (layer.carried,))


@jit
def _read_layer(plan: Record, layer: Record, thread: int) -> None:
    first, last = share(layer.units, thread, plan.threads)
    project_inputs(plan, layer, first, last)
    for i in range(plan.start, plan.start + plan.count):
        project_gates(plan, layer, layer.hidden, i, first, last, i % 2)
        run_cell(plan, layer, i, first, last)
        meet(plan)


@jit
def _learn_layer(plan: Record, layer: Record, thread: int, side: int) -> int:
    units, width, count = layer.units, padded(plan, layer.units), plan.count
    first, last = share(units, thread, plan.threads)
    start_back(plan, layer, first, last)
    for i in range(count - 1, -1, -1):
        run_cell_back(plan, layer, i, first, last)
        if i:
            error = partial(plan, side, thread, 1, units)
            back_through_gates(plan, layer, i, first, last, 1 - i % 2, error)
            meet(plan)
            collect(plan, side, thread, 1, units, layer.later, width)
            side = 1 - side
    error = partial(plan, side, thread, count, layer.inputs)
    learn_gates(plan, layer, layer.hidden, first, last, error)
    meet(plan)
    inputs = padded(plan, layer.inputs)
    collect(plan, side, thread, count, layer.inputs, layer.x_error, inputs)
    return 1 - side


@kernel(segment)
def read_lstm(pointer: Any) -> None:
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
def learn_lstm(pointer: Any) -> None:
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
