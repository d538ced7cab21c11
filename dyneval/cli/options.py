"""What several commands take: flags of the same name and meaning, and what is done with them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

if TYPE_CHECKING:
    from dyneval.models.huggingface import Loading
    from dyneval.settings import Settings

Model = Annotated[
    str,
    Argument(
        help="A checkpoint folder, or `bundled`; or of Hugging Face a folder, a name as gpt2, a "
        "GGUF file, or `smollm2`."
    ),
]
Corpus = Annotated[
    str, Argument(help="A corpus (ptb, wikitext-2, text8, …), a text file, or - for stdin.")
]
Documents = Annotated[
    str | None,
    Option(
        help="Read the text as documents: lines, blank-lines, chunks:N (of N tokens) or files "
        "(of a folder, or a pattern in quotes).",
        metavar="CUT",
    ),
]
Carry = Annotated[
    str, Option(help="What goes on to the next document: none, weights or weights+state.")
]
Streams = Annotated[int, Option(help="Documents to read side by side, each with own weights.")]
Split = Annotated[str | None, Option(help="Which part of the corpus to read.")]
Unknown = Annotated[
    str | None, Option(help="Symbols outside the vocabulary: error, drop or unk.", metavar="POLICY")
]
Threads = Annotated[int | None, Option(help="Processor threads to use (default: all cores)")]
Engine = Annotated[
    str, Option(help="What computes: auto, fused, generic or reference.", metavar="ENGINE")
]
Device = Annotated[str, Option(help="Where to compute: cpu, cuda, or auto, a GPU if there is one.")]
Context = Annotated[
    int | None,
    Option(help="Tokens that a model of Hugging Face looks back on (default: up to 1024)"),
]
ContextPolicy = Annotated[
    str | None,
    Option(
        help="When they are full: carry (drop the oldest) or recompute (read the newer half again "
        "with the weights of then).",
        metavar="POLICY",
    ),
]
DType = Annotated[
    str,
    Option("--dtype", help="Of a model of Hugging Face: float32, bfloat16 or float64."),
]
Quiet = Annotated[bool, Option("--quiet", help="Show no progress.")]
Stats = Annotated[
    Path | None,
    Option(
        help="Gradient statistics (default: those in the model's folder), or `running`: of the "
        "text's own past."
    ),
]
SegmentLength = Annotated[
    int | None,
    Option(
        help="Tokens between updates, n (default: 5 for words, 64 for a tokenizer's tokens, "
        "else 20)"
    ),
]
Rule = Annotated[
    str | None, Option(help="sgd, sgd+decay, rms+decay or rms+rms-decay.", metavar="RULE")
]
LearningRate = Annotated[float | None, Option(help="η")]
DecayRate = Annotated[float | None, Option(help="λ")]
Epsilon = Annotated[float | None, Option(help="ε")]
Target = Annotated[
    str | None,
    Option(
        help="What adapts: all-weights, no-embedding, norms-and-biases, last-layers:COUNT, "
        "low-rank:RANK, hidden-matrix:UNITS or matching:PATTERN.",
        metavar="TARGET",
    ),
]
Average = Annotated[
    str | None, Option(help="avg(√MS_g): over `tensors` (the authors') or `weights`.")
]
SettingsFiles = Annotated[
    list[Path] | None,
    Option(help="A file that `tune` wrote; may be repeated (default: the model folder's)"),
]
Memory = Annotated[
    str | None,
    Option(
        help="Bytes for what adapts, as 4GB; fewer streams are read at a time if need be.",
        metavar="SIZE",
    ),
]
Save = Annotated[Path | None, Option(help="Write the result (.json, and .npz beside).")]
Checkpoint = Annotated[Path | None, Option(help="Keep what was reached in a folder.")]
Resume = Annotated[bool, Option("--resume", help="Go on from the --checkpoint folder.")]
Json = Annotated[bool, Option("--json", help="Print one JSON object.")]
Log = Annotated[Path | None, Option(help="Append the progress to a file, as lines of JSON.")]
TensorBoard = Annotated[
    Path | None, Option("--tensorboard", help="Log the progress to a folder.", metavar="FOLDER")
]
CacheSize = Annotated[int | None, Option(help="Pairs that the neural cache holds.")]


def use(threads: int | None) -> None:
    """Use so many processor threads."""
    if threads is not None and threads < 1:
        raise ValueError(f"{threads} threads cannot work; give 1 or more")
    import torch

    if threads:
        torch.set_num_threads(threads)


def bytes_of(size: str | None) -> int | None:
    """Return how many bytes a size is.

    >>> bytes_of("4GB"), bytes_of("500000")
    (4000000000, 500000)
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?) *([kMGT]?)B?", size) if size else None
    if size and not found:
        raise ValueError(f"{size!r} is no size; give bytes, or as 500MB or 4GB")
    return int(float(found[1]) * 1000 ** " kMGT".index(found[2] or " ")) if found else None


def loading(context: int | None, policy: str | None, dtype: str) -> Loading:
    """Return how a model of Hugging Face is to be loaded."""
    from dyneval.models.huggingface import Loading

    return Loading(context, policy, dtype)  # type: ignore[arg-type]


def given(**flags: Any) -> dict[str, Any]:
    """Return the flags that were given."""
    return {name: value for name, value in flags.items() if value is not None}


def check_resume(resume: bool, checkpoint: Path | None) -> None:
    """Refuse to go on from nowhere."""
    if resume and not checkpoint:
        raise ValueError("--resume goes on from a folder; name it with --checkpoint")


def first_release(units: str, flags: dict[str, Any]) -> dict[str, Any]:
    """Return the flags of a rule that were given in the units of the authors' first release."""
    from dyneval import rules

    needed = ("learning_rate", "decay_rate", "epsilon")
    try:
        batches, tensors = map(int, units.split(","))
    except ValueError:
        batches = tensors = 0
    if batches < 1 or tensors < 1 or not flags.keys() >= set(needed) or "rule" in flags:
        raise ValueError(
            "--from-first-release takes the number of batches and of tensors, as 1859,14, and "
            "converts --learning-rate, --decay-rate and --epsilon of the final rule; give all three"
        )
    values = [flags[name] for name in needed]
    first, second = rules.from_first_release(*values, batches=batches, tensors=tensors).to_json()
    return {
        "rule": "rms+rms-decay",
        "learning_rate": first["learning_rate"],
        "epsilon": first["epsilon"],
        "decay_rate": second["rate"],
    }


def rows_of(model: str, files: list[Path] | None, stats: Path | None = None) -> dict[str, Settings]:
    """Return the rows of the settings files given, or of the one in the model's folder."""
    from dyneval import settings

    return settings.rows_of(model, files, stats)
