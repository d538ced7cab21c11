"""`dyneval tune`: the best settings on the validation split."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Option

from dyneval.cli.options import (
    Carry,
    Context,
    ContextPolicy,
    Corpus,
    Device,
    Documents,
    DType,
    Engine,
    Model,
    Quiet,
    SegmentLength,
    Split,
    Stats,
    Streams,
    Target,
    Threads,
    Unknown,
    given,
    loading,
    use,
)


def tune(
    model: Model,
    corpus: Corpus,
    split: Split = "valid",
    documents: Documents = None,
    carry: Carry = "none",
    streams: Streams = 1,
    row: Annotated[
        list[str] | None,
        Option(help="What to tune: dynamic, or a row of Table 1; may be repeated."),
    ] = None,
    table: Annotated[
        bool, Option("--table", help="Tune every row of the paper's Table 1.")
    ] = False,
    rule: Annotated[str, Option(help="The rule of `dynamic`.", metavar="RULE")] = "rms+rms-decay",
    learning_rate: Annotated[float | None, Option(help="η of the first trial.")] = None,
    decay_rate: Annotated[float | None, Option(help="λ of the first trial.")] = None,
    epsilon: Annotated[float | None, Option(help="ε, where it is not tuned.")] = None,
    target: Target = None,
    segment_length: SegmentLength = None,
    vary: Annotated[
        str, Option(help="What to tune: also epsilon, segment_length.")
    ] = "learning_rate,decay_rate",
    trials: Annotated[int, Option(help="Trials, for each row alike.")] = 12,
    prefix: Annotated[int, Option(help="Tokens that a trial reads.")] = 20_000,
    confirm: Annotated[int, Option(help="Best trials to read the whole split with.")] = 2,
    limit: Annotated[int | None, Option(help="The whole split is so many tokens.")] = None,
    seed: Annotated[int, Option(help="Of the trials.")] = 1,
    sampler: Annotated[
        str, Option(help="tpe, or grid: the authors' 6 × 4 pairs of η and λ.")
    ] = "tpe",
    stats: Stats = None,
    out: Annotated[
        Path | None, Option(help="The settings file to write (default: the model folder's)")
    ] = None,
    unknown: Unknown = None,
    force: Annotated[bool, Option("--force", help="Tune on a test split all the same.")] = False,
    context: Context = None,
    context_policy: ContextPolicy = None,
    dtype: DType = "float32",
    engine: Engine = "auto",
    device: Device = "auto",
    threads: Threads = None,
    quiet: Quiet = False,
) -> None:
    """Find the best learning rate and decay on the validation split, and keep them in a file.

    Trials are kept in a journal beside that file: the same command goes on with them.
    """
    use(threads)
    from dyneval import devices, models, report, settings, targets, tuning
    from dyneval.documents import load
    from dyneval.progress import bars

    if split == "test" and not force:
        raise ValueError(
            "settings tuned on a test split say nothing about it; tune on valid, or --force it"
        )
    how = loading(context, context_policy, dtype)
    checkpoint, folder = models.load(model, devices.find(device), how), models.folder_of(model)
    with bars("tokens", quiet=quiet):  # of a download
        text = load(corpus, checkpoint.vocabulary, unknown, documents)  # type: ignore[arg-type]
    default = settings.default_length(checkpoint.vocabulary)
    length = default if segment_length is None else segment_length
    rule_flags = given(
        rule=rule,
        learning_rate=learning_rate,
        decay_rate=decay_rate,
        epsilon=epsilon,
        target=target,
    )
    rows = settings.table_1(length)
    name = targets.name_of(target or targets.ALL)
    rows[name] = settings.choose({}, length, rule_flags, None)["dynamic"]
    names = list(settings.table_1(length)) if table else row or [name]
    if unknown_rows := set(names) - set(rows):
        raise ValueError(f"there is no row {unknown_rows.pop()!r}; give some of {', '.join(rows)}")
    names_varied = tuple(vary.replace("-", "_").split(","))
    plan = tuning.Plan(trials, prefix, confirm, names_varied, seed, sampler)  # type: ignore[arg-type]
    path = out or folder / settings.FILE
    with bars("tokens", quiet=quiet) as update:

        def show(name: str, at: tuning.Progress) -> None:
            figure = report.running(at.nats, checkpoint.vocabulary.kind)
            best = report.running(at.best, checkpoint.vocabulary.kind) if at.best else "–"
            what = f"{name}, trial {at.trial + 1} of {at.trials}"
            update(what, at.done, at.total, f"{figure}, best {best}")

        tuned = tuning.tune_rows(
            {name: rows[name] for name in names},
            checkpoint,
            settings.find_statistics(
                [rows[name] for name in names], checkpoint.model, folder, stats
            ),
            text,
            split or "valid",
            plan,
            path,
            show,
            limit,
            engine,  # type: ignore[arg-type]
            documents,
            carry,  # type: ignore[arg-type]
            streams,
        )
    for name, best in tuned.items():
        nats = best.record["validation_nats"]
        print(f"{name}: {best.settings} · {report.running(nats, checkpoint.vocabulary.kind)}")
    print(f"settings: {path}")
