"""Updates on a GPU, in Triton: how a matrix moves, while its gradient passes by.

θ ← θ − gain ⊙ DᵀX + pull ⊙ (θ_g − θ), with gain and pull as in `updates.py`, which is the same for
the CPU. A program moves one tile; neither the gradient nor gain and pull are ever stored, and what
a rule does not need is not read. Sums are over the tokens in order: the same bits every time.
"""

from __future__ import annotations

import torch
import triton
from torch import Tensor
from triton import language as tl

from dyneval.gradient_stats import Prior
from dyneval.kernels.rates import PRIOR, RMS, Rates

_TALL, _WIDE = 16, 128  # rows and columns of a tile


@triton.jit(do_not_specialize=["count"])  # type: ignore[untyped-decorator]
def _move(
    theta: tl.tensor,
    prior: tl.tensor,
    rms: tl.tensor,
    rates: tl.tensor,
    d: tl.tensor,
    x: tl.tensor,
    count: tl.tensor,
    rows: tl.tensor,
    columns: tl.tensor,
    has_prior: tl.constexpr,
    has_rms: tl.constexpr,
    looks_up: tl.constexpr,
    tall: tl.constexpr,
    wide: tl.constexpr,
) -> None:
    """Move the rows, the gradient being DᵀX of `count` tokens.

    Of a look-up D is the tokens, one-hot, and the rows that move are theirs.
    """
    number = tl.program_id(0) * tall + tl.arange(0, tall)
    column = tl.program_id(1) * wide + tl.arange(0, wide)
    has_row, has_column = number < rows, column < columns
    row = number
    if looks_up:
        row = tl.load(d + number, mask=has_row, other=-1)
    gradient = tl.zeros((tall, wide), theta.dtype.element_ty)
    for token in range(count):
        given = tl.load(x + token * columns + column, mask=has_column, other=0.0)
        if looks_up:
            same = tl.load(d + token) == row
            # a row that is looked up again has moved with the first look-up
            has_row = has_row & ((token >= number) | (same == 0))
            factor = same.to(theta.dtype.element_ty)
        else:
            factor = tl.load(d + token * rows + number, mask=has_row, other=0.0)
        gradient += factor[:, None] * given[None, :]
    place = row.to(tl.int64)[:, None] * columns + column[None, :]
    inside = has_row[:, None] & has_column[None, :]
    before = tl.load(theta + place, mask=inside, other=0.0)
    gain = tl.load(rates)
    pull = tl.load(rates + 3)
    if has_rms:
        scale = tl.load(rms + place, mask=inside, other=1.0)
        gain += tl.load(rates + 1) / (scale + tl.load(rates + 2))
        pull += tl.minimum(tl.load(rates + 4) * scale, 1.0)
    after = before - gain * gradient
    if has_prior:
        after += pull * (tl.load(prior + place, mask=inside, other=0.0) - before)
    tl.store(theta + place, after, mask=inside)


class Update:
    """One matrix θ, and what a rule needs to move it."""

    def __init__(self, theta: Tensor, prior: Prior, rates: Rates) -> None:
        self._theta, self._reads = theta, rates.reads
        self._prior = prior.theta if rates.reads & PRIOR else theta
        self._rms = prior.scale if rates.reads & RMS else theta
        # in memory: as numbers they would be passed on in float32
        scalars = (rates.plain, rates.scaled, rates.epsilon, rates.decay)
        self._rates = torch.tensor(
            [*scalars, rates.rate / prior.mean_rms], dtype=theta.dtype, device=theta.device
        )

    def map(self, x: Tensor, d: Tensor, pulled: bool = False) -> None:
        """Move by inputs X (n, C) and gradients D (n, R), and back, unless that was done."""
        self._launch(d.contiguous(), x.contiguous(), len(x), len(self._theta), pulled)

    def look_up(self, tokens: Tensor, d: Tensor, pulled: bool = False) -> None:
        """Move by the gradients D (n, C) of rows that (n,) tokens looked up, and all rows back."""
        if self._reads & PRIOR and not pulled:
            self._launch(self._theta, self._theta, 0, len(self._theta), False)
        self._launch(tokens.contiguous(), d.contiguous(), len(d), len(d), True, looks_up=True)

    def _launch(
        self, d: Tensor, x: Tensor, count: int, rows: int, pulled: bool, looks_up: bool = False
    ) -> None:
        columns = self._theta.shape[1]
        tiles = (triton.cdiv(rows, _TALL), triton.cdiv(columns, _WIDE))
        with torch.cuda.device_of(self._theta):  # type: ignore[no-untyped-call]
            _move[tiles](
                self._theta,
                self._prior,
                self._rms,
                self._rates,
                d,
                x,
                count,
                rows,
                columns,
                has_prior=bool(self._reads & PRIOR) and not pulled,
                has_rms=bool(self._reads & RMS),
                looks_up=looks_up,
                tall=_TALL,
                wide=_WIDE,
            )
