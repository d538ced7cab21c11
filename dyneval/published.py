"""Published figures, Krause et al. (2018): rows of the paper's tables, and what stands beside them.

They are of the paper's own base models, several times as large as what trains on a desk. A row
says which of ours answers it: the `role` of a study, and the name of a row in it. A text that is
no published split stands beside the nearest one, and `note` says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

FINAL = "rms+rms-decay"  # the row that is the paper's dynamic evaluation
NOT_RUN = "not run"


class Published(NamedTuple):
    """A row of the paper, and which row of a study answers it."""

    name: str
    test: float | None = None
    valid: float | None = None
    parameters: str = ""
    role: str = ""  # of a study
    row: str = ""
    fact: str = ""  # what is said without a number

    @property
    def model(self) -> str:
        """The base model: "LSTM + dynamic eval" is the model of the row "LSTM"."""
        return self.name.partition(" + ")[0]

    def to_json(self) -> dict[str, Any]:
        """Return what is given of it."""
        return {key: value for key, value in self._asdict().items() if value not in (None, "")}


PTB = (
    Published("RNN+LDA+KN-5+cache", 92.0),
    Published("CharCNN", 78.9, parameters="19M"),
    Published("LSTM (Zaremba)", 78.4, 82.2, "66M"),
    Published("variational LSTM", 73.4, parameters="66M"),
    Published("pointer sentinel LSTM", 70.9, 72.4, "21M"),
    Published("variational LSTM + augmented loss", 68.5, 71.1, "51M"),
    Published("variational RHN", 65.4, 67.9, "23M"),
    Published("NAS cell", 62.4, parameters="54M"),
    Published("variational LSTM + gradual learning", 61.7, parameters="105M"),
    Published("LSTM + BB tuning", 58.3, 60.9, "24M"),
    Published("LSTM (Grave)", 82.3, 86.9),
    Published("LSTM (Grave) + neural cache", 72.1, 74.6, "", "lstm", "cache"),
    Published("AWD-LSTM (Merity)", 57.3, 60.0, "24M"),
    Published("AWD-LSTM (Merity) + neural cache", 52.8, 53.9, "24M", "awd-lstm", "cache"),
    Published("LSTM", 85.6, 88.0, "20M", "lstm", "static"),
    Published("LSTM + traditional dynamic eval (SGD, n=1)", 76.2, 78.6, "20M", "lstm", "sgd-n1"),
    Published("LSTM + dynamic eval (SGD, n=5)", 75.6, 78.0, "20M", "lstm", "sgd"),
    Published(
        "LSTM + dynamic eval (SGD, n=5, global prior)", 74.8, 77.4, "20M", "lstm", "sgd+decay"
    ),
    Published(
        "LSTM + dynamic eval (RMS, n=5, global prior)", 72.2, 74.3, "20M", "lstm", "rms+decay"
    ),
    Published("LSTM + dynamic eval (RMS, n=5, RMS global prior)", 71.7, 73.5, "20M", "lstm", FINAL),
    Published("AWD-LSTM", 57.7, 59.8, "24M", "awd-lstm", "static"),
    Published("AWD-LSTM + dynamic eval", 51.1, 51.6, "24M", "awd-lstm", FINAL),
)
WIKITEXT_2 = (
    Published("byte mLSTM", 88.8, 92.8, "46M"),
    Published("variational LSTM", 87.0, 91.5, "28M"),
    Published("pointer sentinel LSTM", 80.8, 84.8),
    Published("LSTM + BB tuning", 65.9, 69.1, "24M"),
    Published("LSTM (Grave)", 99.3, 104.2),
    Published("LSTM (Grave) + neural cache", 68.9, 72.1, "", "lstm", "cache"),
    Published("AWD-LSTM (Merity)", 65.8, 68.6, "33M"),
    Published("AWD-LSTM (Merity) + neural cache", 52.0, 53.8, "33M", "awd-lstm", "cache"),
    Published("LSTM", 103.4, 109.1, "50M", "lstm", "static"),
    Published("LSTM + dynamic eval", 59.8, 63.7, "50M", "lstm", FINAL),
    Published("AWD-LSTM", 66.1, 68.9, "33M", "awd-lstm", "static"),
    Published("AWD-LSTM + dynamic eval", 44.3, 46.4, "33M", "awd-lstm", FINAL),
)
HUTTER = (
    Published("stacked LSTM (Graves)", 1.67, parameters="21M"),
    Published(
        "stacked LSTM (Graves) + traditional dynamic eval", 1.33, None, "21M", "mlstm", "sgd-n1"
    ),
    Published("MI-LSTM", 1.44, parameters="17M"),
    Published("HyperLSTM", 1.34, parameters="27M"),
    Published("HM-LSTM", 1.32),
    Published("ByteNet", 1.31),
    Published("LSTM + BB tuning", 1.30, parameters="46M"),
    Published("RHN", 1.27, parameters="46M"),
    Published("fast-slow LSTM", 1.25, parameters="47M"),
    Published("mLSTM", 1.24, None, "46M", "mlstm", "static"),
    Published("mLSTM + sparse dynamic eval (d=250k)", 1.13, None, "46M", "mlstm", "sparse"),
    Published("mLSTM + dynamic eval", 1.08, None, "46M", "mlstm", FINAL),
)
TEXT8 = (
    Published("MRNN", 1.54, parameters="5M"),
    Published("MI-LSTM", 1.44, parameters="4M"),
    Published("LSTM", 1.43),
    Published("batch-normalised LSTM", 1.36),
    Published("HM-LSTM", 1.29),
    Published("RHN", 1.27, parameters="45M"),
    Published("mLSTM", 1.27, None, "45M", "mlstm", "static"),
    Published("mLSTM + dynamic eval", 1.19, None, "45M", "mlstm", FINAL),
)

# Beside the result of one run

ANOTHER = "on the Hutter Prize data, which is Wikipedia too but another text"
TABLES: dict[str, tuple[tuple[Published, ...], str]] = {  # of a corpus, and what differs
    "ptb": (PTB, ""),
    "wikitext-2": (WIKITEXT_2, ""),
    "enwik8": (HUTTER, ""),
    "enwiki-2014-xml": (HUTTER, ANOTHER),
    "sample": (HUTTER, ANOTHER),
    "text8": (TEXT8, ""),
}
ARCHITECTURES = {"lstm": "LSTM", "awd-lstm": "AWDLSTM", "mlstm": "MLSTM"}  # classes here, by role


@dataclass(frozen=True)
class Other:
    """A published model's figures by the name of the predictor here that reads in the same way."""

    model: str
    architecture: str  # the class here that is built alike
    values: dict[str, float]
    note: str = ""


def beside(run: Mapping[str, Any]) -> list[Other]:
    """Return what was published on a run's corpus: of models built alike, or else of all."""
    table, note = TABLES.get(run["corpus"], ((), ""))
    found = []
    for base in table:
        if base.row != "static":
            continue
        values = {
            row.row: row.test
            for row in table
            if row.model == base.name and row.row and row.test is not None
        }
        values["dynamic"] = values[FINAL]
        name = f"{base.name}, {base.parameters} weights"
        found.append(Other(name, ARCHITECTURES[base.role], values, note))
    alike = [other for other in found if other.architecture == run.get("architecture")]
    return alike or found


# Beside what an experiment found


@dataclass(frozen=True)
class Line:
    """A row of the paper, or one of a study, and where in the file its figures stand."""

    name: str
    place: tuple[str, ...]
    digits: int  # that are shown behind the point
    figures: Mapping[str, Any] = field(default_factory=dict)  # valid, test, and of ours the rest
    ours: bool = False
    role: str = ""
    row: str = ""
    parameters: str = ""

    @property
    def gain(self) -> Mapping[str, Any] | None:
        """By what part the test figure is lower than without learning, and of ours the interval."""
        gain: Mapping[str, Any] | None = self.figures.get("gain")
        return gain if gain and gain["relative"] is not None else None


def facts(found: Mapping[str, Any]) -> dict[str, str]:
    """Return what an experiment's result says of the paper without a number, by what it is of."""
    rows = [Published(**row) for row in found.get("published", ())]
    return {row.name: row.fact for row in rows if row.fact}


def ours(found: Mapping[str, Any]) -> Iterator[Line]:
    """Yield each row of each study of an experiment's result."""
    for number, study in enumerate(found["studies"]):
        for row, figures in study["rows"].items():
            place, role = ("studies", str(number), "rows", row), study["role"]
            size = _size(study["run"].get("weights"))
            yield Line(study["name"], place, _digits(found) + 1, figures, True, role, row, size)


def _size(weights: int | None) -> str:
    """Return how many weights a model has, as the paper writes it unless that would be nothing."""
    if not weights:
        return ""
    return f"{weights / 1e6:.1f}M" if weights >= 100_000 else f"{weights:,}"


def lines(found: Mapping[str, Any]) -> Iterator[Line]:
    """Yield each published row of an experiment's result, and below it each of ours that answers.

    A file from before they held published rows gives ours alone.
    """
    own = list(ours(found))
    if "published" not in found:
        yield from (replace(line, name=f"{line.name}: {line.row}") for line in own)
    rows = [Published(**row) for row in found.get("published", ())]
    tests = {row.name: row.test for row in rows}
    for k, row in enumerate(rows):
        if row.fact:
            continue
        base = tests.get(row.model) if row.role and row.model != row.name else None
        figures: dict[str, Any] = {"valid": row.valid, "test": row.test}
        if base and row.test:
            figures["gain"] = {"relative": 1 - row.test / base}
        place = ("published", str(k))
        yield Line(row.name, place, _digits(found), figures, parameters=row.parameters)
        answers = [line for line in own if (line.role, line.row) == (row.role, row.row)]
        yield from answers
        if row.role and not answers:
            yield Line(NOT_RUN, (), _digits(found), ours=True)


def heading(found: Mapping[str, Any]) -> str:
    """Return the title of an experiment, with the name of its figure."""
    title, figure = str(found["title"]), found["figure"]
    return title if figure in title else f"{title} ({figure})"


def _digits(found: Mapping[str, Any]) -> int:
    """Return how many digits of a figure the paper has behind the point."""
    return 1 if "perplexity" in found["figure"] else 2
