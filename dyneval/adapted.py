"""Adapted: modules that read as a model does, and whose parameters are what a target adapts.

The model's own weights, as far as they stay, are in there as buffers, shared with the model.
`stacked` reads B streams side by side, each with adapted weights of its own, in products of all
streams at once.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.func import functional_call
from torch.nn import functional as F

from dyneval.matrices import Watch
from dyneval.models import Origin
from dyneval.reading import map_state

Weights = Mapping[str, Tensor]  # by name, those of row b at [b]
Uses = list[tuple[str, Tensor, Tensor]]  # name, X (B, n, C), D (B, n, R): the gradient is DᵀX


def some(model: Any, chosen: Callable[[str, nn.Parameter], bool], target: str) -> Any:
    """Return a model whose parameters are those that are chosen; the others are buffers."""
    kept = {id(weight) for name, weight in model.named_parameters() if chosen(name, weight)}
    if not kept:
        names = ", ".join(name for name, _ in model.named_parameters())
        pattern = target.partition(":")[2] or target
        raise ValueError(f"no weight matches {pattern!r}; there are {names}")
    own, frozen = _frozen(model, kept)
    own.origin = Origin(model, target, frozen)
    return own


def _named(model: Any, pattern: str) -> list[tuple[str, nn.Parameter]]:
    return [pair for pair in model.named_parameters() if fnmatchcase(pair[0], pattern)]


def _frozen(model: Any, kept: set[int]) -> tuple[Any, frozenset[str]]:
    """Return a module that shares a model's weights, most of them as buffers, and their names."""
    own = copy.deepcopy(model, {id(weight): weight for weight in model.parameters()})
    frozen = set()
    for name, weight in list(own.named_parameters(remove_duplicate=False)):
        if id(weight) not in kept:
            path, _, leaf = name.rpartition(".")
            module = own.get_submodule(path)
            del module._parameters[leaf]
            module.register_buffer(leaf, weight.detach(), persistent=False)
            frozen.add(name)
    return own.eval(), frozenset(frozen)


class Added(nn.Module):
    """A model whose weights stay, and parameters that adapt beside it."""

    def __init__(self, model: Any, target: str) -> None:
        super().__init__()
        self.base, frozen = _frozen(model, set())
        self.origin = Origin(model, target, frozenset(f"base.{name}" for name in frozen))

    def hidden(self, tokens: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        """(B, T) tokens, state or None -> (B, T, H) what the softmax sees, state."""
        found: tuple[Tensor, Any] = self.reading(self._weights()).hidden(tokens, state)
        return found

    def logits(self, h: Tensor) -> Tensor:
        """(B, T, H) -> (B, T, V)."""
        found: Tensor = self.reading(self._weights()).logits(h)
        return found

    def _weights(self) -> Weights:
        return dict(self.named_parameters())

    def reading(self, weights: Weights, uses: Uses | None = None) -> Any:
        """Return what reads with some weights; with `uses`, each row with its own."""
        raise NotImplementedError


class Mixed(Added):
    """A model with a matrix on some of its hidden units."""

    def __init__(
        self, model: Any, target: str, units: int, layer: int | None = None, first: int = 0
    ) -> None:
        if "mix" not in inspect.signature(model.hidden).parameters:
            raise ValueError(
                f"{type(model).__name__}.hidden takes no `mix`, through which a hidden matrix "
                "acts; give another target, as low-rank:8, or let the model call mix(layer, h)"
            )
        super().__init__(model, target)
        widths = self._widths()
        self.layer = max(widths) if layer is None else layer
        self.first, self.end = first, first + units
        if self.end > widths.get(self.layer, 0):
            known = ", ".join(f"layer {k} has {width} units" for k, width in widths.items())
            raise ValueError(f"{target} reaches beyond the model: {known}; give fewer units")
        self.matrix = nn.Parameter(next(model.parameters()).detach().new_zeros(units, units))

    @torch.no_grad()
    def _widths(self) -> dict[int, int]:
        """Return how many hidden units each layer has, which shows when a token is read."""
        widths: dict[int, int] = {}

        def look(layer: int, h: Tensor) -> Tensor:
            widths[layer] = h.shape[-1]
            return h

        device = next(iter(self.base.buffers())).device
        self.base.hidden(torch.zeros(1, 1, dtype=torch.long, device=device), None, look)
        return widths

    def reading(self, weights: Weights, uses: Uses | None = None) -> _MixedReading:
        """Return what reads with some weights; with `uses`, each row with its own."""
        return _MixedReading(self, weights["matrix"], uses)


class _MixedReading:
    """A model with a matrix (H, H), or one for each stream (B, H, H)."""

    def __init__(self, owner: Mixed, matrix: Tensor, uses: Uses | None) -> None:
        self.owner, self.matrix, self.uses = owner, matrix, uses
        self.logits = owner.base.logits

    def hidden(self, tokens: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        """(B, T) tokens, state or None -> (B, T, H) what the softmax sees, state."""
        found: tuple[Tensor, Any] = self.owner.base.hidden(tokens, state, self._mix)
        return found

    def _mix(self, layer: int, h: Tensor) -> Tensor:
        """(B, units) h -> h', h + M h on some of the units."""
        owner = self.owner
        if layer != owner.layer:
            return h
        part = h[:, owner.first : owner.end]
        if self.uses is None:
            added = part @ self.matrix.t()
        else:
            added = rowwise(part.unsqueeze(1), self.matrix, "matrix", self.uses).squeeze(1)
        return h + F.pad(added, (owner.first, h.shape[1] - owner.end))


class _Change(nn.Module):
    """The change U V of one matrix."""

    def __init__(self, matrix: Tensor, rank: int, generator: torch.Generator) -> None:
        super().__init__()
        v = torch.randn(rank, matrix.shape[1], generator=generator, dtype=torch.float64)
        self.u = nn.Parameter(matrix.new_zeros(len(matrix), rank))
        self.register_buffer("v", (v / rank**0.5).to(matrix), persistent=False)


class Changed(Added):
    """A model whose matrices W are W + U V."""

    def __init__(self, model: Any, target: str, rank: int, pattern: str, seed: int) -> None:
        super().__init__(model, target)
        matrices = [pair for pair in _named(model, pattern) if pair[1].dim() == 2]
        if not matrices:
            names = ", ".join(name for name, weight in _named(model, "*") if weight.dim() == 2)
            raise ValueError(f"no matrix matches {pattern!r}; there are {names}")
        self.names = self._seen([name for name, _ in matrices])
        matrices = [pair for pair in matrices if pair[0] in self.names]
        generator = torch.Generator().manual_seed(seed)
        for name, matrix in matrices:
            module: nn.Module = self
            *path, leaf = f"changes.{name}".split(".")
            for part in path:
                if part not in module._modules:
                    module.add_module(part, nn.Module())
                module = module.get_submodule(part)
            module.add_module(leaf, _Change(matrix, rank, generator))
        fixed = {f"changes.{name}.v" for name in self.names}
        self.origin = Origin(model, target, self.origin.frozen | fixed)

    @torch.no_grad()
    def _seen(self, names: list[str]) -> list[str]:
        """Return the matrices that are seen in use when a token is read; torch's LSTM hides its."""
        seen: set[str] = set()
        with _Seen({name: self.base.get_buffer(name) for name in names}, seen):
            device = next(iter(self.base.buffers())).device
            h, _ = self.base.hidden(torch.zeros(1, 1, dtype=torch.long, device=device), None)
            self.base.logits(h)
        if not seen:
            raise ValueError(
                f"{type(self.base).__name__} uses {', '.join(names)} where they cannot be changed; "
                "give another target, as matching:PATTERN"
            )
        return [name for name in names if name in seen]

    def reading(self, weights: Weights, uses: Uses | None = None) -> _ChangedReading:
        """Return what reads with some weights; with `uses`, each row with its own."""
        return _ChangedReading(self, weights, uses)


class _Seen(Watch[str]):
    """Notes which matrices are used."""

    def __init__(self, matrices: Weights, seen: set[str]) -> None:
        super().__init__(matrices)
        self.seen = seen

    def product(
        self, key: str, x: Tensor, matrix: Tensor, turned: bool, addend: Tensor | None
    ) -> None:
        """Note a product."""
        self.seen.add(key)

    def look_up(self, key: str, tokens: Tensor, matrix: Tensor) -> None:
        """Note a look-up."""
        self.seen.add(key)


class _ChangedReading(Watch[str]):
    """A model that adds U V x wherever it computes W x, with one U or one for each stream."""

    def __init__(self, owner: Changed, weights: Weights, uses: Uses | None) -> None:
        super().__init__({name: owner.base.get_buffer(name) for name in owner.names})
        self.base, self.uses = owner.base, uses
        self.changes = {
            name: (f"changes.{name}.u", weights[f"changes.{name}.u"], fixed)
            for name in owner.names
            for fixed in [owner.get_buffer(f"changes.{name}.v")]
        }

    def hidden(self, tokens: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        """(B, T) tokens, state or None -> (B, T, H) what the softmax sees, state."""
        with self:
            found: tuple[Tensor, Any] = self.base.hidden(tokens, state)
            return found

    def logits(self, h: Tensor) -> Tensor:
        """(B, T, H) -> (B, T, V)."""
        with self:
            found: Tensor = self.base.logits(h)
            return found

    def product(
        self, key: str, x: Tensor, matrix: Tensor, turned: bool, addend: Tensor | None
    ) -> Tensor:
        """Return X (W + U V)ᵀ, or X (W + U V), and what is added to it."""
        name, u, v = self.changes[key]
        w: Tensor = self.base.get_buffer(key)
        whole = x @ (w if turned else w.t())
        whole = whole if addend is None else whole + addend
        if self.uses is None:
            return whole + ((x @ u) @ v if turned else (x @ v.t()) @ u.t())
        # a row of a batch has all its tokens next to each other
        rows = x.reshape(len(u), -1, x.shape[-1])
        if turned:
            change = rowwise(rows, u, name, self.uses, turned=True) @ v
        else:
            change = rowwise(rows @ v.t(), u, name, self.uses)
        return whole + change.reshape(whole.shape)

    def look_up(self, key: str, tokens: Tensor, matrix: Tensor) -> Tensor:
        """Return rows of W + U V."""
        name, u, v = self.changes[key]
        rows: Tensor = F.embedding(tokens, self.base.get_buffer(key))
        if self.uses is None:
            return rows + F.embedding(tokens, u) @ v
        streams = torch.arange(len(u), device=tokens.device)[:, None]
        chosen = u[streams, tokens.reshape(len(u), -1)]  # (B, T, r)
        return rows + (chosen @ v).reshape(rows.shape)


class _Every:
    """A module read with other weights for each stream: all its products are of stacked matrices.

    torch.vmap makes them so; a module that it cannot read raises what it raises.
    """

    def __init__(self, module: Any, weights: Weights) -> None:
        self.call = _Call(module)
        self.weights = {f"module.{name}": weight for name, weight in weights.items()}

    def hidden(self, tokens: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        """(B, T) tokens, state or None -> (B, T, H) what the softmax sees, state."""

        def one(weights: Weights, row: Tensor, before: Any) -> tuple[Tensor, Any]:
            before = map_state(lambda leaf: leaf[None], before)
            h, after = functional_call(self.call, dict(weights), ("hidden", row[None], before))
            return h[0], map_state(lambda leaf: leaf[0], after)

        places = (0, 0, None if state is None else 0)
        found: tuple[Tensor, Any] = torch.vmap(one, places)(self.weights, tokens, state)
        return found

    def logits(self, h: Tensor) -> Tensor:
        """(B, T, H) -> (B, T, V)."""

        def one(weights: Weights, row: Tensor) -> Any:
            return functional_call(self.call, dict(weights), ("logits", row[None]))[0]

        found: Tensor = torch.vmap(one)(self.weights, h)
        return found


class _Call(nn.Module):
    """A module whose methods are called by name, as `functional_call` can."""

    def __init__(self, module: Any) -> None:
        super().__init__()
        self.module = module

    def forward(self, method: str, *arguments: Any) -> Any:
        """Return what a method of the module does."""
        return getattr(self.module, method)(*arguments)


def stacked(module: Any, weights: Weights, uses: Uses) -> Any:
    """Return what reads (B, T) tokens with a module, row b with the adapted weights at [b].

    Gradients of the weights are what autograd finds and the products DᵀX of `uses`, one of which
    each product with an adapted matrix adds on the way back.
    """
    if isinstance(module, Added):
        return module.reading(weights, uses)
    return _Every(module, weights)


class _Rowwise(torch.autograd.Function):
    """Products of each row with a matrix of its own; the way back keeps X and D of the matrix."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, name: str, uses: Uses, turned: bool) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.use = name, uses, turned
        return torch.bmm(x, weight if turned else weight.mT)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        name, uses, turned = ctx.use
        inputs = x.detach()  # with its graph it would keep the list alive that it is in
        uses.append((name, gradient, inputs) if turned else (name, inputs, gradient))
        error = None
        if ctx.needs_input_grad[0]:
            error = torch.bmm(gradient, weight.mT if turned else weight)
        return error, None, None, None, None


def rowwise(x: Tensor, weight: Tensor, name: str, uses: Uses, turned: bool = False) -> Tensor:
    """(B, n, C) X, (B, R, C) W -> (B, n, R) X Wᵀ; or turned, (B, n, R) X -> (B, n, C) X W."""
    apply: Any = _Rowwise.apply
    found: Tensor = apply(x, weight, name, uses, turned)
    return found
