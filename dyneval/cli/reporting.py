"""`dyneval report`: what results show, as a page, figures and tables."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from dyneval.cli.options import Quiet


def report(
    results: Annotated[
        list[Path],
        Argument(
            help="What `evaluate`, `timescales` or `experiment` saved (.json), or folders of it.",
            metavar="RESULT…",
        ),
    ],
    out: Annotated[Path, Option(help="The folder to write.")],
    quiet: Quiet = False,
) -> None:
    """Write a page of the text coloured by what was gained, figures and tables for papers."""
    from dyneval import dossier, experiment_report, timescale_report
    from dyneval import report as report_
    from dyneval.results import Result

    dossier.check(out)
    found = dossier.load(results)
    if not quiet:
        for result in found.values():
            if isinstance(result, Result):
                report_.show(result)
            elif "studies" in result:
                experiment_report.show(result)
            else:
                timescale_report.show(dict(result))
    print(f"report: {dossier.write(found, out)}")
