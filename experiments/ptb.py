"""Table 1: Penn Treebank.

The base models at desk scale: an LSTM of 2×200, one of the paper's size, and a smaller AWD-LSTM
that is trained by the same recipe.
"""

from dataclasses import replace

from dyneval import recipes
from dyneval.experiments import miniature
from dyneval.published import PTB, Published
from dyneval.settings import table_1
from dyneval.stages import Base, Statistics, Study
from dyneval.tuning import Plan

figure = "perplexity"
published = (
    *PTB,
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
