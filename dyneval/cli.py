"""The command line: flags in, one library call, a small table out.

A mistake gives one line and exit code 2. Torch is imported inside the commands, so that `--help`
is instant.
"""

from __future__ import annotations

import json as json_
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

if TYPE_CHECKING:
    from dyneval.settings import Settings

app = typer.Typer(
    help="Language models that learn from what they have just read.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # half of the time of --help would go into the frames around it
)

INTERRUPTED = 130  # the exit code of a program that Ctrl-C ended
# what Typer raises for a wrong flag; its own name for it has moved between versions
USAGE_ERROR: Any = typer.BadParameter.__base__

Model = Annotated[str, Argument(help="A checkpoint folder, or `bundled`.")]
Corpus = Annotated[
    str, Argument(help="A corpus (ptb, wikitext-2, text8, …), a text file, or - for stdin.")
]
Split = Annotated[str | None, Option(help="Which part of the corpus to read.")]
Unknown = Annotated[
    str | None, Option(help="Symbols outside the vocabulary: error, drop or unk.", metavar="POLICY")
]
Threads = Annotated[int | None, Option(help="Processor threads to use (default: all cores)")]
Quiet = Annotated[bool, Option("--quiet", help="Show no progress.")]
Stats = Annotated[
    Path | None, Option(help="Gradient statistics (default: those in the model's folder)")
]
SegmentLength = Annotated[
    int | None, Option(help="Tokens between updates, n (default: 5 for words, else 20)")
]
CacheSize = Annotated[int | None, Option(help="Pairs that the neural cache holds.")]


@app.command()
def evaluate(
    model: Model = "bundled",
    corpus: Corpus = "sample",
    split: Split = None,
    limit: Annotated[int | None, Option(help="Read so many tokens only.")] = None,
    rule: Annotated[
        str | None, Option(help="sgd, sgd+decay, rms+decay or rms+rms-decay.", metavar="RULE")
    ] = None,
    learning_rate: Annotated[float | None, Option(help="η")] = None,
    decay_rate: Annotated[float | None, Option(help="λ")] = None,
    epsilon: Annotated[float | None, Option(help="ε")] = None,
    segment_length: SegmentLength = None,
    average: Annotated[
        str | None, Option(help="avg(√MS_g): over `tensors` (the authors') or `weights`.")
    ] = None,
    stats: Stats = None,
    cache: Annotated[bool, Option("--cache", help="Run the neural cache too, and both.")] = False,
    cache_size: CacheSize = None,
    cache_weight: Annotated[float | None, Option(help="The cache's part of the mixture.")] = None,
    cache_scale: Annotated[float | None, Option(help="ω in exp(ω h·h').")] = None,
    settings: Annotated[
        list[Path] | None,
        Option(help="A file that `tune` wrote; may be repeated (default: the model folder's)"),
    ] = None,
    unknown: Unknown = None,
    first_token: Annotated[str, Option(help="The text's first token: unscored or uniform.")] = (
        "unscored"
    ),
    threads: Threads = None,
    save: Annotated[Path | None, Option(help="Write the result (.json, and .npz beside).")] = None,
    figure: Annotated[Path | None, Option(help="Draw the mean so far (.png, .svg, .pdf).")] = None,
    checkpoint: Annotated[Path | None, Option(help="Keep what was reached in a folder.")] = None,
    checkpoint_every: Annotated[float, Option(help="Seconds between checkpoints.")] = 30.0,
    resume: Annotated[bool, Option("--resume", help="Go on from the --checkpoint folder.")] = False,
    json: Annotated[bool, Option("--json", help="Print one JSON object.")] = False,
    quiet: Quiet = False,
) -> None:
    """Score a text with a model that learns as it reads, beside the same model that does not."""
    _use(threads)
    from dyneval import models, report, results, storage
    from dyneval.progress import bars
    from dyneval.run import Progress, Run
    from dyneval.settings import choose, default_length

    if resume and not checkpoint:
        raise ValueError("--resume goes on from a folder; name it with --checkpoint")
    if save:
        storage.check_writable(save, results.ENDINGS)
    if figure:
        storage.check_writable(figure, report.ENDINGS)
    vocabulary = models.load_vocabulary(model)
    rule_flags = _given(
        rule=rule,
        learning_rate=learning_rate,
        decay_rate=decay_rate,
        epsilon=epsilon,
        segment_length=segment_length,
        average=average,
    )
    cache_flags = _given(cache_size=cache_size, cache_weight=cache_weight, cache_scale=cache_scale)
    predictors = choose(
        _rows(model, settings),
        default_length(vocabulary),
        rule_flags,
        cache_flags if cache or cache_flags else None,
    )
    run = Run(model, corpus, predictors, split, stats, unknown, first_token, limit)  # type: ignore[arg-type]
    with bars("tokens", quiet=quiet) as update:

        def show(at: Progress) -> None:
            figure = report.running(at.nats / max(1, at.done), vocabulary.kind)
            update(at.name, at.done, at.total, figure)

        result = run.execute(show, folder=checkpoint, resume=resume, save_every=checkpoint_every)
    if save:
        result.save(save)
    if json:
        print(json_.dumps(result.to_json()))  # in ASCII, which every terminal can write
    else:
        report.show(result)
    if figure:
        report.figure(result, figure)
        print(f"figure: {figure}", file=sys.stderr if json else sys.stdout)
    diverged = [score.diverged for score in result.scores.values() if score.diverged]
    if diverged:
        raise ValueError(diverged[0])


@app.command()
def tune(
    model: Model,
    corpus: Corpus,
    split: Split = "valid",
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
    segment_length: SegmentLength = None,
    vary: Annotated[
        str, Option(help="What to tune: also epsilon, segment_length.")
    ] = "learning_rate,decay_rate",
    trials: Annotated[int, Option(help="Trials, for each row alike.")] = 12,
    prefix: Annotated[int, Option(help="Tokens that a trial reads.")] = 20_000,
    confirm: Annotated[int, Option(help="Best trials to read the whole split with.")] = 2,
    limit: Annotated[int | None, Option(help="The whole split is so many tokens.")] = None,
    seed: Annotated[int, Option(help="Of the trials.")] = 1,
    stats: Stats = None,
    out: Annotated[
        Path | None, Option(help="The settings file to write (default: the model folder's)")
    ] = None,
    unknown: Unknown = None,
    force: Annotated[bool, Option("--force", help="Tune on a test split all the same.")] = False,
    threads: Threads = None,
    quiet: Quiet = False,
) -> None:
    """Find the best learning rate and decay on the validation split, and keep them in a file.

    Trials are kept in a journal beside that file: the same command goes on with them.
    """
    _use(threads)
    from dyneval import corpora, gradient_stats, models, report, settings, tuning
    from dyneval.progress import bars

    if split == "test" and not force:
        raise ValueError(
            "settings tuned on a test split say nothing about it; tune on valid, or --force it"
        )
    checkpoint, folder = models.load(model), models.folder_of(model)
    text = corpora.load(corpus, checkpoint.vocabulary, unknown)  # type: ignore[arg-type]
    default = settings.default_length(checkpoint.vocabulary)
    length = default if segment_length is None else segment_length
    rule_flags = _given(
        rule=rule, learning_rate=learning_rate, decay_rate=decay_rate, epsilon=epsilon
    )
    rows = settings.table_1(length)
    rows["dynamic"] = settings.choose({}, length, rule_flags, None)["dynamic"]
    names = list(settings.table_1(length)) if table else row or ["dynamic"]
    if unknown_rows := set(names) - set(rows):
        raise ValueError(f"there is no row {unknown_rows.pop()!r}; give some of {', '.join(rows)}")
    plan = tuning.Plan(trials, prefix, confirm, tuple(vary.replace("-", "_").split(",")), seed)
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
            gradient_stats.find(folder, stats),
            text,
            split or "valid",
            plan,
            path,
            show,
            limit,
        )
    for name, best in tuned.items():
        nats = best.record["validation_nats"]
        print(f"{name}: {best.settings} · {report.running(nats, checkpoint.vocabulary.kind)}")
    print(f"settings: {path}")


@app.command(name="gradient-stats")
def gradient_stats_(
    model: Model,
    corpus: Corpus,
    split: Annotated[str, Option(help="The training text.")] = "train",
    segment_length: SegmentLength = None,
    batch_size: Annotated[int, Option(help="Streams read side by side.")] = 100,
    batches: Annotated[int | None, Option(help="Read so many batches (default: all)")] = None,
    skip: Annotated[int, Option(help="Begin after so many batches, to collect in parts.")] = 0,
    half: Annotated[bool, Option("--half", help="Store them in 16 bits (bfloat16).")] = False,
    out: Annotated[Path | None, Option(help="File to write (default: the model folder's)")] = None,
    unknown: Unknown = None,
    threads: Threads = None,
    quiet: Quiet = False,
) -> None:
    """Collect how large each weight's gradients are on the training text (eq. 5)."""
    _use(threads)
    import torch

    from dyneval import collection, corpora, gradient_stats, models, storage
    from dyneval.progress import bars
    from dyneval.settings import default_length

    checkpoint = models.load(model)
    path = out or models.folder_of(model) / gradient_stats.FILE
    storage.check_writable(path)
    text = corpora.load(corpus, checkpoint.vocabulary, unknown)  # type: ignore[arg-type]
    default = default_length(checkpoint.vocabulary)
    length = default if segment_length is None else segment_length
    with bars("batches", quiet=quiet) as update:
        collected = collection.collect(
            checkpoint.model,
            text,
            length,
            split=split,
            batch_size=batch_size,
            skip=skip,
            batches=batches,
            report=lambda done, total: update("gradient statistics", done, total, ""),
        )
    collected.save(path, torch.bfloat16 if half else None)
    print(f"{collected.collection.batches:,} batches of {batch_size} streams: {path}")


@app.command()
def merge_stats(
    out: Annotated[Path, Argument(help="File to write.")],
    parts: Annotated[list[Path], Argument(help="Files of `gradient-stats`.")],
) -> None:
    """Merge gradient statistics that were collected in parts."""
    from dyneval import gradient_stats

    merged = gradient_stats.merge([gradient_stats.load(part) for part in parts])
    merged.save(out)
    print(f"{merged.collection.batches:,} batches: {out}")


@app.command()
def train(
    corpus: Corpus,
    folder: Annotated[Path, Argument(help="Where the model is kept.")],
    preset: Annotated[str, Option(help="lstm-desk or mlstm-desk.")] = "lstm-desk",
    vocabulary: Annotated[
        str | None, Option(help="words, characters or bytes (default: the corpus' own)")
    ] = None,
    epochs: Annotated[int | None, Option(help="Passes over the training split.")] = None,
    batch_size: Annotated[int | None, Option(help="Streams read side by side.")] = None,
    sequence_length: Annotated[int | None, Option(help="Tokens of a step.")] = None,
    learning_rate: Annotated[float | None, Option(help="Of the first steps.")] = None,
    units: Annotated[int | None, Option(help="Hidden units of a layer.")] = None,
    layers: Annotated[int | None, Option(help="Recurrent layers.")] = None,
    embedding_size: Annotated[int | None, Option(help="Width of the embedding.")] = None,
    dropout: Annotated[float | None, Option(help="Of the LSTM.")] = None,
    tied: Annotated[bool | None, Option(help="One matrix for embedding and softmax.")] = None,
    precision: Annotated[str | None, Option(help="float32 or bfloat16.")] = None,
    seed: Annotated[int | None, Option(help="Of the initial weights and dropout.")] = None,
    resume: Annotated[bool, Option("--resume", help="Go on with the folder's training.")] = False,
    threads: Threads = None,
    quiet: Quiet = False,
) -> None:
    """Train a base model; Ctrl-C stops it where --resume goes on."""
    _use(threads)
    from dyneval import corpora, report, training
    from dyneval.progress import bars

    if preset not in training.PRESETS:
        known = ", ".join(training.PRESETS)
        raise ValueError(f"there is no preset {preset!r}; give one of {known}")
    recipe = training.changed(
        training.PRESETS[preset],
        epochs=epochs,
        batch_size=batch_size,
        sequence_length=sequence_length,
        learning_rate=learning_rate,
        units=units,
        layers=layers,
        embedding_size=embedding_size,
        dropout=dropout,
        tied=tied,
        precision=precision,
        seed=seed,
    )
    text = corpora.load(corpus, vocabulary)  # type: ignore[arg-type]
    task = training.start(recipe, text, folder, resume=resume)
    with bars("steps", quiet=quiet) as update:
        for at in task.run():
            figure = report.running(at.nats, text.vocabulary.kind)
            what = f"epoch {at.epoch + 1} of {recipe.epochs}"
            done = at.step - at.epoch * task.epoch_steps
            pace = f"{figure}, {at.tokens_per_second:,.0f} tokens/s"
            update(what, done, task.epoch_steps, pace)
    best = min(entry["valid_nats"] for entry in task.history)
    print(f"validation {report.running(best, text.vocabulary.kind)}: {folder}")


@app.command()
def halve(
    model: Model,
    folder: Annotated[Path, Argument(help="The checkpoint to write.")],
) -> None:
    """Store a checkpoint in 16 bits, at half the size; its statistics must be collected anew."""
    import torch

    from dyneval import models

    models.save(folder, models.load(model), dtype=torch.float16)
    print(f"checkpoint: {folder}")


@app.command()
def import_charrnn(
    model: Annotated[Path, Argument(help="MODEL.npz, with MODEL.vocab.json beside it.")],
    folder: Annotated[Path, Argument(help="The checkpoint to write.")],
) -> None:
    """Turn a character LSTM of TensorFlow (charRNN) into a checkpoint folder."""
    from dyneval.models import charrnn

    charrnn.import_charrnn(model, folder)
    print(f"checkpoint: {folder}")


def _use(threads: int | None) -> None:
    """Use so many processor threads."""
    if threads is not None and threads < 1:
        raise ValueError(f"{threads} threads cannot work; give 1 or more")
    import torch

    if threads:
        torch.set_num_threads(threads)


def _given(**flags: Any) -> dict[str, Any]:
    """Return the flags that were given."""
    return {name: value for name, value in flags.items() if value is not None}


def _rows(model: str, files: list[Path] | None) -> dict[str, Settings]:
    """Return the rows of the settings files given, or of the one in the model's folder."""
    from dyneval import models, settings

    own = models.folder_of(model) / settings.FILE
    paths = files if files else [own] if own.exists() else []
    return {name: row for path in paths for name, row in settings.read(path).items()}


def main() -> None:
    """Run the command line: 0 is success, 2 a mistake that one line explains."""
    try:
        code = app(sys.argv[1:] or ["--help"], standalone_mode=False) or 0
        if code == INTERRUPTED:  # how Typer hands on Ctrl-C
            raise KeyboardInterrupt
        sys.exit(code)
    except (typer.Abort, KeyboardInterrupt):
        print("dyneval: interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED)
    except USAGE_ERROR as error:
        _fail(error.format_message())
    except BrokenPipeError:  # the reader of our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except (ValueError, OSError) as error:
        _fail(str(error))


def _fail(message: str) -> None:
    print("dyneval: " + " ".join(message.split()), file=sys.stderr)
    sys.exit(2)


if __name__ == "__main__":
    main()
