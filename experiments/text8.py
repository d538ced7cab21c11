"""Table 4: text8, bits per character.

At desk scale the first 12.5 million characters, cut 90-5-5, and an mLSTM of 512 units.
"""

from dyneval import recipes
from dyneval.experiments import Published, miniature
from dyneval.stages import Base, Statistics, Study
from dyneval.tuning import Plan

figure = "bits per character"
published = (
    Published("MRNN", 1.54, parameters="5M"),
    Published("MI-LSTM", 1.44, parameters="4M"),
    Published("LSTM", 1.43),
    Published("batch-normalised LSTM", 1.36),
    Published("HM-LSTM", 1.29),
    Published("RHN", 1.27, parameters="45M"),
    Published("mLSTM", 1.27, None, "45M", "mlstm", "static"),
    Published("mLSTM + dynamic eval", 1.19, None, "45M", "mlstm", "rms+rms-decay"),
)

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
