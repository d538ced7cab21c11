"""`dyneval generate`: sample from a model that learns from what it writes."""

from __future__ import annotations

import io
import json as json_
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from typer import Option

from dyneval.cli.options import (
    Average,
    Context,
    ContextPolicy,
    DecayRate,
    Device,
    DType,
    Engine,
    Epsilon,
    Json,
    LearningRate,
    Model,
    Quiet,
    Rule,
    SegmentLength,
    SettingsFiles,
    Split,
    Stats,
    Target,
    Threads,
    Unknown,
    given,
    loading,
    rows_of,
    use,
)


def generate(
    model: Model = "bundled",
    conditioning: Annotated[
        str, Option(help="What to go on from: a corpus, a text file, or - for stdin.")
    ] = "sample",
    split: Split = None,
    skip: Annotated[int, Option(help="Leave out so many tokens of it first.")] = 0,
    limit: Annotated[int | None, Option(help="Read so many tokens of it only.")] = None,
    length: Annotated[int, Option(help="Tokens to generate.")] = 300,
    temperature: Annotated[
        float, Option(help="Below 1 more likely, 0 the likeliest each time.")
    ] = 1.0,
    top_k: Annotated[int | None, Option(help="Only among so many likeliest tokens.")] = None,
    top_p: Annotated[float | None, Option(help="Only among the likeliest that have so much.")] = (
        None
    ),
    seed: Annotated[int, Option(help="Of the first sample; the others' follow it.")] = 1,
    samples: Annotated[int, Option(help="Samples after the same text.")] = 1,
    static: Annotated[bool, Option("--static", help="Do not learn.")] = False,
    rule: Rule = None,
    learning_rate: LearningRate = None,
    decay_rate: DecayRate = None,
    epsilon: Epsilon = None,
    segment_length: SegmentLength = None,
    average: Average = None,
    target: Target = None,
    stats: Stats = None,
    settings: SettingsFiles = None,
    unknown: Unknown = None,
    known: Annotated[
        str | None,
        Option(help="Count the words that this text has, outside of the conditioning."),
    ] = None,
    context: Context = None,
    context_policy: ContextPolicy = None,
    dtype: DType = "float32",
    engine: Engine = "auto",
    device: Device = "auto",
    threads: Threads = None,
    save: Annotated[Path | None, Option(help="Write what --json prints (.json).")] = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Write on from a text with a model that learns from it and from what it writes."""
    use(threads)
    from dyneval import models, storage
    from dyneval.generation import Sampling, Writing
    from dyneval.progress import bars
    from dyneval.settings import choose, default_length

    if save:
        storage.check_writable(save, (".json",))
    rule_flags = given(
        rule=rule,
        learning_rate=learning_rate,
        decay_rate=decay_rate,
        epsilon=epsilon,
        segment_length=segment_length,
        average=average,
        target=target,
    )
    default = default_length(models.load_vocabulary(model))
    rows = choose(rows_of(model, settings, stats), default, rule_flags, None)
    row = rows.get("static" if static else "dynamic")
    if row is None:
        raise ValueError(f"the settings are of {', '.join(rows)}, not of dynamic; give a --rule")
    sampling, seeds = Sampling(temperature, top_k, top_p), range(seed, seed + samples)
    part = (split, skip, limit)
    how = loading(context, context_policy, dtype)
    sources = (known, stats, unknown, engine, device, how)
    task = Writing(model, conditioning, row, *part, length, sampling, seeds, *sources)  # type: ignore[arg-type]
    with bars("tokens", quiet=quiet) as update:
        begun = task.begin(lambda done, total: update("conditioning", done, total, ""))
    texts = {}
    for each, pieces in begun.samples():
        if samples > 1 and not json:
            print(f"seed {each}:")
        texts[each] = "".join(pieces if json else _shown(pieces))
    found = begun.to_json(texts)
    if save:
        storage.write_json(save, found)
    if json:
        print(json_.dumps(found))
    elif known:
        print(f"{found['known']:,} of {found['words']:,} words are in {known}")


def _shown(pieces: Iterator[str]) -> Iterator[str]:
    """Yield pieces of a text once they are printed."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # what a terminal cannot write becomes ?
        sys.stdout.reconfigure(errors="replace")
    for piece in pieces:
        print(piece, end="", flush=True)
        yield piece
    print()
