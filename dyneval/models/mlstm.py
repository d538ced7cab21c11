"""Multiplicative LSTM language model (Krause et al. 2016): the paper's character model.

m_t = (W_mx x_t) ⊙ (W_mh h_{t-1}) takes the place of h_{t-1} in the gates of an LSTM.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dyneval.models.lstm import LayerState, Mix, State, at_layer, check, step, tie, transposed


class Layer(nn.Module):
    """One mLSTM layer. The rows of the gates' weights are i, f, g, o, as in an LSTM."""

    def __init__(self, inputs: int, units: int, forget_bias: float = 3.0) -> None:
        super().__init__()
        self.units = units
        self.weight_mx = nn.Parameter(torch.empty(units, inputs))
        self.weight_mh = nn.Parameter(torch.empty(units, units))
        self.weight_ih = nn.Parameter(torch.empty(4 * units, inputs))
        self.weight_hh = nn.Parameter(torch.empty(4 * units, units))
        self.bias = nn.Parameter(torch.zeros(4 * units))
        nn.init.xavier_uniform_(self.weight_mx)
        nn.init.xavier_uniform_(self.weight_ih)
        nn.init.orthogonal_(self.weight_mh)
        for gate in range(4):
            nn.init.orthogonal_(self.weight_hh[gate * units : (gate + 1) * units].detach())
        nn.init.constant_(self.bias[units : 2 * units].detach(), forget_bias)

    def forward(
        self,
        x: Tensor,
        state: LayerState | None,
        mix: Callable[[Tensor], Tensor] | None = None,
        kept: Tensor | float = 1.0,
    ) -> tuple[Tensor, LayerState]:
        """(B, T, I), state or None -> (B, T, H), state; `kept` is a dropout mask on h (B, H)."""
        h, c = state if state is not None else (x.new_zeros(len(x), self.units),) * 2
        if x.is_cuda and self.training and mix is None:
            return self.fused(x, h, c, kept)
        # read once: under weight normalisation each access computes the matrix again
        multiply, recurrent = transposed(self.weight_mh), transposed(self.weight_hh)
        outputs = []
        for factor, projected in zip(
            F.linear(x, self.weight_mx).unbind(1),
            F.linear(x, self.weight_ih, self.bias).unbind(1),
            strict=True,
        ):
            m = factor * (h @ multiply)  # (B, H)
            h, c = step(torch.addmm(projected, m, recurrent), c)
            h = h * kept if isinstance(kept, Tensor) else h
            if mix is not None:
                h = mix(h)
            outputs.append(h)
        return torch.stack(outputs, 1), (h, c)

    def fused(
        self, x: Tensor, h: Tensor, c: Tensor, kept: Tensor | float
    ) -> tuple[Tensor, LayerState]:
        """Return what `forward` does, with torch's own cell: few kernels of a GPU a step.

        Never in the precision of autocast, in which a cell's sum over time would be kept as well.
        """
        weights = [self.weight_ih, self.weight_hh, self.bias, torch.zeros_like(self.bias)]
        multiply, dtype, outputs = self.weight_mh.t(), self.bias.dtype, []
        x, h, c = x.to(dtype), h.to(dtype), c.to(dtype)
        with torch.autocast(x.device.type, enabled=False):
            for token, factor in zip(
                x.unbind(1), F.linear(x, self.weight_mx).unbind(1), strict=True
            ):
                h, c = torch.lstm_cell(token, (factor * (h @ multiply), c), *weights)
                h = h * kept if isinstance(kept, Tensor) else h
                outputs.append(h)
        return torch.stack(outputs, 1), (h, c)


class MLSTM(nn.Module):
    """Embedding, one or more mLSTM layers, softmax, with variational dropout (one mask a call)."""

    def __init__(
        self,
        vocabulary_size: int,
        *,
        embedding_size: int = 64,
        units: int = 512,
        layers: int = 1,
        tied: bool = False,
        hidden_dropout: float = 0.0,
        embedding_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.settings: dict[str, Any] = {
            "vocabulary_size": vocabulary_size,
            "embedding_size": embedding_size,
            "units": units,
            "layers": layers,
            "tied": tied,
            "hidden_dropout": hidden_dropout,
            "embedding_dropout": embedding_dropout,
        }
        check(self.settings)
        self.embedding = nn.Embedding(vocabulary_size, embedding_size)
        self.layers = nn.ModuleList(
            Layer(units if k else embedding_size, units) for k in range(layers)
        )
        self.output = nn.Linear(units, vocabulary_size)
        if tied:
            tie(self.output, self.embedding)
        nn.init.normal_(self.embedding.weight, std=embedding_size**-0.5)
        nn.init.zeros_(self.output.bias)

    def hidden(
        self, tokens: Tensor, state: State | None = None, mix: Mix | None = None
    ) -> tuple[Tensor, State]:
        """(B, T) tokens, state or None -> (B, T, H) what the softmax sees, state."""
        x = self.embedding(tokens)  # (B, T, E)
        x = x * self._kept(x[:, :1], self.settings["embedding_dropout"])
        states = []
        for k, layer in enumerate(self.layers):
            kept = self._kept(x.new_empty(len(x), layer.units), self.settings["hidden_dropout"])
            x, after = layer(x, None if state is None else state[k], at_layer(mix, k), kept)
            states.append(after)
        return x, tuple(states)

    def _kept(self, like: Tensor, dropout: float) -> Tensor | float:
        """Return a mask of zeros and 1 / (1 − dropout), shared over time, or 1 outside training."""
        if not self.training or dropout == 0:
            return 1.0
        return torch.bernoulli(torch.full_like(like, 1 - dropout)) / (1 - dropout)

    def logits(self, h: Tensor) -> Tensor:
        """(B, T, H) -> (B, T, V)."""
        logits: Tensor = self.output(h)
        return logits
