"""Progress of long work, shown in one way: a bar with the pace, the time left and a figure.

It is drawn on standard error, and only where that is a terminal, so that pipes stay clean.
Downloads of corpora have a bar of their own there. A run can be logged as well: as lines of JSON,
and for TensorBoard.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from math import isfinite
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)

from dyneval import corpora

Update = Callable[[str, float, float, str], None]  # what, done, of how much, a figure
Note = Callable[[str, int, Mapping[str, float]], None]  # what, at which step, its figures


@contextmanager
def bars(unit: str, *, quiet: bool = False) -> Iterator[Update]:
    """Give a function that moves the bar of a piece of work, and makes it at its first call."""
    console = Console(stderr=True)
    progress = Progress(
        TextColumn("{task.description}", markup=False),  # a row's name may hold brackets
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[pace]}"),
        TextColumn("{task.fields[figure]}", markup=False),
        TimeRemainingColumn(elapsed_when_finished=True),
        console=console,
        disable=quiet or not console.is_terminal,
    )
    tasks: dict[str, TaskID] = {}

    def move(what: str, done: float, total: float, figure: str, unit: str = unit) -> None:
        if what not in tasks:
            tasks[what] = progress.add_task(what, total=total, pace="", figure="")
        task = progress.tasks[progress.task_ids.index(tasks[what])]
        pace = f"{task.speed:,.0f} {unit}/s" if task.speed else ""
        progress.update(tasks[what], completed=done, total=total, pace=pace, figure=figure)

    def download(what: str, done: int, total: int) -> None:
        move(f"download of {what}", done / 1000, (total or done) / 1000, "", "kB")

    with progress, corpora.downloads(download):
        yield move


@contextmanager
def logs(lines: Path | None, tensorboard: Path | None) -> Iterator[Note]:
    """Give a function that notes figures in a file of JSON lines, for TensorBoard, or both.

    The file is written on at its end; each line of it is whole at once, so that others can follow.
    """
    with ExitStack() as stack:
        writer = _writer(tensorboard) if tensorboard else None
        if writer:
            stack.callback(writer.close)
        file = None
        if lines:
            lines.parent.mkdir(parents=True, exist_ok=True)
            file = stack.enter_context(lines.open("a", encoding="utf-8", buffering=1))

        def note(what: str, step: int, figures: Mapping[str, float]) -> None:
            if file:
                row = {"time": time.time(), "what": what, "step": step}
                row |= {name: value if isfinite(value) else None for name, value in figures.items()}
                file.write(json.dumps(row) + "\n")
            if writer:
                for name, value in figures.items():
                    writer.add_scalar(f"{what}/{name}", value, step)

        yield note


def _writer(folder: Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise ValueError(
            "TensorBoard is not installed; install it with `pip install dyneval[tensorboard]`, or "
            "log to a file with --log"
        ) from None
    return SummaryWriter(folder)
