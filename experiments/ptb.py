"""Table 1: Penn Treebank.

The base models at desk scale: an LSTM of 2×200, one of the paper's size, and a smaller AWD-LSTM
that is trained by the same recipe.
"""

from dataclasses import replace

from dyneval import recipes
from dyneval.experiments import Published, miniature
from dyneval.settings import table_1
from dyneval.stages import Base, Statistics, Study
from dyneval.tuning import Plan

figure = "perplexity"
published = (
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
    Published(
        "LSTM + dynamic eval (RMS, n=5, RMS global prior)",
        *(71.7, 73.5, "20M", "lstm", "rms+rms-decay"),
    ),
    Published("AWD-LSTM", 57.7, 59.8, "24M", "awd-lstm", "static"),
    Published("AWD-LSTM + dynamic eval", 51.1, 51.6, "24M", "awd-lstm", "rms+rms-decay"),
    Published("LSTM + dynamic eval + neural cache", role="lstm", row="dynamic+cache"),
    Published("AWD-LSTM + dynamic eval + neural cache", role="awd-lstm", row="dynamic+cache"),
)

TABLE = {name: row.to_json() for name, row in table_1(5).items()}
SHORT = {name: TABLE[name] for name in ("cache", "rms+rms-decay", "dynamic+cache")}
# U(±.05), as Zaremba's medium model, and fewer epochs
MIDDLE = replace(
    recipes.PAPER["ptb-lstm"],
    model=recipes.PAPER["ptb-lstm"].model | {"initial_range": 0.05},
    epochs=11,
    decay=1.45,
    constant_epochs=5,
    precision="bfloat16",
)
PLAN = Plan(trials=24, prefix=20_000, confirm=2, vary=("learning_rate", "decay_rate", "epsilon"))

paper = (
    Study("ptb-lstm", "lstm", Base("ptb-lstm", "ptb", recipes.PAPER["ptb-lstm"]), TABLE, PLAN),
    Study(
        "ptb-awd-lstm",
        "awd-lstm",
        Base("ptb-awd-lstm", "ptb", recipes.PAPER["ptb-awd-lstm"]),
        SHORT,
        PLAN,
    ),
)
desk = (
    Study(
        "lstm-2x200", "lstm", Base("ptb-lstm-desk", "ptb", recipes.DESK["lstm-desk"]), TABLE, PLAN
    ),
    Study(
        "lstm-2x650",
        "lstm",
        Base("ptb-lstm-650", "ptb", MIDDLE),
        SHORT,
        Plan(trials=10, prefix=10_000, confirm=1),
        Statistics(batches=500),
        validation=30_000,
    ),
    Study(
        "awd-lstm-small",
        "awd-lstm",
        Base("ptb-awd-lstm-desk", "ptb", recipes.DESK["awd-lstm-desk"]),
        SHORT,
        PLAN,
    ),
)
runs = {"paper": paper, "desk": desk, "miniature": miniature(desk)}
