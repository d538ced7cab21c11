"""`dyneval train`: a base model."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from dyneval.cli.options import Corpus, Log, Quiet, TensorBoard, Threads, use


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
    log: Log = None,
    tensorboard: TensorBoard = None,
    threads: Threads = None,
    quiet: Quiet = False,
) -> None:
    """Train a base model; Ctrl-C stops it where --resume goes on."""
    use(threads)
    from dyneval import corpora, report, training
    from dyneval.progress import bars, logs

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
    with bars("steps", quiet=quiet) as update, logs(log, tensorboard) as note:
        for at in task.run():
            figure = report.running(at.nats, text.vocabulary.kind)
            what = f"epoch {at.epoch + 1} of {recipe.epochs}"
            done = at.step - at.epoch * task.epoch_steps
            pace = f"{figure}, {at.tokens_per_second:,.0f} tokens/s"
            update(what, done, task.epoch_steps, pace)
            bits = at.nats / math.log(2)
            pace_ = at.tokens_per_second
            note("train", at.step, {"bits_per_token": bits, "tokens_per_second": pace_})
    best = min(entry["valid_nats"] for entry in task.history)
    print(f"validation {report.running(best, text.vocabulary.kind)}: {folder}")
