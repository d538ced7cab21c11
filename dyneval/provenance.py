"""Provenance: what a result depends on besides its own settings, as values that a file can hold."""

from __future__ import annotations

import platform
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dyneval import devices
from dyneval.corpora import Corpus
from dyneval.gradient_stats import Statistics
from dyneval.models import Checkpoint, fingerprint


def describe(
    model: str | Path,
    checkpoint: Checkpoint,
    corpus: Corpus,
    split: str | None,
    stats: Statistics,
) -> dict[str, Any]:
    """Return which model, text, statistics, versions, threads and machine made a result."""
    split = split or corpus.default_split
    theirs = checkpoint.about.get("transformers")  # how a model of Hugging Face was loaded
    return {
        "model": str(model),
        "architecture": theirs["architecture"] if theirs else type(checkpoint.model).__name__,
        "weights": sum(weight.numel() for weight in checkpoint.model.parameters()),
        "model_hash": fingerprint(checkpoint.model),
        "corpus": corpus.name,
        "split": split,
        "checksum": corpus.checksum(split),
        "note": corpus.note,
        "vocabulary": {"kind": checkpoint.vocabulary.kind, "size": len(checkpoint.vocabulary)},
        "unknown": corpus.unknown,
        "statistics": {target: asdict(each.collection) for target, each in stats.items()} or None,
        "versions": {
            # not imported: it names the public modules, which stand above this one
            "dyneval": sys.modules["dyneval"].__version__,
            "torch": torch.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
        "threads": torch.get_num_threads(),
        "device": devices.describe(next(checkpoint.model.parameters()).device),
        "machine": f"{platform.system()} {platform.machine()}",
    } | ({"transformers": theirs} if theirs else {})
