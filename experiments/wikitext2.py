"""Table 2: WikiText-2.

At desk scale an LSTM of 2×300 with a tied softmax; the AWD-LSTM is there at the paper's scale.
"""

from dyneval import recipes
from dyneval.experiments import Published, miniature
from dyneval.settings import table_1
from dyneval.stages import Base, Statistics, Study
from dyneval.tuning import Plan

figure = "perplexity"
published = (
    Published("byte mLSTM", 88.8, 92.8, "46M"),
    Published("variational LSTM", 87.0, 91.5, "28M"),
    Published("pointer sentinel LSTM", 80.8, 84.8),
    Published("LSTM + BB tuning", 65.9, 69.1, "24M"),
    Published("LSTM (Grave)", 99.3, 104.2),
    Published("LSTM (Grave) + neural cache", 68.9, 72.1, "", "lstm", "cache"),
    Published("AWD-LSTM (Merity)", 65.8, 68.6, "33M"),
    Published("AWD-LSTM (Merity) + neural cache", 52.0, 53.8, "33M", "awd-lstm", "cache"),
    Published("LSTM", 103.4, 109.1, "50M", "lstm", "static"),
    Published("LSTM + dynamic eval", 59.8, 63.7, "50M", "lstm", "rms+rms-decay"),
    Published("AWD-LSTM", 66.1, 68.9, "33M", "awd-lstm", "static"),
    Published("AWD-LSTM + dynamic eval", 44.3, 46.4, "33M", "awd-lstm", "rms+rms-decay"),
    Published("LSTM + dynamic eval + neural cache", role="lstm", row="dynamic+cache"),
    Published("AWD-LSTM + dynamic eval + neural cache", role="awd-lstm", row="dynamic+cache"),
)

NAMES = ("cache", "rms+rms-decay", "dynamic+cache")
TABLE = {name: row.to_json() for name, row in table_1(5).items() if name in NAMES}
PAPER = Plan(trials=12, prefix=20_000, confirm=2)

paper = tuple(
    Study(name, role, Base(name, "wikitext-2", recipes.PAPER[name]), TABLE, PAPER)
    for role, name in (("lstm", "wikitext2-lstm"), ("awd-lstm", "wikitext2-awd-lstm"))
)
desk = (
    Study(
        "lstm-2x300",
        "lstm",
        Base("wikitext2-lstm-desk", "wikitext-2", recipes.DESK["lstm-wikitext2-desk"]),
        TABLE,
        Plan(trials=10, prefix=8_000, confirm=1),
        Statistics(batches=1000),
        validation=40_000,
    ),
)
runs = {"paper": paper, "desk": desk, "miniature": miniature(desk)}
