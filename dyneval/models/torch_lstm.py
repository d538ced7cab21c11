"""LSTM language models trained with `torch.nn`, made into checkpoints.

A folder holds the state dict of an `nn.Embedding`, an `nn.LSTM` of one or more layers and an
`nn.Linear`, whatever they are called, as `model.safetensors`, and the symbols in the order of
their ids as `vocab.json`. Without the linear map's matrix, it is tied to the embedding.
"""

from __future__ import annotations

import re
from pathlib import Path

import torch
from torch import Tensor

from dyneval import storage
from dyneval.models import Checkpoint, save
from dyneval.models.lstm import LSTM
from dyneval.vocabularies import Kind, Vocabulary

_LAYER = re.compile(r"(?:.*\.)?(weight_ih|weight_hh|bias_ih|bias_hh)_l(\d+)")


def import_lstm(source: Path, folder: Path, kind: Kind = "words") -> Checkpoint:
    """Write the checkpoint folder of a model that was trained with torch's own layers."""
    stored, _ = storage.read_tensors(source / "model.safetensors")
    symbols = storage.read_json(source / "vocab.json")
    try:
        vocabulary = Vocabulary.from_json({"kind": kind, "symbols": symbols})
    except (TypeError, ValueError) as error:
        raise ValueError(f"{source}/vocab.json is no list of {kind}: {error}") from None
    try:
        model = _model(_named(stored), len(vocabulary))
    except (KeyError, ValueError) as error:
        raise ValueError(
            f"{source}/model.safetensors is no model of an nn.Embedding, an nn.LSTM and an "
            f"nn.Linear of {len(vocabulary)} symbols: {error}"
        ) from None
    checkpoint = Checkpoint(model.eval(), vocabulary, {"source": source.name})
    save(folder, checkpoint)
    return checkpoint


def _named(stored: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors under the names that they have here."""
    weights: dict[str, Tensor] = {}
    rest: dict[str, Tensor] = {}
    for name, tensor in stored.items():
        if found := _LAYER.fullmatch(name):
            weights[f"layers.{found[2]}.{found[1]}"] = tensor
        else:
            rest[name] = tensor
    biases = [name for name in rest if name.endswith("bias")]
    if len(biases) != 1:
        raise ValueError(f"it has {len(biases)} biases outside of the LSTM, needed is one")
    weights["output.bias"] = rest.pop(biases[0])
    output = rest.pop(biases[0].removesuffix("bias") + "weight", None)
    if len(rest) != 1:
        raise ValueError(f"it has {len(rest)} embeddings, needed is one")
    (weights["embedding.weight"],) = rest.values()
    if output is not None and not torch.equal(output, weights["embedding.weight"]):
        weights["output.weight"] = output
    return weights


def _model(weights: dict[str, Tensor], vocabulary_size: int) -> LSTM:
    """Return the LSTM with these weights; an error says what does not fit."""
    layers = sum(name.endswith("weight_hh") for name in weights)
    if not layers:
        raise ValueError("it has no LSTM")
    with torch.device("meta"):
        model = LSTM(
            vocabulary_size,
            embedding_size=weights["embedding.weight"].shape[-1],
            units=weights["layers.0.weight_hh"].shape[-1],
            layers=layers,
            tied="output.weight" not in weights,
        )
    expected = dict(model.named_parameters())
    for name in sorted(expected.keys() | weights.keys()):
        shapes = [
            tuple(tensors[name].shape) if name in tensors else "missing"
            for tensors in (weights, expected)
        ]
        if shapes[0] != shapes[1]:
            raise ValueError(f"{name} would be {shapes[0]}, needed {shapes[1]}")
    model = model.to_empty(device="cpu")
    if model.settings["tied"]:
        model.output.weight = model.embedding.weight
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(weights[name])
    return model
