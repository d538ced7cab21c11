"""Sessions: a model of transformers that follows what it reads, in the calls its users know.

Inside of `with adapt(model, tokenizer) as session`, `session.read` learns, and the model itself,
`model.generate` or `model(ids, labels=ids)`, reads with the weights learned so far. The model's
parameters point at the adapted tensors meanwhile, and at their own again afterwards: no value of
them is ever written to. A low-rank change is added wherever the model multiplies by a matrix.

The adapted weights are those of a `Dynamic` on a single stream; a session is it, dressed up.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from dyneval import deltas, generation, gradient_stats, kernels, targets
from dyneval.adapted import Added
from dyneval.evaluation import evaluate
from dyneval.gradient_stats import RUNNING, Prior, RunningStats, Stats
from dyneval.models import fingerprint
from dyneval.models.huggingface import Loading, Policy, Transformer
from dyneval.predictors import Dynamic
from dyneval.rules import Rule, Sgd
from dyneval.settings import UNTUNED
from dyneval.streams import PAD
from dyneval.targets import Target

_adapting: set[int] = set()  # the parameters of models in sessions, by their `id`


@dataclass(frozen=True)
class Scores:
    """What was expected of the tokens that were read."""

    tokens: Tensor  # (N,), without the first of a text that has nothing before it
    nats: Tensor  # (N,) −log p of each, before it was learned from

    @property
    def perplexity(self) -> float:
        """Return exp of the mean nats of a token."""
        return math.exp(self.nats.double().mean().item())


def adapt(
    model: Any,
    tokenizer: Any = None,
    *,
    rule: Rule | None = None,
    target: Target | str = targets.ALL,
    stats: Stats | Path | str | None = None,
    segment_length: int = UNTUNED.segment_length,
    context: int | None = None,
    context_policy: Policy | None = None,
    engine: kernels.Name = "auto",
) -> Session:
    """Return a session with a causal language model of transformers.

    Without a `rule` it is plain gradient descent, which needs no statistics. Those that divide by
    √MS_g are given `stats`: of `dyneval gradient-stats`, or "running" for those of the session's
    own past. `target` are the weights that adapt, "low-rank:8" for instance.

    >>> import dyneval
    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> _ = torch.manual_seed(1)
    >>> sizes = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2}
    >>> model = LlamaForCausalLM(LlamaConfig(vocab_size=50, num_hidden_layers=1, **sizes))
    >>> ids = torch.arange(40).repeat(1, 8)  # or a text, if there is a tokenizer
    >>> with dyneval.adapt(model, rule=dyneval.Sgd(0.5), segment_length=20) as session:
    ...     first, second = session.read(ids), session.read(ids)
    ...     inside = model(ids, labels=ids).loss
    >>> bool(second.perplexity < first.perplexity and inside < model(ids, labels=ids).loss)
    True
    """
    if not isinstance(model, nn.Module) or not hasattr(model, "get_output_embeddings"):
        raise ValueError(
            f"adapt takes a causal language model of transformers, and was given a "
            f"{type(model).__name__}; load one with AutoModelForCausalLM.from_pretrained"
        )
    if segment_length < 1:
        raise ValueError(f"a segment of {segment_length} tokens cannot be read; give 1 or more")
    _refuse_nested(model)
    with _plainly(model):
        reader = _read_by(model, Loading(context, context_policy))
        if tokenizer is not None and len(tokenizer) > reader.symbols:
            raise ValueError(
                f"the tokenizer has {len(tokenizer):,} tokens, but the model predicts "
                f"{reader.symbols:,}; the two do not belong together"
            )
        rule = rule or Sgd(UNTUNED.learning_rate)
        own = (targets.parse(target) if isinstance(target, str) else target).of(reader)
        predictor = Dynamic(own, rule, _priors(own, rule, stats), engine)
        session = Session(reader, own, predictor, tokenizer, segment_length, rule)
    if reader.note:
        warnings.warn(reader.note, stacklevel=2)
    return session


def _read_by(model: Any, loading: Loading) -> Transformer:
    """Return what reads with a model, which stays in the mode that it is in."""
    modes = {module: module.training for module in model.modules()}
    try:
        return Transformer(model, loading)
    finally:
        for module, mode in modes.items():
            module.training = mode


def _priors(own: Any, rule: Rule, given: Stats | Path | str | None) -> dict[str, Prior] | None:
    """Return what a rule reads beside the weights, or None if that is nothing."""
    if not rule.needs_statistics:
        return None
    if given is None:
        raise ValueError(
            f"{rule} divides by √MS_g, and no gradient statistics were given; give stats: a file "
            'of `dyneval gradient-stats`, or "running" for those of what the session has read'
        )
    if isinstance(given, Path | str):
        given = RunningStats() if str(given) == RUNNING else gradient_stats.load(given)
    return given.priors(own)


@contextmanager
def _plainly(model: Any) -> Iterator[None]:
    """Read as elsewhere, whatever modes the caller has set."""
    with torch.inference_mode(False), torch.autocast(model.device.type, enabled=False):
        try:
            yield
        finally:
            torch.clear_autocast_cache()  # it holds what the weights were


class Session:
    """A model that learns from what it reads; `adapt` makes one.

    All that is read, and what `generate` writes, is one text that goes on. A session can be
    entered again and goes on where it was; outside of `with` it reads just so, but the model does
    not follow it.
    """

    def __init__(
        self,
        reader: Transformer,
        own: Any,
        predictor: Dynamic,
        tokenizer: Any,
        segment_length: int,
        rule: Rule,
    ) -> None:
        self.model, self.tokenizer, self.predictor = reader.model, tokenizer, predictor
        self.rule, self.segment_length = rule, segment_length
        self._reader, self._own = reader, own
        self._last: Tensor | None = None  # (1, 1) token that was scored and not read on from
        self._hash: str | None = None
        predictor.position = torch.zeros(1, dtype=torch.long)  # one stream, from the beginning
        read_with = predictor.weights(as_read=True)  # copied now, while the model has its own
        theirs = dict(reader.named_parameters())
        self._pairs = [(theirs[name], read_with[name]) for name in read_with if name in theirs]
        self._trained: list[Tensor] = []  # what the parameters point at when nobody adapts
        self._added = own.reading(read_with) if isinstance(own, Added) else None
        self._forward: Any = None  # of the model's instance, before the class's
        self._ids: set[int] = set()  # of the model's parameters, while they are swapped

    def __enter__(self) -> Self:
        _refuse_nested(self.model)
        self._ids = {id(parameter) for parameter in self.model.parameters()}
        _adapting.update(self._ids)
        self._trained = [parameter.data for parameter, _ in self._pairs]
        _point(self._pairs)
        if self._added is not None:
            self._forward = vars(self.model).get("forward")
            device = self.model.device.type
            self.model.forward = _within(self._added, self.model.forward, device)
        return self

    def __exit__(self, *_: object) -> None:
        self._point_back()
        if self._added is not None:
            del self.model.forward
            if self._forward is not None:
                self.model.forward = self._forward
        self._trained = []
        _adapting.difference_update(self._ids)

    def _point_back(self) -> None:
        """Let the parameters be what they were, if they are not."""
        parameters = [parameter for parameter, _ in self._pairs]
        _point(list(zip(parameters, self._trained, strict=False)))

    def read(self, text: str | Tensor, *, learn: bool = True) -> Scores:
        """Return the scores of a text, or of (1, T) tokens, having learned from each segment.

        It goes on from what was read before. What fills no segment at the end of a text is one.
        Tokens are read as they are; before a text comes what the tokenizer begins one with.
        """
        with _plainly(self.model):
            tokens = self._tokens(text)
            stream = tokens if self._last is None else torch.cat([self._last, tokens], 1)
            nats = [torch.zeros(1, 0)]
            with self._unbroken():
                for segment in evaluate(self._by(learn), stream, self.segment_length):
                    if not segment.isfinite().all():
                        raise ValueError(
                            f"the model diverged: its probabilities left all bounds with "
                            f"{self.rule}; reset the session, and give a rule with a lower "
                            "learning rate"
                        )
                    nats.append(segment.cpu())
            if stream.shape[1]:
                self._last = stream[:, -1:]
            return Scores(stream[0, 1:], torch.cat(nats, 1)[0])

    def generate(
        self,
        max_new_tokens: int = 100,
        *,
        learn: bool = False,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Return (1, N) tokens that follow on what was read, having learned from them if asked.

        They are part of what was read, then. It ends with a token that ends a text.
        """
        with _plainly(self.model):
            start = self._last
            if start is None:
                start = self._beginning()
            if not start.numel():
                raise ValueError("there is nothing to go on from; read a text first")
            predictor, found = self._by(learn), []
            ends = self._ends()
            tokens = generation.generate(
                predictor,
                start,
                max_new_tokens,
                self.segment_length,
                temperature=temperature,
                top_k=top_k,
                top_p=top_p,
                generator=generator,
            )
            with self._unbroken():
                for token in tokens:
                    found.append(token)
                    if token in ends:
                        break
                written = torch.tensor([found], dtype=torch.long)
                if rest := len(found) % self.segment_length:  # of the segment that is open
                    predictor.learn(written[:, -rest:])
            self._last = written[:, -1:] if found else self._last
            return written

    def reset(self, *, weights: bool = True, state: bool = True) -> None:
        """Go back to the trained weights, before the first token, or both."""
        with _plainly(self.model):
            self.predictor.reset(weights=weights, state=state)
        if state:
            self._last = None

    def save(self, folder: Path | str, *, dtype: torch.dtype | None = None) -> None:
        """Write what was learned, and no more of the model; `dtype` in fewer bits (`deltas.py`)."""
        about = self._about() | {
            "rule": self.rule.to_json(),
            "segment_length": self.segment_length,
            "tokens": int(self.predictor.position),
        }
        deltas.save(folder, self._own, self.predictor, about, dtype)

    def load(self, folder: Path | str) -> None:
        """Put what `save` wrote in the place of what was learned so far."""
        with _plainly(self.model):
            deltas.load(folder, self._own, self.predictor, self._about())

    @contextmanager
    def _unbroken(self) -> Iterator[None]:
        """Begin a text anew if this one breaks off in a segment; what was learned stays."""
        try:
            yield
        except BaseException:  # an interrupt by hand as well
            self.reset(weights=False)
            raise

    def _tokens(self, text: str | Tensor) -> Tensor:
        """Return (1, T) tokens to read."""
        if isinstance(text, str):
            if self.tokenizer is None:
                raise ValueError("a text needs a tokenizer; give it to adapt, or read tokens")
            found = self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
            tokens = torch.tensor([found], dtype=torch.long)
            return torch.cat([self._beginning(), tokens], 1) if self._last is None else tokens
        tokens = text.detach().cpu().long().clone()
        tokens = tokens[None] if tokens.dim() == 1 else tokens
        if tokens.dim() != 2 or len(tokens) != 1:
            raise ValueError(f"tokens to read are (1, T), one text; got {tuple(text.shape)}")
        symbols = self._reader.symbols
        if tokens.numel() and not 0 <= int(tokens.min()) <= int(tokens.max()) < symbols:
            raise ValueError(
                f"tokens of this model are 0 to {symbols - 1:,}; got {int(tokens.min())} to "
                f"{int(tokens.max()):,}"
            )
        return tokens

    def _beginning(self) -> Tensor:
        """Return (1, 0 or 1): what the tokenizer begins a text with."""
        begin = getattr(self.tokenizer, "bos_token_id", None)
        return torch.tensor([[] if begin is None else [begin]], dtype=torch.long)

    def _ends(self) -> set[int]:
        """Return the tokens that end a text."""
        config = getattr(self.model, "generation_config", None)
        ends = getattr(config, "eos_token_id", None)
        return set(ends) if isinstance(ends, list | tuple) else set() if ends is None else {ends}

    def _by(self, learn: bool) -> Dynamic | _Following:
        """Return what reads on."""
        return self.predictor if learn else _Following(self.predictor)

    def _about(self) -> dict[str, Any]:
        """Return which model it is, by its trained weights."""
        if self._hash is None:
            self._point_back()
            try:
                self._hash = fingerprint(self._reader)
            finally:
                if self._trained:
                    _point(self._pairs)
        return {"model": self._hash, "architecture": self._reader.architecture}


class _Following:
    """A predictor that reads on with the weights as they are, and learns nothing."""

    def __init__(self, predictor: Dynamic) -> None:
        self._predictor = predictor
        self.predict, self.reset = predictor.predict, predictor.reset
        self.state_dict, self.load_state_dict = predictor.state_dict, predictor.load_state_dict

    def learn(self, targets: Tensor) -> None:
        """End the segment."""
        self._predictor.learn(torch.full_like(targets, PAD))


def _within(added: Any, forward: Any, device: str) -> Any:
    """Return a forward pass with a change added to its matrices."""

    @functools.wraps(forward)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if torch.is_autocast_enabled(device):
            raise ValueError(
                "a low-rank change cannot be added under autocast; leave that out, load the model "
                "in fewer bits, or give another target"
            )
        with added:
            return forward(*args, **kwargs)

    return wrapped


def _point(pairs: list[tuple[nn.Parameter, Tensor]]) -> None:
    """Let parameters be tensors that are there already."""
    for parameter, tensor in pairs:
        parameter.data = tensor
    torch.clear_autocast_cache()  # it holds what they were


def _refuse_nested(model: nn.Module) -> None:
    if not _adapting.isdisjoint(map(id, model.parameters())):
        raise ValueError(
            f"this {type(model).__name__} adapts in a session already; leave that one first, or "
            "reset it"
        )
