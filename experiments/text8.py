"""Table 4: text8, bits per character.

At desk scale the first 12.5 million characters, cut 90-5-5, and an mLSTM of 512 units.
"""

from dyneval import recipes
from dyneval.experiments import miniature
from dyneval.published import TEXT8
from dyneval.stages import Base, Statistics, Study
from dyneval.tuning import Plan

figure = "bits per character"
published = TEXT8

ROWS = {"rms+rms-decay": {"segment_length": 20, "rule": "rms+rms-decay"}}
PLAN = Plan(trials=12, prefix=20_000, confirm=1)

paper = (
    Study(
        "text8-mlstm",
        "mlstm",
        Base("text8-mlstm", "text8", recipes.PAPER["text8-mlstm"]),
        ROWS,
        PLAN,
    ),
)
desk = (
    Study(
        "mlstm-text8-piece",
        "mlstm",
        Base("text8-mlstm-desk", "text8", recipes.DESK["mlstm-text8-desk"]),
        ROWS,
        PLAN,
        Statistics(batches=1000),
        validation=100_000,
    ),
)
runs = {"paper": paper, "desk": desk, "miniature": miniature(desk)}
