"""Fill the tables of docs/reproduction.md from docs/results/*.json, as experiments saved them.

    python experiments/write_docs.py

Those files get the published rows of the experiments as they are now, so that reports show them.

A table stands between `<!-- ptb -->` and `<!-- end of ptb -->`, and so for each experiment; what
is around them is written by hand. Where nothing was run, the table says so.
"""

import sys
from pathlib import Path
from typing import Any

from dyneval import experiment_report, experiments, storage

ROOT = Path(__file__).parent.parent
DOCUMENT = ROOT / "docs" / "reproduction.md"
RESULTS = ROOT / "docs" / "results"
FILES = sorted({*Path(__file__).parent.glob("*.py")} - {Path(__file__)})


def filled(text: str, results: Path) -> str:
    """Return a document with the table of each experiment between its marks."""
    for file in FILES:
        begin, end = f"<!-- {file.stem} -->\n", f"<!-- end of {file.stem} -->"
        if text.count(begin) != 1 or text.count(end) != 1:
            raise ValueError(f"the document has no place for {file.stem}: {begin.strip()} … {end}")
        table = experiment_report.markdown(with_published(file, results / f"{file.stem}.json"))
        before, _, rest = text.partition(begin)
        text = f"{before}{begin}\n{table}\n\n{end}{rest.partition(end)[2]}"
    return text


def with_published(file: Path, saved: Path) -> dict[str, Any]:
    """Return what an experiment found, if it was run, with the published rows of its file."""
    begun = experiments.load(file).begun("")
    found = storage.read_json(saved) if saved.exists() else {}
    return begun | found | {"published": begun["published"]}


if __name__ == "__main__":
    document = Path(sys.argv[1]) if len(sys.argv) > 1 else DOCUMENT
    for file in FILES:
        saved = RESULTS / f"{file.stem}.json"
        if saved.exists():
            storage.write_json(saved, with_published(file, saved))
    whole = filled(document.read_text("utf-8"), RESULTS)
    with storage.replacing(document) as temporary:
        temporary.write_text(whole, "utf-8")
