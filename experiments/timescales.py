"""Figure 2: the loss by position, on text like that of training and on Spanish.

Both panels are read by one model with the settings of its own validation text. At desk scale
these are the bundled model and Wikipedia of 2014, and as many sequences as its test split has.
"""

from dyneval import recipes
from dyneval.experiments import Published, miniature
from dyneval.stages import Base, Curve, Statistics, Study
from dyneval.tuning import Plan

figure = "bits per character"
published = (
    Published(
        "Hutter Prize, 500 sequences of 10,000",
        fact="the advantage is clear after a few hundred characters, largest after 2-3 thousand",
    ),
    Published(
        "Spanish Europarl, 500 sequences of 10,000",
        fact="the advantage keeps growing and is much larger",
    ),
)

ROWS = {"rms+rms-decay": {"segment_length": 20, "rule": "rms+rms-decay"}}
PLAN = Plan(trials=12, prefix=20_000, confirm=1)


def panels(study, own, count):
    """Return the curves of both panels."""
    return (
        Curve("like the training text", study, "rms+rms-decay", own, "test", count=count),
        Curve("Spanish", study, "rms+rms-decay", "europarl-es", "test", count=count),
    )


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
desk = panels(BUNDLED, "enwiki-2014-xml", 52)
runs = {
    "paper": panels(HUTTER, "enwik8", 500),
    "desk": desk,
    "miniature": miniature(desk),
}
