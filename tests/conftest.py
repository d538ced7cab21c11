"""Tiny models in double precision, of every architecture, and what their tests read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

# fixtures that the tests of the command line share
from checkpoints import checkpoints, command, copied, mistake, shifted, texts  # noqa: F401
from torch import nn

from dyneval.gradient_stats import Collection, GradientStats
from dyneval.models import ARCHITECTURES, fingerprint
from dyneval.streams import padded

VOCABULARY = 7
WIDE = {"embedding_size": 4, "units": 5, "layers": 2}
TIED = {"embedding_size": 4, "units": 4}
MODELS = {
    "lstm": ("lstm", WIDE),
    "lstm, tied": ("lstm", TIED | {"layers": 2}),
    "awd-lstm": ("awd-lstm", WIDE | {"tied": False}),
    "awd-lstm, tied": ("awd-lstm", WIDE | {"layers": 3, "tied": True}),
    "mlstm": ("mlstm", WIDE),
    "mlstm, tied": ("mlstm", TIED),
    "small": ("lstm", {"embedding_size": 2, "units": 3, "layers": 1}),
}


@pytest.fixture
def corpora_folder():
    """Return the folder of real corpora; tests that need it are marked `corpora`."""
    folder = os.environ.get("DYNEVAL_DATA")
    if not folder:
        pytest.skip("DYNEVAL_DATA names no folder of corpora")
    return Path(folder)


def tiny(name: str, vocabulary_size: int = VOCABULARY) -> nn.Module:
    """Return a model with weights that make it sure of something, always the same."""
    architecture, settings = MODELS[name]
    model = ARCHITECTURES[architecture](vocabulary_size, **settings).double()
    if name.endswith("tied"):
        model.output.weight = model.embedding.weight
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in model.parameters():
            weight.normal_(std=0.6, generator=generator)
    return model.eval()


@pytest.fixture(autouse=True)
def no_gpu(request, monkeypatch):
    """`auto` is the CPU, to the same bits on every machine, but in tests of a GPU."""
    if "gpu" not in request.keywords:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.fixture(params=[name for name in MODELS if name != "small"])
def model(request):
    """A model of each architecture, tied and untied."""
    return tiny(request.param)


@pytest.fixture
def lstm():
    return tiny("lstm")


@pytest.fixture
def small():
    """An LSTM over three symbols."""
    return tiny("small", 3)


@pytest.fixture
def make_stats():
    """Statistics of a model as nobody collected them: from 0 to 1, each tensor on a scale."""

    def make(model, model_hash=None):
        generator = torch.Generator().manual_seed(2)
        rms = {
            name: torch.rand(weight.shape, dtype=torch.double, generator=generator) / (k + 1)
            for k, (name, weight) in enumerate(model.named_parameters())
        }
        return GradientStats(rms, Collection(model_hash or fingerprint(model), 4, 5, 100))

    return make


@pytest.fixture
def text():
    """151 tokens: 50 segments of three."""
    generator = torch.Generator().manual_seed(3)
    return torch.randint(VOCABULARY, (151,), generator=generator)


@pytest.fixture
def streams(text):
    """(4, 151): the text, two shorter ones, and one of a single token."""
    return padded([text, text.flip(0)[:41], text[40:56], text[:1]])
