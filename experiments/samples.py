"""Appendix: 300 characters that are written after 10,000 of Spanish.

The model was trained on English; static it falls back into that, and dynamic it does not.
"""

from dyneval import recipes
from dyneval.experiments import Published, miniature
from dyneval.stages import Base, Sample, Statistics, Study
from dyneval.tuning import Plan

figure = "bits per character"
published = (
    Published(
        "300 characters after 10,000 of Spanish",
        fact="the static model falls back into English, the dynamic one stays like Spanish",
    ),
)

ROWS = {"rms+rms-decay": {"segment_length": 20, "rule": "rms+rms-decay"}}
PLAN = Plan(trials=12, prefix=20_000, confirm=1)
HUTTER = Study(
    "mlstm", "mlstm", Base("hutter-mlstm", "enwik8", recipes.PAPER["hutter-mlstm"]), ROWS, PLAN
)
BUNDLED = Study(
    "mlstm-wikipedia-2014",
    "mlstm",
    Base("bundled", "enwiki-2014-xml", source="bundled"),
    ROWS,
    PLAN,
    Statistics(batches=1000),
    validation=100_000,
)
desk = (Sample("Spanish", BUNDLED, "rms+rms-decay", "europarl-es", "test"),)
runs = {
    "paper": (Sample("Spanish", HUTTER, "rms+rms-decay", "europarl-es", "test"),),
    "desk": desk,
    "miniature": miniature(desk),
}
