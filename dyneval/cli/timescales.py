"""`dyneval timescales`: the loss by position, static against dynamic, over many sequences."""

from __future__ import annotations

import json as json_
import sys
from pathlib import Path
from typing import Annotated

from typer import Option

from dyneval.cli.options import (
    Average,
    Checkpoint,
    Corpus,
    DecayRate,
    Device,
    Engine,
    Epsilon,
    Json,
    LearningRate,
    Memory,
    Model,
    Quiet,
    Resume,
    Rule,
    Save,
    SegmentLength,
    SettingsFiles,
    Split,
    Stats,
    Target,
    Threads,
    Unknown,
    bytes_of,
    check_resume,
    given,
    rows_of,
    use,
)


def timescales(
    model: Model = "bundled",
    corpus: Corpus = "sample",
    split: Split = None,
    length: Annotated[int, Option(help="Tokens of a sequence.")] = 10_000,
    sequences: Annotated[
        int | None, Option(help="How many of them (default: all that there are)")
    ] = None,
    bucket: Annotated[int, Option(help="Tokens that a point of the curve stands for.")] = 100,
    last: Annotated[int, Option(help="Tell the gain over so many last tokens.")] = 2000,
    break_even: Annotated[
        bool, Option("--break-even", help="Tell after how many tokens learning has paid.")
    ] = False,
    streams: Annotated[int, Option(help="Sequences to read side by side.")] = 1,
    memory: Memory = None,
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
    engine: Engine = "auto",
    device: Device = "auto",
    threads: Threads = None,
    save: Save = None,
    csv: Annotated[Path | None, Option(help="Write a row for each bucket (.csv).")] = None,
    figure: Annotated[Path | None, Option(help="Draw the curves (.png, .svg, .pdf).")] = None,
    checkpoint: Checkpoint = None,
    resume: Resume = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Read many sequences, each from the trained weights, and tell what learning gains where."""
    use(threads)
    from dyneval import models, report, storage, timescale_report
    from dyneval import timescales as timescales_
    from dyneval.progress import bars
    from dyneval.settings import choose, default_length

    check_resume(resume, checkpoint)
    for path, endings in (
        (save, timescales_.ENDINGS),
        (csv, storage.CSV_ENDINGS),
        (figure, report.ENDINGS),
    ):
        if path:
            storage.check_writable(path, endings)
    timescales_.check(bucket, last)
    vocabulary = models.load_vocabulary(model)
    rule_flags = given(
        rule=rule,
        learning_rate=learning_rate,
        decay_rate=decay_rate,
        epsilon=epsilon,
        segment_length=segment_length,
        average=average,
        target=target,
    )
    predictors = choose(
        rows_of(model, settings, stats), default_length(vocabulary), rule_flags, None
    )
    part, sources = (split, length, sequences), (stats, unknown, engine, device)
    task = timescales_.Sequences(model, corpus, predictors, *part, *sources)  # type: ignore[arg-type]
    with bars("tokens", quiet=quiet) as update:

        def show(at: timescales_.Progress) -> None:
            update(at.name, at.done, at.total, report.running(at.nats, vocabulary.kind))

        found = task.execute(
            show, streams=streams, memory=bytes_of(memory), folder=checkpoint, resume=resume
        )
    value = found.to_json(bucket, last, break_even)
    if save:
        found.save(save, value)
    if csv:
        timescale_report.write_csv(value, csv)
    if json:
        print(json_.dumps(value))
    else:
        timescale_report.show(value)
    if figure:
        timescale_report.figure(value, figure)
        print(f"figure: {figure}", file=sys.stderr if json else sys.stdout)
