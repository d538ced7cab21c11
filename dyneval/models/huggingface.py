"""Hugging Face models: any causal language model of transformers, read and adapted as our own.

`Transformer` gives a model of theirs the two methods that dyneval asks of one. Its past is the
model's own cache, kept between two calls as a tree of tensors. Which file a model comes from is
the matter of `pretrained.py`.

A model that attends to all it has read has a context, after which something must go. `carry` drops
the oldest keys and values; what stays was computed with the weights of its time, as in the dynamic
evaluation of Transformer-XL. `recompute` reads the newer half of the context again, with the
weights as they are then. A window of the model's own stays as it is, and a state-space model needs
none.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

Policy = Literal["carry", "recompute"]
Precision = Literal["float32", "bfloat16", "float64"]
LENGTH = 1024  # tokens of context where none are asked for; more where that is all a model has
MOVING = ("dynamic", "longrope")  # rotary positions whose frequencies change with the position


@dataclass(frozen=True)
class Loading:
    """How a model of transformers is loaded and read."""

    context: int | None = None  # tokens it looks back on, itself included; None: at most LENGTH
    policy: Policy | None = None  # when they are full; None: carry, where its positions allow it
    dtype: Precision = "float32"  # of the weights that are read with; θ_l has 32 bits at least

    def __post_init__(self) -> None:
        if self.context is not None and self.context < 2:
            raise ValueError(f"a context of {self.context} tokens cannot be read; give 2 or more")
        for name, kind in (("policy", Policy), ("dtype", Precision)):
            value = getattr(self, name)
            if value is not None and value not in get_args(kind):
                known = ", ".join(get_args(kind))
                raise ValueError(f"{name} {value!r} is not known; give one of {known}")


class Transformer(nn.Module):
    """A causal language model of transformers, with `hidden` and `logits`.

    The state is a dict: `position`, the (B, 1) tokens read; each layer's part of the cache by its
    number; and with `recompute` the `tokens` of the context. `context` is None, or its length, and
    `policy` what happens at its end. `note` says what a user may want to know about it.
    """

    def __init__(self, model: Any, loading: Loading | None = None) -> None:
        super().__init__()
        self.model = model.eval()
        self._inner = _inner(model)
        names = inspect.signature(self._decoder.forward).parameters
        past = [name for name in ("past_key_values", "cache_params") if name in names]
        if not past:
            raise ValueError(
                f"a {self.architecture} takes no cache, so it cannot go on from what it has read; "
                "give a model that generates with one"
            )
        self._past, self._positioned = past[0], "position_ids" in names
        self.context: int | None = None
        self.policy: Policy = "carry"
        self.note = ""
        self._step: int | None = None  # tokens to be read at a time, if not all
        self._check_itself()
        self._set(loading or Loading())

    @property
    def architecture(self) -> str:
        """The name of the model's class."""
        return type(self.model).__name__

    @property
    def _decoder(self) -> Any:
        return self.model.get_submodule(self._inner)

    @property
    def symbols(self) -> int:
        """How many tokens are predicted; it may be more than the tokenizer knows."""
        return int(self.model.get_output_embeddings().weight.shape[0])

    def hidden(self, tokens: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        """(B, T) tokens, state or None -> (B, T, H) what the softmax sees, state."""
        parts = []
        while tokens.shape[1]:
            state = self._make_room(state)
            room = self._step or tokens.shape[1]
            if self.context is not None:
                room = min(room, self.context - self._held(state))
            h, state = self._read(tokens[:, :room], state)
            parts.append(h)
            tokens = tokens[:, room:]
        return (parts[0] if len(parts) == 1 else torch.cat(parts, 1)), state

    def logits(self, h: Tensor) -> Tensor:
        """(B, T, H) -> (B, T, V), by all that the model does to what its decoder gives."""
        tokens = torch.zeros(h.shape[:2], dtype=torch.long, device=h.device)
        with self._given(h):
            found: Tensor = self.model(tokens, use_cache=False).logits
        # probabilities of 16 bits would not add up to one
        least = torch.promote_types(h.dtype, torch.float32)
        return found.to(torch.promote_types(found.dtype, least))

    def _read(self, tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Read tokens for which there is room."""
        count = len(tokens)
        before = tokens.new_zeros(count, 1) if state is None else state["position"]
        cache = self._cache(state)
        named: dict[str, Any] = {self._past: cache, "use_cache": True}
        if self._positioned:
            places = torch.arange(tokens.shape[1], device=tokens.device)
            # the tokens of a context that is read anew are at its beginning
            first = before if self.policy == "carry" else self._held(state)
            named["position_ids"] = (first + places).expand(count, -1)
        with _kept(cache):
            h = self._decoder(tokens, **named)[0]
        after = {"position": before + tokens.shape[1]} | _layers(cache)
        if self.context is not None and self.policy == "recompute":
            read = [tokens] if state is None else [state["tokens"], tokens]
            after["tokens"] = torch.cat(read, 1)
        return h, after

    def _held(self, state: Any) -> int:
        """Return how many tokens of the context are taken."""
        if state is None:
            return 0
        if "tokens" in state:
            return int(state["tokens"].shape[1])
        return int(self._full(state)[0][1]["keys"].shape[-2])

    def _full(self, state: Any) -> list[tuple[str, dict[str, Tensor]]]:
        """Return the layers that attend to all they hold, but those that share another's."""
        layers = [f"layer{k}" for k in self._attending]
        return [(name, state[name]) for name in layers if "keys" in state.get(name, ())]

    def _make_room(self, state: Any) -> Any:
        """Return the state with room for a token at least, where it has a limit."""
        if self.context is None or self._held(state) < self.context:
            return state
        if self.policy == "recompute":
            tokens = state["tokens"][:, -(self.context // 2) :]
            with torch.no_grad():  # the past is given, as it is between two segments
                _, anew = self._read(tokens, None)
            return anew | {"position": state["position"]}
        kept = self.context - max(1, self.context // 8)
        dropped = {
            name: parts | {part: parts[part][:, :, -kept:] for part in ("keys", "values")}
            for name, parts in self._full(state)
        }
        return state | dropped

    def _cache(self, state: Any) -> Any:
        """Return a cache of the model's own that holds a state."""
        from transformers import DynamicCache

        cache = DynamicCache(config=self.model.config)
        if state is not None:
            read = int(state["position"].min())  # rows read together differ beyond windows only
            for k, layer in enumerate(cache.layers):
                if parts := state.get(f"layer{k}"):
                    _fill(layer, parts, read)
        return cache

    @contextmanager
    def _given(self, h: Tensor) -> Iterator[None]:
        """Let the decoder give `h`, whatever it is asked."""
        decoder = self._decoder
        own = vars(decoder).get("forward")  # there may be one before the class's
        decoder.forward = lambda *_, **__: _Outputs((h,))
        try:
            yield
        finally:
            del decoder.forward
            if own is not None:
                decoder.forward = own

    def _set(self, loading: Loading) -> None:
        """Settle the context, once it is known how the model tells positions."""
        from transformers import DynamicCache

        config = self.model.config.get_text_config(decoder=True)
        layers = DynamicCache(config=self.model.config).layers
        # those that attend to all they hold; others have a window of their own, or a state
        self._attending = [
            k for k, layer in enumerate(layers) if getattr(layer, "is_sliding", None) is False
        ]
        if not self._attending:
            if loading.context or loading.policy:
                raise ValueError(
                    f"a {self.architecture} has no end of its context: its state, or a window of "
                    "its own, stays as large as it is; leave --context and its policy out"
                )
            return
        most = getattr(config, "max_position_embeddings", None)
        self.context = loading.context or min(most or LENGTH, LENGTH)
        if most and self.context > most:
            raise ValueError(
                f"a context of {self.context} is more than the {most} tokens that this "
                f"{self.architecture} was made for; give {most} or fewer"
            )
        absolute = not self._is_relative()
        if absolute and loading.policy == "carry":
            raise ValueError(
                f"a {self.architecture} has absolute positions, so a context that is full cannot "
                "be carried on; give --context-policy recompute"
            )
        self.policy = "recompute" if absolute else loading.policy or "carry"
        if absolute and loading.policy is None:
            self.note = (
                f"{self.architecture} has absolute positions: whenever its context of "
                f"{self.context} tokens is full, the newer half is read again with the weights of "
                "then (--context-policy recompute)"
            )

    @torch.no_grad()
    def _check_itself(self) -> None:
        """Refuse a model that this class does not read as the model reads itself."""
        tokens = self._few()
        whole, _ = self._read(tokens, None)
        named = {"use_cache": False}
        if not self._same(self.logits(whole), self.model(tokens, **named).logits):
            raise ValueError(
                f"the probabilities of a {self.architecture} are not a function of what its "
                "decoder gives, as far as dyneval can tell; it cannot be read"
            )
        # of some, only a single token may follow on a state
        if not any(self._same(self._read_by(tokens, step), whole) for step in (3, 1)):
            raise ValueError(
                f"a {self.architecture} reads a text in parts in another way than at once, so it "
                "looks ahead, or it cannot go on from its cache with several tokens; it cannot "
                "be read"
            )

    def _read_by(self, tokens: Tensor, step: int) -> Tensor:
        """Read in parts of so many tokens, and go on doing so if that is 1."""
        self._step = step if step == 1 else None
        state, parts = None, []
        for part in torch.split(tokens, step, 1):
            h, state = self._read(part, state)
            parts.append(h)
        return torch.cat(parts, 1)

    @torch.no_grad()
    def _is_relative(self) -> bool:
        """Return whether nothing changes when all positions do, as with rotary ones."""
        # one kind, or one for each kind of layers
        kinds = {str(getattr(module, "rope_type", "")) for module in self.model.modules()}
        if not self._positioned or any(name in kind for kind in kinds for name in MOVING):
            return False
        tokens, far = self._few(), (self.context or 2) // 2
        places = torch.arange(tokens.shape[1], device=tokens.device)[None]
        read = [
            self._decoder(tokens, position_ids=places + first, use_cache=False)[0]
            for first in (0, far)
        ]
        return self._same(*read)

    def _few(self) -> Tensor:
        """Return some tokens to try the model with."""
        return torch.arange(6, device=self.model.device)[None] % self.symbols

    def _same(self, found: Tensor, expected: Tensor) -> bool:
        # models compute some things in float32, whatever their weights are
        eps = max(torch.finfo(kind).eps for kind in (self.model.dtype, torch.float32))
        bound = eps**0.5 * max(1.0, expected.abs().max().item())
        return bool((found - expected).abs().max() <= bound)


class _Outputs(tuple[Tensor]):
    """What a decoder gives, where it gives its last hidden state only."""

    @property
    def last_hidden_state(self) -> Tensor:
        return self[0]

    def __getattr__(self, name: str) -> None:
        return None


def _inner(model: Any) -> str:
    """Return the path of the module that a model's softmax stands on."""
    decoder = model.get_decoder()
    paths = [name for name, module in model.named_modules() if module is decoder and name]
    if not paths or model.get_output_embeddings() is None:
        raise ValueError(
            f"a {type(model).__name__} is no causal language model: it has no softmax on a decoder"
        )
    return str(paths[0])


def _layers(cache: Any) -> dict[str, dict[str, Tensor]]:
    """Return what the layers of a cache hold, by number; (B, …) each."""
    found = {}
    for k, layer in enumerate(cache.layers):
        parts: dict[str, Tensor] = {}
        if getattr(layer, "is_initialized", False) and getattr(layer, "keys", None) is not None:
            parts |= {"keys": layer.keys, "values": layer.values}
        for kind in ("conv", "recurrent"):
            states = getattr(layer, f"{kind}_states", {})
            parts |= {f"{kind}{i}": part for i, part in states.items() if part is not None}
        if parts:
            found[f"layer{k}"] = parts
    return found


def _kept(cache: Any) -> Any:
    """Return a context in which recurrent states may be written to, though gradients need them."""
    states = [
        state.untyped_storage().data_ptr()
        for layer in cache.layers
        for state in getattr(layer, "recurrent_states", {}).values()
        if state is not None
    ]
    if not states or not torch.is_grad_enabled():
        return nullcontext()

    def pack(saved: Tensor) -> Tensor:
        return saved.clone() if saved.untyped_storage().data_ptr() in states else saved

    return torch.autograd.graph.saved_tensors_hooks(pack, lambda saved: saved)


def _fill(layer: Any, parts: dict[str, Tensor], read: int) -> None:
    """Put what a layer held into a new one, after so many tokens."""
    if "keys" in parts:
        layer.dtype, layer.device = parts["keys"].dtype, parts["keys"].device
        layer.keys, layer.values, layer.is_initialized = parts["keys"], parts["values"], True
        if layer.is_sliding:
            layer.cumulative_length = read
    for kind in ("conv", "recurrent"):
        for i in getattr(layer, f"{kind}_states", {}):
            if (part := parts.get(f"{kind}{i}")) is not None:
                # a copy: the model writes the next state into it
                getattr(layer, f"{kind}_states")[i] = part.clone()
                getattr(layer, f"is_{kind}_states_initialized")[i] = True
                layer.has_previous_state[i] = True
                if kind == "conv":
                    layer.conv_kernel_size[i] = part.shape[-1]
