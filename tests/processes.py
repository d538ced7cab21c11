"""The command line as a process of its own, and what it says in the end."""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple


class Done(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str


def json_of(done: Done) -> Any:
    """Return the one object that a command printed, when it printed nothing else."""
    assert (done.code, done.err) == (0, "")
    assert done.out.count("\n") == 1
    return json.loads(done.out)


def one_line(err: str) -> str:
    """Return the one line that a mistake is explained in."""
    assert err.startswith("dyneval: ")
    assert err.count("\n") == 1
    assert err.endswith("\n")
    assert "Traceback" not in err
    return err


def process(*arguments: object, **options: Any) -> subprocess.Popen[bytes]:
    """Start the command line as a process of its own, with one thread."""
    there = {"PYTHONPATH": str(Path(__file__).parent.parent), "OMP_NUM_THREADS": "1"}
    line = [sys.executable, "-m", "dyneval.cli", *map(str, arguments)]
    environment = os.environ | there | options.pop("env", {})
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    # a shell's background jobs, and so what they start, ignore Ctrl-C
    heed = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    return subprocess.Popen(line, env=environment, preexec_fn=heed, **pipes | options)


def killed(process: subprocess.Popen[bytes], when: Callable[[], bool]) -> None:
    """Kill a process (-9) as soon as something holds."""
    with process:
        while not when():
            assert process.poll() is None, process.communicate()
            time.sleep(0.002)
        process.kill()
        process.communicate()
    assert process.returncode == -signal.SIGKILL
