"""Progress of long work, shown in one way: a bar with the pace, the time left and a figure.

It is drawn on standard error, and only where that is a terminal, so that pipes stay clean.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)

Update = Callable[[str, float, float, str], None]  # what, done, of how much, a figure


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

    def update(what: str, done: float, total: float, figure: str) -> None:
        if what not in tasks:
            tasks[what] = progress.add_task(what, total=total, pace="", figure="")
        task = progress.tasks[progress.task_ids.index(tasks[what])]
        pace = f"{task.speed:,.0f} {unit}/s" if task.speed else ""
        progress.update(tasks[what], completed=done, total=total, pace=pace, figure=figure)

    with progress:
        yield update
