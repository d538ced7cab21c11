"""`dyneval halve` and `import-charrnn`: checkpoints made of others."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument

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
