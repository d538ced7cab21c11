"""The command line: flags in, one library call, a small table out.

A mistake gives one line and exit code 2. Torch is imported inside the commands, so that `--help`
is instant.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable
from typing import Any

import typer

from dyneval.cli.checkpoints import halve, import_charrnn, import_lstm
from dyneval.cli.comparison import compare
from dyneval.cli.evaluation import evaluate
from dyneval.cli.experiments import experiment
from dyneval.cli.generation import generate
from dyneval.cli.harness import PASSED_ON, lm_eval
from dyneval.cli.reporting import report
from dyneval.cli.statistics import gradient_stats, merge_stats
from dyneval.cli.timescales import timescales
from dyneval.cli.training import train
from dyneval.cli.tuning import tune

COMMANDS: dict[str, Callable[..., None]] = {  # in the order in which --help lists them
    "evaluate": evaluate,
    "compare": compare,
    "report": report,
    "timescales": timescales,
    "generate": generate,
    "tune": tune,
    "gradient-stats": gradient_stats,
    "merge-stats": merge_stats,
    "train": train,
    "experiment": experiment,
    "lm-eval": lm_eval,
    "halve": halve,
    "import-charrnn": import_charrnn,
    "import-lstm": import_lstm,
}

INTERRUPTED = 130  # the exit code of a program that Ctrl-C ended
# what Typer raises for a wrong flag; its own name for it has moved between versions
USAGE_ERROR: Any = typer.BadParameter.__base__

app = typer.Typer(
    help="Language models that learn from what they have just read.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # half of the time of --help would go into the frames around it
)
for name, command in COMMANDS.items():
    app.command(name, context_settings=PASSED_ON if command is lm_eval else None)(command)


def main() -> None:
    """Run the command line: 0 is success, 2 a mistake that one line explains."""
    warnings.showwarning = _warn
    try:
        code = app(sys.argv[1:] or ["--help"], standalone_mode=False) or 0
        if code == INTERRUPTED:  # how Typer hands on Ctrl-C
            raise KeyboardInterrupt
        sys.exit(code)
    except (typer.Abort, KeyboardInterrupt):
        print("dyneval: interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED)
    except USAGE_ERROR as error:
        _fail(error.format_message())
    except BrokenPipeError:  # the reader of our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except (ValueError, OSError) as error:
        _fail(str(error))


def _fail(message: str) -> None:
    _say(message)
    sys.exit(2)


def _warn(message: Warning | str, *_: Any, **__: Any) -> None:
    """Show a warning as any other line, without the code that it came from."""
    _say(str(message))


def _say(message: str) -> None:
    print("dyneval: " + " ".join(message.split()), file=sys.stderr)
