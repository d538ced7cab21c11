"""Collect a model's gradient statistics over training text, through the one loop of reading."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any

from dyneval.corpora import Corpus
from dyneval.evaluation import evaluate
from dyneval.gradient_stats import GradientStats
from dyneval.predictors import Collector, Static
from dyneval.processes import ALONE, Group
from dyneval.streams import parallel


def collect(
    model: Any,
    corpus: Corpus,
    segment_length: int,
    *,
    split: str = "train",
    batch_size: int = 100,
    skip: int = 0,
    batches: int | None = None,
    report: Callable[[int, int], None] | None = None,
    group: Group = ALONE,
) -> GradientStats:
    """Return √MS_g over the batches of a split, or over `batches` of them from batch `skip` on.

    The split is cut into `batch_size` contiguous streams; a batch is n tokens of each, and the
    shorter last one counts as one. The hidden state is carried over, through skipped batches too.
    The processes of a group share the streams, and each returns the statistics of all of them.
    """
    if segment_length < 1:
        raise ValueError(f"a segment of {segment_length} tokens cannot be read; give 1 or more")
    if batch_size < 1 or skip < 0 or (batches is not None and batches < 1):
        raise ValueError(
            f"{batches} batches of {batch_size} streams after {skip} that are skipped cannot be "
            "read; give batches and a batch size of at least 1, and skip 0 or more"
        )
    stream = group.rows(parallel(corpus.read(split).stream[0], batch_size))
    total = -(-(stream.shape[1] - 1) // segment_length)
    if skip >= total:
        raise ValueError(f"{corpus.name} ({split}) has no batch left after {skip}")
    total = min(total, skip + (batches or total))
    collector, begin = Collector(model, group), skip * segment_length
    if skip:  # these are only read, for the hidden state after them: so parts are the whole
        static = Static(model)
        skipped = evaluate(static, stream[:, : begin + 1], segment_length)
        for done, _ in enumerate(skipped, 1):
            if report:
                report(done, total)
        collector.load_state_dict(collector.state_dict() | static.state_dict())
    batch = evaluate(collector, stream[:, begin:], segment_length)
    for done, _ in enumerate(islice(batch, total - skip), skip + 1):
        if report:
            report(done, total)
    return collector.stats(corpus.name, corpus.checksum(split))
