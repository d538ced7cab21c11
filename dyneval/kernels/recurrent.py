"""Recurrent networks in the hands of the kernels: their weights, and room for a segment.

`Network` is shared by the engine that learns (`segments.py`) and the one that only reads
(`static.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dyneval.gradient_stats import Prior
from dyneval.kernels import lstm, mlstm, network, plans, products, threads, updates
from dyneval.kernels.compiling import Kernel
from dyneval.kernels.memory import LINE
from dyneval.kernels.rates import Rates, describe
from dyneval.models.awd_lstm import AWDLSTM
from dyneval.models.lstm import LSTM
from dyneval.models.mlstm import MLSTM

_KERNELS: dict[str, Kernel] = {
    "project": products.project,
    "back": products.back,
    "move": updates.move,
    "learn": updates.learn,
    "embed": network.embed,
    "score": network.score,
    "learn_output": network.learn_output,
    "learn_embedding": network.learn_embedding,
}
_READING = ("project", "embed", "score")
_LSTM = {name: name for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")}
_MLSTM = {name: name for name in ("weight_ih", "weight_hh", "weight_mx", "weight_mh")}
# which kernels run a model, and the names of its layers' weights
_MODELS: dict[type[nn.Module], tuple[Kernel, Kernel, dict[str, str]]] = {
    LSTM: (lstm.read_lstm, lstm.learn_lstm, _LSTM),
    AWDLSTM: (lstm.read_lstm, lstm.learn_lstm, _LSTM),
    MLSTM: (mlstm.read_mlstm, mlstm.learn_mlstm, _MLSTM | {"bias_ih": "bias"}),
}
_WORTH = 65536  # weights for each thread more: fewer are faster alone than with barriers


def knows(model: Any) -> bool:
    """Return whether a model is one of the project's own, as it was made."""
    if type(model) not in _MODELS:
        return False
    return {name for _, name in _names(model)} == {name for name, _ in model.named_parameters()}


def _names(model: Any) -> Iterator[tuple[tuple[Any, ...], str]]:
    """Yield where in the records each weight belongs, and its name."""
    tied = model.output.weight is model.embedding.weight
    yield ("embedding",), "embedding.weight"
    yield ("output",), "embedding.weight" if tied else "output.weight"
    yield ("output_bias",), "output.bias"
    for k in range(len(model.layers)):
        for field, name in _MODELS[type(model)][2].items():
            yield (k, field), f"layers.{k}.{name}"


class Network:
    """A network's weights, its hidden state, and room for a segment, described for the kernels.

    A segment's tokens are read in one call or in several; row 0 of the hidden states and cells is
    what was there before its first token.
    """

    def __init__(
        self,
        model: Any,
        theta: Mapping[str, Tensor],
        rates: Rates | None = None,
        priors: Mapping[str, Prior] | None = None,
    ) -> None:
        embedding = theta["embedding.weight"]
        self.number = np.float32 if embedding.dtype == torch.float32 else np.float64
        self.plan = np.zeros(1, plans.segment(self.number))
        self.layers = np.zeros(len(model.layers), plans.layer(self.number))
        for place, name in _names(model):
            record = self.layers[place[0]] if len(place) == 2 else self.plan[0]
            prior = priors[name] if priors else None
            describe(record[place[-1]], theta[name], prior, rates or Rates())
        for k, layer in enumerate(model.layers):
            self.layers[k]["units"] = layer.units
            self.layers[k]["inputs"] = theta[f"layers.{k}.weight_ih"].shape[1]
        self.layers["one"] = 1
        self.vocabulary_size = len(embedding)
        self.read_tokens = 0  # of the open segment
        self._learns = priors is not None
        self._weights = sum(weight.numel() for weight in theta.values())
        self._arrays: dict[str, NDArray[Any]] = {}  # by field, for layers by field and number
        self._capacity = self._threads = 0
        self._link(model)

    def _link(self, model: Any) -> None:
        """Tell the kernels where they, and what never moves, are."""
        plan, (read, learn, _) = self.plan, _MODELS[type(model)]
        for name in _KERNELS if self._learns else _READING:
            plan[name] = _KERNELS[name].address(self.number)
        self._read = read.compiled(self.number)
        self._learn = learn.compiled(self.number) if self._learns else None
        self._sync = np.zeros(threads.SYNC, np.int64)
        plan["sync"], plan["layers"] = self._sync.ctypes.data, self.layers.ctypes.data
        plan["depth"], plan["one"] = len(self.layers), 1
        plan["size"] = np.dtype(self.number).itemsize
        plan["tied"] = model.output.weight is model.embedding.weight

    def read(self, tokens: Tensor, *, scored: bool = True) -> None:
        """(T,) tokens, read after those of the open segment; their logits go to `scores`."""
        count = len(tokens)
        self._make_room(self.read_tokens + count)
        start = self.read_tokens
        self._arrays["tokens"][0, start : start + count] = self.checked(tokens)
        self.plan["start"], self.plan["count"], self.plan["scored"] = start, count, scored
        self._run(self._read)
        self.read_tokens += count

    def learn(self, targets: Tensor) -> None:
        """(n,) what followed the open segment's first tokens -> one step on the weights."""
        count = len(targets)
        self._make_room(self.read_tokens)  # the number of threads may have changed
        self._arrays["targets"][0, :count] = self.checked(targets)
        self.plan["count"] = count
        self._run(self._learn)
        self.plan["step"] += 1

    def logits(self, hidden: NDArray[Any], kernel: Any) -> NDArray[Any]:
        """(T, H) what the softmax sees -> (T, V) logits, until the next call."""
        count = len(hidden)
        self._make_room(count)
        self.rows("hidden", len(self.layers) - 1)[1 : count + 1] = hidden
        self.plan["start"], self.plan["count"] = 0, count
        self._run(kernel)
        return self._arrays["scores"][:count]

    def _run(self, function: Any) -> None:
        self._sync[:] = 0
        threads.run(function, self.plan.ctypes.data, self._threads)

    def checked(self, tokens: Tensor) -> NDArray[np.int64]:
        """Return tokens that may be used as indices without further ado."""
        numbers: NDArray[np.int64] = tokens.numpy()
        if numbers.min() < 0 or numbers.max() >= self.vocabulary_size:
            raise ValueError(
                f"tokens go from {numbers.min()} to {numbers.max()}, but the model knows "
                f"0 to {self.vocabulary_size - 1}"
            )
        return numbers

    def rows(self, name: str, layer: int | None = None) -> NDArray[Any]:
        """Return what the kernels keep under a name, a row for each token."""
        self._make_room(1)
        return self._arrays[name if layer is None else f"{name}.{layer}"]

    def cut(self) -> None:
        """End the segment: its last hidden state is the next one's first."""
        for k in range(len(self.layers) if self.read_tokens else 0):
            for name in ("hidden", "cells"):
                rows = self.rows(name, k)
                rows[0] = rows[self.read_tokens]
        self.read_tokens = 0

    def _make_room(self, tokens: int) -> None:
        """Grow the arrays to hold a segment of so many tokens; keep what they hold."""
        count = min(torch.get_num_threads(), 1 + self._weights // _WORTH)
        if tokens <= self._capacity and count == self._threads:
            return
        self._threads = count
        self._capacity = tokens if tokens <= self._capacity else max(tokens, 2 * self._capacity)
        room, widest = self._capacity, 0
        for k, layer in enumerate(self.layers):
            units, inputs = int(layer["units"]), int(layer["inputs"])
            widest = max(widest, units, inputs)
            for name in ("hidden", "cells"):
                layer[name] = self._place(f"{name}.{k}", room + 1, units)
            layer["gates"] = self._place(f"gates.{k}", room, 4 * units)
            for name in ("error", "factor", "product", "m", "factor_error", "product_error"):
                layer[name] = self._place(f"{name}.{k}", room, units)
            for name in ("later", "carried"):
                layer[name] = self._place(f"{name}.{k}", 1, units)
        plan, embedded = self.plan, int(self.layers[0]["inputs"])
        plan["room"] = room * plans.width(widest, int(plan["size"][0]))
        for name, rows, columns in (
            ("inputs", room, embedded),
            ("input_error", room, embedded),
            ("scores", room, self.vocabulary_size),
            ("partial", 2 * count, int(plan["room"][0])),
        ):
            plan[name] = self._place(name, rows, columns)
        for name in ("tokens", "targets"):
            plan[name] = self._place(name, 1, room, np.int64)
        plan["ones"] = self._place("ones", 1, max(room, self.vocabulary_size))
        self._arrays["ones"][:] = 1
        plan["threads"] = count
        self._connect()

    def _connect(self) -> None:
        """Let each layer's inputs be what the one below gives, and so for their errors."""
        below = int(self.plan["inputs"][0]), int(self.plan["input_error"][0])
        for layer in self.layers:
            layer["x"], layer["x_error"] = below
            size = int(self.plan["size"][0])
            row = plans.width(int(layer["units"]), size) * size
            below = int(layer["hidden"]) + row, int(layer["error"])

    def _place(self, name: str, rows: int, columns: int, number: Any = None) -> int:
        """Return the address of an array that begins on a cache line, and keep it."""
        size = np.dtype(number or self.number).itemsize
        wide = plans.width(columns, size)
        whole = np.zeros(rows * wide + LINE // size, number or self.number)
        start = -whole.ctypes.data % LINE // size
        array = whole[start : start + rows * wide].reshape(rows, wide)[:, :columns]
        before = self._arrays.get(name)
        if before is not None and name != "partial":
            array[: len(before), : before.shape[1]] = before[:rows, :columns]
        self._arrays[name] = array
        return int(array.ctypes.data)
