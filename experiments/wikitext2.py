"""Table 2: WikiText-2.

At desk scale an LSTM of 2×300 with a tied softmax; the AWD-LSTM is there at the paper's scale.
"""

from dyneval import recipes
from dyneval.experiments import miniature
from dyneval.published import WIKITEXT_2, Published
from dyneval.settings import table_1
from dyneval.stages import Base, Statistics, Study
from dyneval.tuning import Plan

figure = "perplexity"
published = (
    *WIKITEXT_2,
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
