"""Published figures of other models, to stand beside a result: test splits, Krause et al. (2018).

They are of the paper's own base models, several times as large as what trains on a desk. A text
that is no published split stands beside the nearest one, and `note` says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Published:
    """A model's figures by the name of the predictor here that reads in the same way."""

    model: str
    architecture: str  # the class here that is built alike
    figure: str  # a key of a result's figures
    values: dict[str, float]
    note: str = ""


LSTM_PTB = {
    "static": 85.6,
    "sgd-n1": 76.2,
    "sgd": 75.6,
    "sgd+decay": 74.8,
    "rms+decay": 72.2,
    "rms+rms-decay": 71.7,
    "dynamic": 71.7,
}
HUTTER = {"static": 1.24, "dynamic": 1.08, "rms+rms-decay": 1.08}
ANOTHER = "on the Hutter Prize data, which is Wikipedia too but another text"
FIGURES: dict[str, list[Published]] = {
    "ptb": [
        Published("LSTM, 20M weights", "LSTM", "perplexity", LSTM_PTB),
        Published("AWD-LSTM, 24M", "AWDLSTM", "perplexity", {"static": 57.7, "dynamic": 51.1}),
    ],
    "wikitext-2": [
        Published("LSTM, 50M weights", "LSTM", "perplexity", {"static": 103.4, "dynamic": 59.8}),
        Published("AWD-LSTM, 33M", "AWDLSTM", "perplexity", {"static": 66.1, "dynamic": 44.3}),
    ],
    "enwik8": [Published("mLSTM, 46M weights", "MLSTM", "bits_per_byte", HUTTER)],
    "enwiki-2014-xml": [Published("mLSTM, 46M weights", "MLSTM", "bits_per_byte", HUTTER, ANOTHER)],
    "sample": [Published("mLSTM, 46M weights", "MLSTM", "bits_per_byte", HUTTER, ANOTHER)],
    "text8": [
        Published(
            "mLSTM, 45M weights", "MLSTM", "bits_per_character", {"static": 1.27, "dynamic": 1.19}
        )
    ],
}


def beside(run: dict[str, Any]) -> list[Published]:
    """Return what was published on a run's corpus: of models built alike, or else of all."""
    rows = FIGURES.get(run["corpus"], [])
    alike = [row for row in rows if row.architecture == run.get("architecture")]
    return alike or rows
