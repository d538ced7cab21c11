"""The examples run as they stand, and show what they claim: dynamic beats static."""

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


def run(example: str, *arguments: str) -> dict[str, float]:
    """Return the figures that an example prints, by the name before each."""
    one_thread_here = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(EXAMPLES.parent)}
    done = subprocess.run(
        [sys.executable, EXAMPLES / example, *arguments],
        env=os.environ | one_thread_here,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    figures = re.findall(r"^(static|dynamic) +([\d.]+) bits a", done.stdout, re.M)
    return {name: float(figure) for name, figure in figures}


@pytest.mark.parametrize("example", sorted(path.name for path in EXAMPLES.glob("*.py")))
def test_dynamic_beats_static(example):
    figures = run(example)
    assert figures["dynamic"] < 0.95 * figures["static"]


def test_the_corpus_can_be_any_file():
    figures = run("your_own_corpus.py", argparse.__file__)
    assert figures["dynamic"] < figures["static"]
