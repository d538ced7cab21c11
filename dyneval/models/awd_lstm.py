"""AWD-LSTM language model (Merity et al. 2018): an LSTM that training drops out everywhere.

Outside training it is a stacked LSTM with a tied softmax, nothing more. The defaults are those of
the paper's Penn Treebank model.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dyneval.models.lstm import Layer, Mix, State, at_layer, check, tie


class AWDLSTM(nn.Module):
    """Embedding, stacked LSTM, softmax: layers of `units`, but the last as wide as the embedding.

    That last width is there for the tied softmax; untied, all layers have `units`. In training
    each call draws one mask of each kind and keeps it for all its tokens: on units of the input,
    between the layers and of the output (a mask a row), on whole rows of the embedding, and on
    the single weights from hidden to hidden state (DropConnect).
    """

    def __init__(
        self,
        vocabulary_size: int,
        *,
        embedding_size: int = 400,
        units: int = 1150,
        layers: int = 3,
        tied: bool = True,
        row_dropout: float = 0.1,
        input_dropout: float = 0.4,
        layer_dropout: float = 0.25,
        output_dropout: float = 0.4,
        recurrent_dropout: float = 0.5,
        initial_range: float = 0.1,
    ) -> None:
        super().__init__()
        self.settings: dict[str, Any] = {
            "vocabulary_size": vocabulary_size,
            "embedding_size": embedding_size,
            "units": units,
            "layers": layers,
            "tied": tied,
            "row_dropout": row_dropout,  # rows of the embedding, a word wherever it stands
            "input_dropout": input_dropout,  # what the first layer sees
            "layer_dropout": layer_dropout,  # between layers
            "output_dropout": output_dropout,  # what the softmax sees
            "recurrent_dropout": recurrent_dropout,  # weights from hidden to hidden
        }
        check(self.settings)
        last = embedding_size if tied else units
        widths = [embedding_size, *[units] * (layers - 1), last]
        self.embedding = nn.Embedding(vocabulary_size, embedding_size)
        self.layers = nn.ModuleList(map(Layer, widths, widths[1:]))
        self.output = nn.Linear(last, vocabulary_size)
        if tied:
            tie(self.output, self.embedding)
        for weight in (self.embedding.weight, self.output.weight):
            nn.init.uniform_(weight, -initial_range, initial_range)
        nn.init.zeros_(self.output.bias)

    def hidden(
        self, tokens: Tensor, state: State | None = None, mix: Mix | None = None
    ) -> tuple[Tensor, State]:
        """(B, T) tokens, state or None -> (B, T, H) what the softmax sees, state."""
        raw, state = self.raw_hidden(tokens, state, mix)
        return self.dropped(raw), state

    def raw_hidden(
        self, tokens: Tensor, state: State | None = None, mix: Mix | None = None
    ) -> tuple[Tensor, State]:
        """Return what the last layer gives, not yet dropped out: TAR is on this, AR on `hidden`."""
        x = self._embed(tokens)  # (B, T, E)
        states = []
        for k, layer in enumerate(self.layers):
            x = self._locked(x, self.settings["layer_dropout" if k else "input_dropout"])
            # functional: the masked weight is a value of this call, never a parameter
            weight: Any = layer.weight_hh
            recurrent = F.dropout(weight, self.settings["recurrent_dropout"], self.training)
            x, after = layer(x, None if state is None else state[k], at_layer(mix, k), recurrent)
            states.append(after)
        return x, tuple(states)

    def dropped(self, raw: Tensor) -> Tensor:
        """(B, T, H) of the last layer -> (B, T, H) what the softmax sees."""
        return self._locked(raw, self.settings["output_dropout"])

    def logits(self, h: Tensor) -> Tensor:
        """(B, T, H) -> (B, T, V)."""
        logits: Tensor = self.output(h)
        return logits

    def _embed(self, tokens: Tensor) -> Tensor:
        x: Tensor = self.embedding(tokens)
        if not self.training:
            return x
        rows = x.new_ones(self.embedding.num_embeddings)
        return x * F.dropout(rows, self.settings["row_dropout"])[tokens].unsqueeze(-1)

    def _locked(self, x: Tensor, dropout: float) -> Tensor:
        """Drop the same units of a row at all its tokens (B, T, H)."""
        if not self.training:
            return x
        return x * F.dropout(torch.ones_like(x[:, :1]), dropout)
