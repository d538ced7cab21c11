"""`dyneval halve`, `import-charrnn` and `import-lstm`: checkpoints made of others."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from dyneval.cli.options import Model


def halve(
    model: Model,
    folder: Annotated[Path, Argument(help="The checkpoint to write.")],
) -> None:
    """Store a checkpoint in 16 bits, at half the size; its statistics must be collected anew."""
    import torch

    from dyneval import models

    models.save(folder, models.load(model), dtype=torch.float16)
    print(f"checkpoint: {folder}")


def import_charrnn(
    model: Annotated[Path, Argument(help="MODEL.npz, with MODEL.vocab.json beside it.")],
    folder: Annotated[Path, Argument(help="The checkpoint to write.")],
) -> None:
    """Turn a character LSTM of TensorFlow (charRNN) into a checkpoint folder."""
    from dyneval.models import charrnn

    charrnn.import_charrnn(model, folder)
    print(f"checkpoint: {folder}")


def import_lstm(
    source: Annotated[Path, Argument(help="A folder of model.safetensors and vocab.json.")],
    folder: Annotated[Path, Argument(help="The checkpoint to write.")],
    vocabulary: Annotated[str, Option(help="What vocab.json lists: words or characters.")] = (
        "words"
    ),
) -> None:
    """Turn a model of torch's own Embedding, LSTM and Linear into a checkpoint folder."""
    from dyneval.models import torch_lstm

    torch_lstm.import_lstm(source, folder, vocabulary)  # type: ignore[arg-type]
    print(f"checkpoint: {folder}")
