"""`dyneval train`: a base model."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from dyneval.cli.options import Corpus, Device, Log, Quiet, TensorBoard, Threads, use


def train(
    corpus: Corpus,
    folder: Annotated[Path, Argument(help="Where the model is kept.")],
    preset: Annotated[
        str, Option(help="A recipe: lstm-desk, awd-lstm-desk, mlstm-desk, ptb-lstm, …")
    ] = "lstm-desk",
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
    device: Device = "auto",
    log: Log = None,
    tensorboard: TensorBoard = None,
    threads: Threads = None,
    quiet: Quiet = False,
) -> None:
    """Train a base model; Ctrl-C stops it where --resume goes on.

    Under torchrun, processes share the streams: torchrun --nproc-per-node 2 -m dyneval.cli train …
    """
    use(threads)
    from dyneval import corpora, processes, recipes, report, training
    from dyneval.progress import bars, logs

    recipe = recipes.changed(
        recipes.find(preset),
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
    group = processes.join()
    hidden = quiet or not group.first
    with bars("steps", quiet=hidden):  # of a download
        text = corpora.load(corpus, vocabulary)  # type: ignore[arg-type]
    task = training.start(recipe, text, folder, resume=resume, device=device, group=group)
    epochs_in_all = recipe.epochs + recipe.fine_tune_epochs
    if not group.first:
        log = tensorboard = None
    with bars("steps", quiet=hidden) as update, logs(log, tensorboard) as note:
        for at in task.run():
            figure = report.running(at.nats, text.vocabulary.kind)
            what = f"epoch {at.epoch + 1} of {epochs_in_all}"
            pace = f"{figure}, {at.tokens_per_second:,.0f} tokens/s"
            update(what, at.epoch_step, at.epoch_steps, pace)
            figures = {"bits_per_token": at.nats / math.log(2)}
            note("train", at.step, figures | {"tokens_per_second": at.tokens_per_second})
    if not group.first:
        return
    best = min(entry["valid_nats"] for entry in task.history)
    print(f"validation {report.running(best, text.vocabulary.kind)}: {folder}")
