"""`dyneval lm-eval`: lm-evaluation-harness with dynamic evaluation as its model."""

from __future__ import annotations

import importlib.util
from typing import Any, NoReturn

from typer import Context

# arguments go to the harness as they are
PASSED_ON = {"allow_extra_args": True, "ignore_unknown_options": True}


def lm_eval(context: Context) -> None:
    """Run lm-evaluation-harness with a model that learns from each document as it reads it.

    Flags are those of `lm_eval run`: --tasks, --limit, --output_path and so on. --model is dyneval,
    and --model_args are pretrained=MODEL and flags of `dyneval evaluate`, as
    pretrained=gpt2,rule=sgd,learning_rate=0.01,context=512; reset=stream does not begin each
    document with the trained weights; static=true does not learn.
    """
    if importlib.util.find_spec("lm_eval") is None:
        raise ValueError(
            "lm-evaluation-harness is not installed; pip install 'dyneval[eval]' brings it"
        )
    import argparse

    from lm_eval._cli.run import Run
    from lm_eval.utils import setup_logging

    from dyneval import harness  # noqa: F401 - lm_eval knows it from now on

    setup_logging()
    run: Any = Run.create(argparse.ArgumentParser().add_subparsers())
    parser = run._parser
    parser.set_defaults(model="dyneval", device="auto")  # not the first GPU
    parser.error = _refuse
    given = parser.parse_args(context.args)
    given.func(given)


def _refuse(message: str) -> NoReturn:
    raise ValueError(f"{message}; `lm_eval run --help` lists the flags of the harness")
