"""Dynamic evaluation: language models that learn from what they have just read.

>>> from dyneval import Dynamic, Sgd, evaluate
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dyneval.corpora import Corpus
    from dyneval.evaluation import evaluate
    from dyneval.generation import generate
    from dyneval.gradient_stats import GradientStats, Prior, RunningPrior
    from dyneval.models import Checkpoint
    from dyneval.neural_cache import NeuralCache
    from dyneval.predictors import Collector, Dynamic, Static
    from dyneval.reading import Categorical
    from dyneval.results import Result
    from dyneval.rules import Decay, Rms, RmsDecay, Rule, Sgd, Term
    from dyneval.run import Run
    from dyneval.sessions import Session, adapt
    from dyneval.settings import Settings
    from dyneval.significance import Comparison, compare
    from dyneval.streams import PAD, segments
    from dyneval.timescales import Sequences, Timescales
    from dyneval.vocabularies import Text, Vocabulary

__version__ = "0.1.0"

__all__ = [
    "PAD",
    "Categorical",
    "Checkpoint",
    "Collector",
    "Comparison",
    "Corpus",
    "Decay",
    "Dynamic",
    "GradientStats",
    "NeuralCache",
    "Prior",
    "Result",
    "Rms",
    "RmsDecay",
    "Rule",
    "Run",
    "RunningPrior",
    "Sequences",
    "Session",
    "Settings",
    "Sgd",
    "Static",
    "Term",
    "Text",
    "Timescales",
    "Vocabulary",
    "adapt",
    "compare",
    "evaluate",
    "generate",
    "segments",
]

# imported when first used, so that `dyneval --help` need not wait for torch
_HOMES = {
    "corpora": ("Corpus",),
    "evaluation": ("evaluate",),
    "generation": ("generate",),
    "gradient_stats": ("GradientStats", "Prior", "RunningPrior"),
    "models": ("Checkpoint",),
    "neural_cache": ("NeuralCache",),
    "predictors": ("Collector", "Dynamic", "Static"),
    "reading": ("Categorical",),
    "results": ("Result",),
    "rules": ("Decay", "Rms", "RmsDecay", "Rule", "Sgd", "Term"),
    "run": ("Run",),
    "sessions": ("Session", "adapt"),
    "settings": ("Settings",),
    "significance": ("Comparison", "compare"),
    "streams": ("PAD", "segments"),
    "timescales": ("Sequences", "Timescales"),
    "vocabularies": ("Text", "Vocabulary"),
}


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"dyneval.{home}"), name)
    raise AttributeError(f"module 'dyneval' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
