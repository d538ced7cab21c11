"""Pretrained character LSTMs kept as `.npz` (charRNN), made into checkpoints.

The arrays are those of TensorFlow's BasicLSTMCell: kernel_k (inputs + units, 4 · units) acts on
the input and the hidden state together, its columns are the gates i, g, f, o, and 1 is added to
f when the cell runs.
"""

from __future__ import annotations

import hashlib
import zipfile
import zlib
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dyneval import storage
from dyneval.models import Checkpoint, save
from dyneval.models.lstm import LSTM
from dyneval.vocabularies import Vocabulary

UNREADABLE = (
    *(OSError, ValueError, EOFError, TypeError),
    *(RuntimeError, zipfile.BadZipFile, zlib.error),
)
Arrays = dict[str, NDArray[np.float32]]


def import_charrnn(npz: Path, folder: Path) -> Checkpoint:
    """Write the checkpoint folder of MODEL.npz, whose symbols stand beside it in MODEL.vocab.json.

    Each layer gets torch's two biases: the stored one with the forget bias of 1, and zeros.
    """
    arrays = _read(npz)
    vocabulary = _vocabulary(npz.with_suffix(".vocab.json"), npz, len(arrays["embedding"]))
    try:
        model = _model(arrays)
    except (KeyError, ValueError, TypeError, IndexError) as error:
        raise ValueError(
            f"{npz} holds no charRNN model ({error}); needed are the arrays embedding, kernel_0, "
            "bias_0, …, softmax_w and softmax_b, all layers of one width"
        ) from None
    about = {"source": npz.name, "sha256": hashlib.sha256(npz.read_bytes()).hexdigest()}
    checkpoint = Checkpoint(model.eval(), vocabulary, about)
    save(folder, checkpoint)
    return checkpoint


def _read(npz: Path) -> Arrays:
    try:
        # a file of our own: numpy leaves its own open where the archive is damaged
        with npz.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored}
    except FileNotFoundError:
        raise ValueError(f"{npz} does not exist") from None
    except UNREADABLE as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"{npz} is no whole .npz file of plain arrays: {reason}") from None
    for name, array in arrays.items():
        if array.dtype.kind != "f" or not np.isfinite(array).all():
            raise ValueError(f"{npz} holds NaN, infinity or no numbers in {name}")
    if arrays.get("embedding", np.zeros(0)).ndim != 2:
        raise ValueError(f"{npz} holds no charRNN model: it has no embedding of symbols")
    return arrays


def _vocabulary(path: Path, npz: Path, size: int) -> Vocabulary:
    symbols = storage.read_json(path)
    try:
        vocabulary = Vocabulary.from_json({"kind": "characters", "symbols": symbols})
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path} is no list of characters: {error}") from None
    if len(vocabulary) != size:
        raise ValueError(
            f"{path} lists {len(vocabulary)} characters, but {npz} predicts {size}; the two "
            "files do not belong together"
        )
    return vocabulary


def _model(arrays: Arrays) -> LSTM:
    """Return the LSTM with these weights; an error says what does not fit."""
    layers = sum(name.startswith("kernel_") for name in arrays)
    (vocabulary_size, embedding_size), units = arrays["embedding"].shape, len(arrays["softmax_w"])
    model = LSTM(vocabulary_size, embedding_size=embedding_size, units=units, layers=layers)
    weights = {
        "embedding.weight": arrays["embedding"],
        "output.weight": arrays["softmax_w"].T,
        "output.bias": arrays["softmax_b"],
    }
    forget = np.repeat([0, 1, 0, 0], units)
    for k in range(layers):
        kernel, bias = _torch_order(arrays[f"kernel_{k}"]), _torch_order(arrays[f"bias_{k}"])
        inputs = len(arrays[f"kernel_{k}"]) - units
        weights[f"layers.{k}.weight_ih"] = kernel[:, :inputs]
        weights[f"layers.{k}.weight_hh"] = kernel[:, inputs:]
        weights[f"layers.{k}.bias_ih"] = bias + forget
        weights[f"layers.{k}.bias_hh"] = np.zeros_like(bias)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(_fitting(weights[name], parameter, name))
    return model


def _torch_order(array: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the last dimension, gates i, g, f, o, as the first one, gates i, f, g, o."""
    i, g, f, o = np.split(array.T, 4)
    return np.concatenate([i, f, g, o])


def _fitting(array: NDArray[np.float32], parameter: Tensor, name: str) -> Tensor:
    if array.shape != tuple(parameter.shape):
        raise ValueError(f"{name} would be {array.shape}, needed {tuple(parameter.shape)}")
    return torch.from_numpy(np.ascontiguousarray(array))
