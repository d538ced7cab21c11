"""Fill the tables of docs/reproduction.md from docs/results/*.json, as experiments saved them.

    python experiments/write_docs.py

A table stands between `<!-- ptb -->` and `<!-- end of ptb -->`, and so for each experiment; what
is around them is written by hand. Where nothing was run, the table says so.
"""

import sys
from pathlib import Path

from dyneval import experiment_report, experiments, storage

ROOT = Path(__file__).parent.parent
DOCUMENT = ROOT / "docs" / "reproduction.md"


def filled(text: str, results: Path) -> str:
    """Return a document with the table of each experiment between its marks."""
    for file in sorted(Path(__file__).parent.glob("*.py")):
        begin, end = f"<!-- {file.stem} -->\n", f"<!-- end of {file.stem} -->"
        if file.name == Path(__file__).name:
            continue
        if text.count(begin) != 1 or text.count(end) != 1:
            raise ValueError(f"the document has no place for {file.stem}: {begin.strip()} … {end}")
        found = results / f"{file.stem}.json"
        table = experiment_report.markdown(
            experiments.load(file), storage.read_json(found) if found.exists() else None
        )
        before, _, rest = text.partition(begin)
        text = f"{before}{begin}\n{table}\n\n{end}{rest.partition(end)[2]}"
    return text


if __name__ == "__main__":
    document = Path(sys.argv[1]) if len(sys.argv) > 1 else DOCUMENT
    whole = filled(document.read_text("utf-8"), ROOT / "docs" / "results")
    with storage.replacing(document) as temporary:
        temporary.write_text(whole, "utf-8")
