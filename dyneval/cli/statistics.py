"""`dyneval gradient-stats` and `merge-stats`: what the RMS rules need (eq. 5)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from dyneval.cli.options import (
    Context,
    ContextPolicy,
    Corpus,
    Device,
    DType,
    Model,
    Quiet,
    SegmentLength,
    Target,
    Threads,
    Unknown,
    loading,
    use,
)


def gradient_stats(
    model: Model,
    corpus: Corpus,
    split: Annotated[str, Option(help="The training text.")] = "train",
    segment_length: SegmentLength = None,
    batch_size: Annotated[
        int | None,
        Option(help="Streams read side by side (default: 100, or 1 for a tokenizer's tokens)"),
    ] = None,
    batches: Annotated[
        int | None,
        Option(help="Read so many batches (default: all, or 200 for a tokenizer's tokens)"),
    ] = None,
    skip: Annotated[int, Option(help="Begin after so many batches, to collect in parts.")] = 0,
    target: Target = None,
    half: Annotated[bool, Option("--half", help="Store them in 16 bits (bfloat16).")] = False,
    out: Annotated[Path | None, Option(help="File to write (default: the model folder's)")] = None,
    unknown: Unknown = None,
    context: Context = None,
    context_policy: ContextPolicy = None,
    dtype: DType = "float32",
    device: Device = "auto",
    threads: Threads = None,
    quiet: Quiet = False,
) -> None:
    """Collect how large each weight's gradients are on the training text (eq. 5).

    Under torchrun, processes share the streams: torchrun --nproc-per-node 2 -m dyneval.cli …
    """
    use(threads)
    import torch

    from dyneval import collection, corpora, gradient_stats, models, processes, storage, targets
    from dyneval.progress import bars
    from dyneval.settings import default_length

    group = processes.join()
    how = loading(context, context_policy, dtype)
    checkpoint = models.load(model, group.device(device), how)
    adapted = targets.parse(target or targets.ALL)
    path = out or models.folder_of(model) / gradient_stats.file_of(str(adapted))
    storage.check_writable(path)
    hidden = quiet or not group.first
    with bars("batches", quiet=hidden):  # of a download
        text = corpora.load(corpus, checkpoint.vocabulary, unknown)  # type: ignore[arg-type]
    default = default_length(checkpoint.vocabulary)
    length = default if segment_length is None else segment_length
    theirs = checkpoint.vocabulary.kind == "tokens"  # no training text of such is at hand
    if batch_size is None:
        batch_size = 1 if theirs else 100
    if batches is None and theirs:
        batches = 200
    with bars("batches", quiet=hidden) as update:
        collected = collection.collect(
            adapted.of(checkpoint.model),
            text,
            length,
            split=split,
            batch_size=batch_size,
            skip=skip,
            batches=batches,
            report=lambda done, total: update("gradient statistics", done, total, ""),
            group=group,
        )
    if not group.first:
        return
    collected.save(path, torch.bfloat16 if half else None)
    print(f"{collected.collection.batches:,} batches of {batch_size} streams: {path}")


def merge_stats(
    out: Annotated[Path, Argument(help="File to write.")],
    parts: Annotated[list[Path], Argument(help="Files of `gradient-stats`.")],
) -> None:
    """Merge gradient statistics that were collected in parts."""
    from dyneval import gradient_stats

    merged = gradient_stats.merge([gradient_stats.load(part) for part in parts])
    merged.save(out)
    print(f"{merged.collection.batches:,} batches: {out}")
