"""Models: what dyneval asks of one, and how the project's own are kept in a folder.

A checkpoint is a folder of `config.json` (which model, its settings, how it was made),
`model.safetensors` and `vocab.json`. A checkpoint that is cut off, or whose parts do not belong
together, is a ValueError that says what is wrong. What is no such folder is looked for among the
models of Hugging Face (`pretrained.py`).
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from dyneval import storage
from dyneval.corpora import BUNDLED
from dyneval.models import pretrained
from dyneval.models.awd_lstm import AWDLSTM
from dyneval.models.huggingface import Loading
from dyneval.models.lstm import LSTM
from dyneval.models.mlstm import MLSTM
from dyneval.vocabularies import Vocabulary

ARCHITECTURES: dict[str, type[nn.Module]] = {
    "lstm": LSTM,
    "awd-lstm": AWDLSTM,
    "mlstm": MLSTM,
}


class LanguageModel(Protocol):
    """An `nn.Module` with these two methods. Reading is in eval mode: no dropout.

    A state is a tree of tensors (tuples and dicts) with the streams on each tensor's first
    dimension; None is the state before the first token. `mix(layer, h)`, where a model takes it,
    replaces the hidden state of a layer after each step.
    """

    def hidden(self, tokens: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        """(B, T) tokens, state or None -> (B, T, H) what the softmax sees, state."""
        ...

    def logits(self, h: Tensor) -> Tensor:
        """(B, T, H) -> (B, T, V)."""
        ...


@dataclass(frozen=True)
class Checkpoint:
    """A model, the symbols that it predicts, and how it was made."""

    model: Any  # a LanguageModel
    vocabulary: Vocabulary
    about: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Origin:
    """What a module was made of that adapts a part of a model only (`targets.py`)."""

    model: Any  # the LanguageModel that it reads with
    target: str
    frozen: frozenset[str]  # its buffers that were weights of the model, and nobody writes to

    def __deepcopy__(self, memo: dict[int, Any]) -> Origin:
        return self


def own_copy(model: Any, weights: Mapping[int, nn.Parameter]) -> Any:
    """Return a module of one's own with other weights, by the `id` of those it had.

    What does not adapt is shared, not copied.
    """
    origin: Origin | None = getattr(model, "origin", None)
    frozen = origin.frozen if origin else frozenset()
    shared = {id(buffer): buffer for name, buffer in model.named_buffers() if name in frozen}
    return copy.deepcopy(model, {**shared, **weights})


def fingerprint(model: nn.Module) -> str:
    """Return a hash of a model's weights: their names, shapes and values, in float32."""
    origin: Origin | None = getattr(model, "origin", None)
    model = origin.model if origin else model
    digest = hashlib.sha256()
    for name, weight in sorted(model.named_parameters()):
        digest.update(f"{name}{tuple(weight.shape)}".encode())
        # memoryview: no copy of a weight that is float32 already
        digest.update(weight.detach().cpu().float().contiguous().numpy().data)
    return digest.hexdigest()


def save(folder: Path | str, checkpoint: Checkpoint, *, dtype: torch.dtype | None = None) -> None:
    """Write a checkpoint's folder; `dtype` stores the weights in fewer bits."""
    folder, model = Path(folder), checkpoint.model
    names = {architecture: name for name, architecture in ARCHITECTURES.items()}
    if type(model) not in names:
        raise ValueError(
            f"a {type(model).__name__} cannot be kept in a folder; only {', '.join(ARCHITECTURES)}"
        )
    weights = {name: weight.to(dtype or weight.dtype) for name, weight in model.named_parameters()}
    for name, weight in weights.items():
        if not torch.isfinite(weight).all():
            raise ValueError(f"{name} is not finite in {weight.dtype}; the model cannot be kept so")
    storage.write_json(folder / "vocab.json", checkpoint.vocabulary.to_json())
    storage.write_tensors(folder / "model.safetensors", weights)
    config = {"architecture": names[type(model)], "settings": model.settings}
    storage.write_json(folder / "config.json", config | {"about": checkpoint.about})


def folder_of(model: Path | str) -> Path:
    """Return the folder of a checkpoint, where what is made for it lies by default.

    That is its path, or that of the model named `bundled`; for a model of Hugging Face that is no
    folder it is one in the cache folder.
    """
    if is_theirs(model):
        return pretrained.folder_of(model)
    folder = BUNDLED if str(model) == "bundled" else Path(model)
    if not (folder / "config.json").is_file():
        what = "has no config.json" if folder.is_dir() else "is not a folder"
        raise ValueError(f"{model} is no checkpoint: it {what}; give a folder made by training")
    return folder


def is_theirs(model: Path | str) -> bool:
    """Return whether a model is one of Hugging Face, to be read by transformers."""
    return str(model) != "bundled" and pretrained.knows(model)


def load_vocabulary(folder: Path | str) -> Vocabulary:
    """Return what the model in a folder predicts, without loading the model."""
    if is_theirs(folder):
        return pretrained.load_vocabulary(folder)
    return _vocabulary(folder_of(folder) / "vocab.json")


def load(
    folder: Path | str, device: torch.device | str = "cpu", loading: Loading | None = None
) -> Checkpoint:
    """Return the checkpoint that `save` wrote, in float32 and eval mode, or one of Hugging Face."""
    loading = loading or Loading()
    if is_theirs(folder):
        theirs, tokens, about = pretrained.load(folder, device, loading)
        return Checkpoint(theirs, tokens, {"transformers": about})
    if loading != Loading():
        raise ValueError(
            f"{folder} is a model of dyneval's own, in float32 and without a context that ends; "
            "--context, --context-policy and --dtype are for models of Hugging Face"
        )
    folder = folder_of(folder)
    config = storage.read_json(folder / "config.json")
    model = _build(config, folder / "config.json")
    vocabulary = _vocabulary(folder / "vocab.json")
    weights, _ = storage.read_tensors(folder / "model.safetensors")
    _fill(model, weights, folder)
    size = config["settings"]["vocabulary_size"]
    if size != len(vocabulary):
        raise ValueError(
            f"{folder}/config.json predicts {size} symbols, but the vocab.json beside it has "
            f"{len(vocabulary)}; the two files do not belong together"
        )
    return Checkpoint(model.to(device).eval(), vocabulary, config.get("about", {}))


def _build(config: Any, path: Path) -> nn.Module:
    """Return the model that a configuration describes, without values."""
    try:
        name, settings = config["architecture"], config["settings"]
        if name not in ARCHITECTURES:
            known = ", ".join(ARCHITECTURES)
            raise ValueError(f"there is no architecture {name!r}, only {known}")
        with torch.device("meta"):  # no time for initial values: they are replaced at once
            return ARCHITECTURES[name](**settings)
    except KeyError as error:
        raise ValueError(f"{path} describes no known model: it lacks {error}") from None
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"{path} describes no known model: {error}") from None


def _vocabulary(path: Path) -> Vocabulary:
    symbols = storage.read_json(path)
    try:
        return Vocabulary.from_json(symbols)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path} holds no vocabulary: {error}") from None


def _fill(model: nn.Module, weights: dict[str, Tensor], folder: Path) -> None:
    expected = {name: tuple(weight.shape) for name, weight in model.named_parameters()}
    found = {name: tuple(weight.shape) for name, weight in weights.items()}
    wrong = sorted(expected.items() ^ found.items())
    if wrong:
        name = wrong[0][0]
        raise ValueError(
            f"{folder}/model.safetensors does not fit config.json: {name} is "
            f"{found.get(name, 'missing')}, needed {expected.get(name, 'nothing of that name')}"
        )
    for name, weight in weights.items():
        if not torch.isfinite(weight).all():
            raise ValueError(f"{folder}/model.safetensors holds NaN or infinity in {name}")
    parameters = {name: nn.Parameter(weight.float()) for name, weight in weights.items()}
    # a tied weight is one parameter under two names: the module gets it under both
    owner = {id(weight): name for name, weight in model.named_parameters()}
    for name, weight in list(model.named_parameters(remove_duplicate=False)):
        module, _, leaf = name.rpartition(".")
        setattr(model.get_submodule(module), leaf, parameters[owner[id(weight)]])
