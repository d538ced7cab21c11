"""Linear maps of any model: the products of a segment that autograd runs, and its updates."""

from __future__ import annotations

from typing import Any

from dyneval.kernels.compiling import call, kernel
from dyneval.kernels.network import collect, partial
from dyneval.kernels.plans import at, integers, jobs, only, padded, product, step
from dyneval.kernels.threads import enter, meet, share


@kernel(product)
def project_all(pointer: Any) -> None:
    """Y += X Wᵀ, in all threads."""
    plan = only(pointer)
    columns, rows = plan.columns, plan.rows
    first, last = share(rows, enter(plan), plan.threads)
    call(
        plan.project,
        (plan.theta, columns, first, last, plan.x, columns, 0, plan.count)
        + (plan.y, rows, plan.backwards),
    )


@kernel(product)
def back_all(pointer: Any) -> None:
    """Y = X W, in all threads."""
    plan = only(pointer)
    thread = enter(plan)
    columns, rows, count = plan.columns, plan.rows, plan.count
    first, last = share(rows, thread, plan.threads)
    part = partial(plan, 0, thread, count, columns)
    width = padded(plan, columns)
    call(
        plan.back,
        (plan.theta, columns, first, last, plan.x, rows, 0, count) + (part, width, plan.backwards),
    )
    meet(plan)
    collect(plan, 0, thread, count, columns, plan.y, columns)


@kernel(step)
def move_all(pointer: Any) -> None:
    """Do all updates of a step, each in all threads."""
    plan = only(pointer)
    thread = enter(plan)
    every = jobs(plan)
    for k in range(plan.count):
        one = every[k]
        weight = one.weight
        rows, columns, count = weight.rows, weight.columns, one.count
        if one.tokens:
            tokens = integers(one.tokens, count)
            first, last = share(rows, thread, plan.threads)
            for i in range(count):
                if first <= tokens[i] < last:
                    x = at(plan, one.x, i, one.x_width)
                    call(
                        plan.move,
                        (weight, one.reads, tokens[i], tokens[i] + 1, 0, columns)
                        + (plan.ones, 0, x, 0, 1),
                    )
        elif rows == 1:
            first, last = share(columns, thread, plan.threads)
            call(
                plan.move,
                (weight, one.reads, 0, 1, first, last)
                + (one.d, one.d_width, one.x, one.x_width, count),
            )
        else:
            first, last = share(rows, thread, plan.threads)
            call(
                plan.move,
                (weight, one.reads, first, last, 0, columns)
                + (one.d, one.d_width, one.x, one.x_width, count),
            )
        meet(plan)  # the next one may be of the same weight
