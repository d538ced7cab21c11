"""Generation: a model writes on, and learns from what it writes as it learned from what it read.

The conditioning and the sampled text are one stream, cut into segments as `evaluate` cuts it:
within a segment the weights stay, and when it is full they take a step on it, whether its tokens
were given, sampled, or both. A predictor that does not learn samples in the ordinary way.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Generator, Tensor

from dyneval import corpora, devices, kernels, models, provenance
from dyneval.evaluation import evaluate
from dyneval.models.huggingface import Loading
from dyneval.predictors import Predictor
from dyneval.reading import Categorical
from dyneval.settings import Settings, find_statistics
from dyneval.vocabularies import Unknown, Vocabulary


class Writer(Predictor, Protocol):
    """A predictor of symbols: it tells the probability of each."""

    def predict(self, tokens: Tensor) -> Categorical:
        """(B, T) tokens just read -> what follows each."""
        ...


@dataclass(frozen=True)
class Sampling:
    """How a token is drawn from what a model expects.

    p ∝ exp(log p / temperature) over the `top_k` most probable symbols; of these, the fewest
    most probable ones that together have `top_p`. Temperature 0 takes the most probable one.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < math.inf:
            raise ValueError(f"a temperature of {self.temperature} is none; give 0 or more")
        if self.top_k is not None and self.top_k < 1:
            raise ValueError(f"top_k={self.top_k} leaves no symbol to sample; give 1 or more")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ValueError(f"top_p={self.top_p} is no part of 1; give more than 0, at most 1")

    def probabilities(self, log_probs: Tensor) -> Tensor:
        """(V,) log-probabilities -> (V,) what is sampled from, in float64."""
        ordered, symbols = log_probs.double().sort(descending=True, stable=True)
        # from the largest on, so that a tiny temperature divides 0 at the first
        kept = torch.softmax((ordered - ordered[0]) / (self.temperature or 1), 0)
        kept[(self.top_k or len(kept)) if self.temperature else 1 :] = 0
        if self.top_p is not None:
            kept /= kept.sum()
            kept[kept.cumsum(0) - kept >= self.top_p] = 0
        return torch.zeros_like(kept).scatter_(0, symbols, kept / kept.sum())

    def draw(self, log_probs: Tensor, generator: Generator | None = None) -> int:
        """Return a symbol of (V,) log-probabilities; drawn on the CPU, wherever they are."""
        log_probs = log_probs.cpu()
        if log_probs.isnan().any():
            raise ValueError(
                "the model diverged: its probabilities left all bounds; lower the learning rate "
                "(--learning-rate) or raise --epsilon"
            )
        return int(torch.multinomial(self.probabilities(log_probs), 1, generator=generator))


def condition(
    predictor: Predictor,
    conditioning: Tensor,
    segment_length: int,
    report: Callable[[int, int], None] | None = None,
) -> Tensor:
    """Read the whole segments of a (1, T) text -> (1, 1 to n) its end, for `generate` to go on.

    The predictor then stands between two segments, where `state_dict` may be taken.
    """
    if conditioning.dim() != 2 or len(conditioning) != 1 or not conditioning.shape[1]:
        raise ValueError(
            f"a conditioning of {tuple(conditioning.shape)} cannot be gone on from; give (1, T) "
            "tokens, at least one: the end of a line, for instance"
        )
    whole = (conditioning.shape[1] - 1) // max(1, segment_length) * segment_length
    done = 0
    for nats in evaluate(predictor, conditioning[:, : whole + 1], segment_length):
        done += nats.shape[1]
        if report:
            report(done, whole)
    return conditioning[:, whole:]


def generate(
    predictor: Writer,
    conditioning: Tensor,
    count: int,
    segment_length: int,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    generator: Generator | None = None,
) -> Iterator[int]:
    """Return the iterator of `count` tokens that a predictor writes after a (1, T) text.

    What it learns from are the tokens, whatever the temperature they were drawn at.
    """
    if count < 0 or segment_length < 1:
        raise ValueError(
            f"{count} tokens in segments of {segment_length} cannot be generated; give 0 or more, "
            "in segments of 1 or more"
        )
    return _generate(
        predictor,
        conditioning,
        count,
        segment_length,
        Sampling(temperature, top_k, top_p),
        generator,
    )


def _generate(
    predictor: Writer,
    conditioning: Tensor,
    count: int,
    segment_length: int,
    sampling: Sampling,
    generator: Generator | None,
) -> Iterator[int]:
    unread = condition(predictor, conditioning, segment_length)
    targets = unread[:, 1:]  # of the open segment
    for _ in range(count):
        token = sampling.draw(predictor.predict(unread).log_probs[0, -1].cpu(), generator)
        unread = conditioning.new_full((1, 1), token)
        targets = torch.cat([targets, unread], 1)
        if targets.shape[1] == segment_length:
            predictor.learn(targets)
            targets = targets[:, :0]
        yield token


def samples(
    predictor: Writer,
    conditioning: Tensor,
    count: int,
    segment_length: int,
    seeds: Collection[int],
    sampling: Sampling,
) -> Iterator[tuple[int, Iterator[int]]]:
    """Yield for each seed what is generated from it; the conditioning is read once for all.

    Each sample is to be used up before the next one is asked for.
    """
    end = condition(predictor, conditioning, segment_length)
    state = predictor.state_dict()
    for seed in seeds:
        predictor.reset()
        predictor.load_state_dict(state)
        generator = Generator().manual_seed(seed)
        how = vars(sampling)
        yield seed, generate(predictor, end, count, segment_length, generator=generator, **how)


def words(text: str) -> list[str]:
    """Return the white-space separated words of a text: their letters, in lower case.

    The first and the last piece are left out: they may be cut.

    >>> words("bre: El señor 1 Presidente, dijo")
    ['el', 'señor', 'presidente']
    """
    letters = ("".join(filter(str.isalpha, piece)) for piece in text.split()[1:-1])
    return [word.lower() for word in letters if word]


def count_known(texts: Iterable[str], known: Collection[str]) -> dict[str, Any]:
    """Return how many words some texts have, how many of them are known, and which share.

    >>> count_known(["la casa blanca no", "a la mar a"], {"casa", "la"})
    {'words': 4, 'known': 2, 'share': 0.5}
    """
    found = [word for text in texts for word in words(text)]
    count = sum(word in known for word in found)
    return {"words": len(found), "known": count, "share": count / len(found) if found else None}


@dataclass(frozen=True)
class Writing:
    """A model that goes on from a part of a corpus, once for each seed."""

    model: str | Path
    corpus: str
    settings: Settings
    split: str | None = None
    skip: int = 0  # tokens of the split to leave out first
    limit: int | None = None  # tokens of it to read; None: all
    length: int = 300  # tokens to generate
    sampling: Sampling = Sampling()
    seeds: Sequence[int] = (1,)
    known: str | None = None  # a text whose words are known ones
    stats: str | Path | None = None
    unknown: Unknown | None = None
    engine: kernels.Name = "auto"
    device: str = "auto"  # cpu, cuda, or cuda where there is one
    loading: Loading = Loading()  # of a model of Hugging Face

    def __post_init__(self) -> None:
        if self.skip < 0 or (self.limit is not None and self.limit < 1):
            raise ValueError(
                f"{self.limit} tokens after {self.skip} cannot be read; give a limit of 1 or more "
                "and skip 0 or more"
            )
        if self.length < 0 or not self.seeds:
            raise ValueError(
                f"{len(self.seeds)} samples of {self.length} tokens cannot be generated; give 1 "
                "or more, of 0 tokens or more"
            )

    def begin(self, report: Callable[[int, int], None] | None = None) -> Begun:
        """Read the conditioning."""
        checkpoint = models.load(self.model, devices.find(self.device), self.loading)
        settings = self.settings
        corpus = corpora.load(self.corpus, checkpoint.vocabulary, self.unknown)
        text = corpus.read(self.split)
        stop = len(text) if self.limit is None else self.skip + self.limit
        part = text[self.skip : stop]
        if not len(part):
            raise ValueError(
                f"{self.corpus} has {len(text)} tokens, and none to go on from behind {self.skip}; "
                "a model needs one to begin with, the end of a line for instance"
            )
        known = None
        if self.known is not None:
            rest = [text.tokens[: self.skip], text.tokens[stop:]]  # without the conditioning
            if self.known != self.corpus:
                rest = [corpora.load(self.known, corpus.vocabulary, self.unknown).read().tokens]
            known = {word for each in rest for word in words(corpus.vocabulary.show(each))}
        folder = models.folder_of(self.model)
        stats = find_statistics([settings], checkpoint.model, folder, self.stats)
        predictor = settings.predictor(checkpoint.model, settings.reads(stats), self.engine)
        read = part.stream
        if (begin := checkpoint.vocabulary.begin) is not None:
            read = torch.cat([read.new_full((1, 1), begin), read], 1)
        end = condition(predictor, read, settings.segment_length, report)
        about = provenance.describe(self.model, checkpoint, corpus, self.split, stats) | {
            **{name: getattr(self, name) for name in ("skip", "limit", "length", "known")},
            "tokens": len(part),
            "sampling": asdict(self.sampling),
            "rule": str(settings),
            "predictor": settings.to_json(),
            "engine": predictor.engine,
        }
        return Begun(self, predictor, end, checkpoint.vocabulary, known, about)


@dataclass(frozen=True)
class Begun:
    """A conditioning that was read, and the predictor that goes on from it."""

    task: Writing
    predictor: Writer
    end: Tensor  # (1, 1 to n) the part of it that fills no segment
    vocabulary: Vocabulary
    known: set[str] | None
    about: dict[str, Any]

    def samples(self) -> Iterator[tuple[int, Iterator[str]]]:
        """Yield for each seed the text that is generated, in pieces as they come."""
        task = self.task
        length = task.settings.segment_length
        for seed, tokens in samples(
            self.predictor, self.end, task.length, length, task.seeds, task.sampling
        ):
            yield seed, self.vocabulary.spell(tokens)

    def to_json(self, texts: Mapping[int, str]) -> dict[str, Any]:
        """Return the samples of some seeds with how many of their words are known, and `run`."""

        def count(texts: Iterable[str]) -> dict[str, Any]:
            return {} if self.known is None else count_known(texts, self.known)

        rows = [{"seed": seed, "text": text} | count([text]) for seed, text in texts.items()]
        return count(texts.values()) | {"samples": rows, "run": self.about}
