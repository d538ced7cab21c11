"""`dyneval experiment`: a table or a figure of the paper, run as far as it is missing."""

from __future__ import annotations

import json as json_
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from dyneval.cli.options import Device, Engine, Json, Quiet, Threads, use


def experiment(
    file: Annotated[Path, Argument(help="One of experiments/*.py, or one of your own.")],
    scale: Annotated[str, Option(help="paper, desk or miniature.")] = "desk",
    folder: Annotated[
        Path | None, Option(help="Where it works (default: out/experiments/SCALE)")
    ] = None,
    only: Annotated[
        list[str] | None, Option(help="Do this part alone; may be repeated.", metavar="PART")
    ] = None,
    save: Annotated[
        Path | None, Option(help="Write what was found (.json, and .png of curves beside).")
    ] = None,
    engine: Engine = "auto",
    device: Device = "auto",
    threads: Threads = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train, collect, tune and test what is missing, and show it beside the paper's figures.

    Stopped at any point, the same command goes on from there.
    """
    use(threads)
    from dyneval import experiment_report, experiments, storage, timescale_report
    from dyneval.progress import bars
    from dyneval.stages import Workspace

    if save:
        storage.check_writable(save, (".json",))
    task = experiments.load(file)
    place = folder or Path("out", "experiments", scale)
    with bars("steps", quiet=quiet) as update:
        work = Workspace(place, task.name, device, engine, update)  # type: ignore[arg-type]
        found = experiments.execute(task, scale, work, only or ())
    if save:
        storage.write_json(save, found)
        picture = save.with_suffix(".png")
        for name, curve in found["curves"].items():
            timescale_report.figure(curve, experiment_report.figure_of(picture, name))
    if json:
        print(json_.dumps(found))
    else:
        experiment_report.show(found)
