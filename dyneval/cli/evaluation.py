"""`dyneval evaluate`: static and dynamic side by side."""

from __future__ import annotations

import json as json_
import math
import sys
from pathlib import Path
from typing import Annotated

from typer import Option

from dyneval.cli.options import (
    Average,
    CacheSize,
    Carry,
    Checkpoint,
    Context,
    ContextPolicy,
    Corpus,
    DecayRate,
    Device,
    Documents,
    DType,
    Engine,
    Epsilon,
    Json,
    LearningRate,
    Log,
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
    Streams,
    Target,
    TensorBoard,
    Threads,
    Unknown,
    bytes_of,
    check_resume,
    first_release,
    given,
    loading,
    rows_of,
    use,
)


def evaluate(
    model: Model = "bundled",
    corpus: Corpus = "sample",
    split: Split = None,
    limit: Annotated[int | None, Option(help="Read so many tokens only.")] = None,
    documents: Documents = None,
    carry: Carry = "none",
    streams: Streams = 1,
    memory: Memory = None,
    rule: Rule = None,
    learning_rate: LearningRate = None,
    decay_rate: DecayRate = None,
    epsilon: Epsilon = None,
    from_first_release: Annotated[
        str | None,
        Option(
            help="η, λ and ε are in the units of the authors' first release: the number of "
            "batches of its statistics and of its tensors, as 1859,14.",
            metavar="BATCHES,TENSORS",
        ),
    ] = None,
    segment_length: SegmentLength = None,
    average: Average = None,
    target: Target = None,
    stats: Stats = None,
    cache: Annotated[bool, Option("--cache", help="Run the neural cache too, and both.")] = False,
    cache_size: CacheSize = None,
    cache_weight: Annotated[float | None, Option(help="The cache's part of the mixture.")] = None,
    cache_scale: Annotated[float | None, Option(help="ω in exp(ω h·h').")] = None,
    settings: SettingsFiles = None,
    unknown: Unknown = None,
    first_token: Annotated[str, Option(help="The text's first token: unscored or uniform.")] = (
        "unscored"
    ),
    context: Context = None,
    context_policy: ContextPolicy = None,
    dtype: DType = "float32",
    engine: Engine = "auto",
    device: Device = "auto",
    threads: Threads = None,
    save: Save = None,
    figure: Annotated[Path | None, Option(help="Draw the mean so far (.png, .svg, .pdf).")] = None,
    documents_csv: Annotated[
        Path | None, Option(help="Write a row for each document (.csv).")
    ] = None,
    report_folder: Annotated[
        Path | None,
        Option("--report", help="Write a page, figures and tables.", metavar="FOLDER"),
    ] = None,
    log: Log = None,
    tensorboard: TensorBoard = None,
    checkpoint: Checkpoint = None,
    checkpoint_every: Annotated[float, Option(help="Seconds between checkpoints.")] = 30.0,
    resume: Resume = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Score a text with a model that learns as it reads, beside the same model that does not."""
    use(threads)
    from dyneval import dossier, models, report, results, storage
    from dyneval.progress import bars, logs
    from dyneval.run import Progress, Run
    from dyneval.settings import choose, default_length

    check_resume(resume, checkpoint)
    for path, endings in (
        (save, results.ENDINGS),
        (documents_csv, storage.CSV_ENDINGS),
        (figure, report.ENDINGS),
    ):
        if path:
            storage.check_writable(path, endings)
    if report_folder:
        dossier.check(report_folder)
    if documents_csv and not documents:
        raise ValueError("--documents-csv has no documents to list; cut the text with --documents")
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
    if from_first_release is not None:
        rule_flags |= first_release(from_first_release, rule_flags)
    cache_flags = given(cache_size=cache_size, cache_weight=cache_weight, cache_scale=cache_scale)
    predictors = choose(
        rows_of(model, settings, stats),
        default_length(vocabulary),
        rule_flags,
        cache_flags if cache or cache_flags else None,
    )
    run = Run(
        model,
        corpus,
        predictors,
        split,
        stats,
        unknown,  # type: ignore[arg-type]
        first_token,  # type: ignore[arg-type]
        limit,
        engine,  # type: ignore[arg-type]
        device,
        documents,
        carry,  # type: ignore[arg-type]
        streams,
        bytes_of(memory),
        loading(context, context_policy, dtype),
    )
    with bars("tokens", quiet=quiet) as update, logs(log, tensorboard) as note:

        def show(at: Progress) -> None:
            figure = report.running(at.nats / max(1, at.done), vocabulary.kind)
            update(at.name, at.done, at.total, figure)
            bits = at.nats / math.log(2) / max(1, at.done)
            note(at.name, at.done, {"bits_per_token": bits, "seconds": at.seconds})

        result = run.execute(show, folder=checkpoint, resume=resume, save_every=checkpoint_every)
    if save:
        result.save(save)
    if documents_csv:
        storage.write_rows(documents_csv, result.documents())
    if json:
        print(json_.dumps(result.to_json()))  # in ASCII, which every terminal can write
    else:
        report.show(result)
    if figure:
        report.figure(result, figure)
        print(f"figure: {figure}", file=sys.stderr if json else sys.stdout)
    if report_folder:
        path = dossier.write({report_folder.name: result}, report_folder)
        print(f"report: {path}", file=sys.stderr if json else sys.stdout)
    diverged = [score.diverged for score in result.scores.values() if score.diverged]
    if diverged:
        raise ValueError(diverged[0])
