"""Choices that the paper names and does not show, on Penn Treebank with the LSTM of 2×200.

The batch size of the statistics, the average in RMS_norm, a hundredth of the training batches,
and n. Each is tuned anew, with one budget.
"""

from dyneval import recipes
from dyneval.experiments import miniature
from dyneval.published import Published
from dyneval.stages import Base, Statistics, Study
from dyneval.tuning import Plan

figure = "perplexity"
LENGTHS = (1, 2, 5, 10, 20, 50)
published = (
    Published("trained weights", role="batch 100", row="static"),
    Published("statistics over batches of 1 (the first 20,000)", role="batch 1", row="final"),
    Published("statistics over batches of 20", role="batch 20", row="final"),
    Published("statistics over batches of 100", role="batch 100", row="final"),
    Published("statistics over 1% of the batches of 100", role="batches 1%", row="final"),
    Published("RMS_norm by the mean of tensors' means", role="batch 100", row="final"),
    Published("RMS_norm by the mean over weights", role="average", row="weights"),
    *(Published(f"n = {n}", role="n", row=f"n={n}") for n in LENGTHS),
)

BASE = Base("ptb-lstm-desk", "ptb", recipes.DESK["lstm-desk"])
PLAN = Plan(trials=12, prefix=20_000, confirm=1)
FINAL = {"final": {"segment_length": 5, "rule": "rms+rms-decay"}}
BY_LENGTH = {f"n={n}": {"segment_length": n, "rule": "rms+rms-decay"} for n in LENGTHS}
desk = (
    # 929,588 tokens are 185,918 batches of 1 × 5, and 1,859 of 100 × 5
    Study("batch-1", "batch 1", BASE, FINAL, PLAN, Statistics(1, 20_000)),
    Study("batch-20", "batch 20", BASE, FINAL, PLAN, Statistics(20)),
    Study("batch-100", "batch 100", BASE, FINAL, PLAN),
    Study("batches-1-percent", "batches 1%", BASE, FINAL, PLAN, Statistics(100, 19)),
    Study("average", "average", BASE, {"weights": FINAL["final"] | {"average": "weights"}}, PLAN),
    Study("n", "n", BASE, BY_LENGTH, PLAN),
)
runs = {"desk": desk, "miniature": miniature(desk)}
