"""Figure 2: the loss by position, on text like that of training and on Spanish.

Both panels are read by one model with the settings of its own validation text. At desk scale
these are the bundled model and Wikipedia of 2014, and as many sequences as its test split has.
"""

from pathlib import Path

from dyneval.experiments import load, miniature
from dyneval.published import Published
from dyneval.stages import Curve

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

# models and settings are those of Table 3
TABLE_3 = load(Path(__file__).with_name("hutter.py"))


def panels(study, own, count):
    """Return the curves of both panels."""
    return (
        Curve("like the training text", study, "rms+rms-decay", own, "test", count=count),
        Curve("Spanish", study, "rms+rms-decay", "europarl-es", "test", count=count),
    )


desk = panels(TABLE_3.runs["desk"][0], "enwiki-2014-xml", 52)
runs = {
    "paper": panels(TABLE_3.runs["paper"][0], "enwik8", 500),
    "desk": desk,
    "miniature": miniature(desk),
}
