"""LSTM language model: embedding, stacked LSTM layers, softmax.

`Layer` has the weights of one layer of `torch.nn.LSTM` under torch's names and gives the same
result, but shows its recurrence: `mix` acts on the hidden state after each step. A step is many
small kernels, which a GPU takes longer to start than to run: there, training uses torch's own.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Mix = Callable[[int, Tensor], Tensor]  # (layer, (B, H) h_t) -> h'_t
LayerState = tuple[Tensor, Tensor]  # h, c: (B, H)
State = tuple[LayerState, ...]


def step(gates: Tensor, cell: Tensor) -> LayerState:
    """Apply the gates i, f, g, o (B, 4H) of an LSTM to its cell (B, H) -> h, c."""
    # float(): under autocast the products are bfloat16, too coarse for a sum over time
    gates = gates.to(cell.dtype)
    i, f, g, o = gates.chunk(4, 1)
    cell = torch.sigmoid(f) * cell + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(cell), cell


def transposed(weight: Tensor) -> Tensor:
    """Return Wᵀ for use at every step, in the precision of autocast if that is on."""
    if torch.is_autocast_enabled(weight.device.type):  # which would cast it at every step again
        weight = weight.to(torch.get_autocast_dtype(weight.device.type))
    return weight.t()


class Layer(nn.Module):
    """One LSTM layer with torch's parameters: the rows of a weight are the gates i, f, g, o."""

    def __init__(self, inputs: int, units: int) -> None:
        super().__init__()
        self.units = units
        self.weight_ih = nn.Parameter(torch.empty(4 * units, inputs))
        self.weight_hh = nn.Parameter(torch.empty(4 * units, units))
        self.bias_ih = nn.Parameter(torch.empty(4 * units))
        self.bias_hh = nn.Parameter(torch.empty(4 * units))
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -1 / math.sqrt(units), 1 / math.sqrt(units))

    def forward(
        self,
        x: Tensor,
        state: LayerState | None,
        mix: Callable[[Tensor], Tensor] | None = None,
        recurrent: Tensor | None = None,
    ) -> tuple[Tensor, LayerState]:
        """(B, T, I), state or None -> (B, T, H), state; `recurrent` stands in for weight_hh."""
        h, c = state if state is not None else (x.new_zeros(len(x), self.units),) * 2
        recurrent = self.weight_hh if recurrent is None else recurrent
        if x.is_cuda and self.training and mix is None:
            return self.fused(x, h, c, recurrent)
        recurrent = transposed(recurrent)
        outputs = []
        for projected in F.linear(x, self.weight_ih, self.bias_ih + self.bias_hh).unbind(1):
            h, c = step(torch.addmm(projected, h, recurrent), c)  # (B, H) each
            if mix is not None:
                h = mix(h)
            outputs.append(h)
        return torch.stack(outputs, 1), (h, c)

    def fused(
        self, x: Tensor, h: Tensor, c: Tensor, recurrent: Tensor
    ) -> tuple[Tensor, LayerState]:
        """Return what `forward` does, all of it in torch's own kernels (cuDNN's on a GPU).

        Never in the precision of autocast, in which a cell's sum over time would be kept as well.
        """
        dtype = recurrent.dtype
        weights = [self.weight_ih, recurrent, self.bias_ih, self.bias_hh]
        start = h[None].to(dtype), c[None].to(dtype)
        with torch.autocast(x.device.type, enabled=False), warnings.catch_warnings():
            # cuDNN copies weights that do not lie in one piece, and says so
            warnings.filterwarnings("ignore", "RNN module weights are not part of single")
            options = (True, 1, 0.0, True, False, True)  # biases, layers, dropout, …, batch first
            y, h, c = torch.lstm(x.to(dtype), start, weights, *options)
        return y, (h[0], c[0])


def check(settings: dict[str, Any]) -> None:
    """Refuse settings that no model can have: a size below 1, a dropout outside [0, 1)."""
    for name, value in settings.items():
        if name.endswith("dropout") and not 0 <= value < 1:
            raise ValueError(f"{name} {value} of a model: give 0 to less than 1")
        if not name.endswith("dropout") and name != "tied" and not value >= 1:
            raise ValueError(f"{name} {value} of a model: give 1 or more")


def tie(output: nn.Linear, embedding: nn.Embedding) -> None:
    """Give the softmax the weight of the embedding."""
    if output.in_features != embedding.embedding_dim:
        raise ValueError(
            "a tied softmax needs an embedding as wide as the last layer; got "
            f"{embedding.embedding_dim} and {output.in_features}"
        )
    output.weight = embedding.weight


def at_layer(mix: Mix | None, layer: int) -> Callable[[Tensor], Tensor] | None:
    """Return `mix` for one layer."""
    return None if mix is None else lambda h: mix(layer, h)


class LSTM(nn.Module):
    """Embedding, stacked LSTM, softmax, with dropout between them (Zaremba et al. 2014)."""

    def __init__(
        self,
        vocabulary_size: int,
        *,
        embedding_size: int = 200,
        units: int = 200,
        layers: int = 2,
        tied: bool = False,
        dropout: float = 0.0,
        initial_range: float = 0.1,
    ) -> None:
        super().__init__()
        self.settings: dict[str, Any] = {
            "vocabulary_size": vocabulary_size,
            "embedding_size": embedding_size,
            "units": units,
            "layers": layers,
            "tied": tied,
            "dropout": dropout,
        }
        check(self.settings)
        self.embedding = nn.Embedding(vocabulary_size, embedding_size)
        self.layers = nn.ModuleList(
            Layer(units if k else embedding_size, units) for k in range(layers)
        )
        self.output = nn.Linear(units, vocabulary_size)
        if tied:
            tie(self.output, self.embedding)
        self.dropout = nn.Dropout(dropout)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -initial_range, initial_range)

    def hidden(
        self, tokens: Tensor, state: State | None = None, mix: Mix | None = None
    ) -> tuple[Tensor, State]:
        """(B, T) tokens, state or None -> (B, T, H) what the softmax sees, state."""
        x = self.dropout(self.embedding(tokens))  # (B, T, E)
        states = []
        for k, layer in enumerate(self.layers):
            x, after = layer(x, None if state is None else state[k], at_layer(mix, k))
            x = self.dropout(x)  # (B, T, H)
            states.append(after)
        return x, tuple(states)

    def logits(self, h: Tensor) -> Tensor:
        """(B, T, H) -> (B, T, V)."""
        logits: Tensor = self.output(h)
        return logits
