"""Tables for papers and pull requests: LaTeX (booktabs) and Markdown, of the same rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dyneval import published
from dyneval.report import UNITS
from dyneval.results import QUOTED, Result

HEADS = ("model", "text", "predictor", "tokens", "figure", "value", "gain, %", "95%")
NUMBERS = (3, 5, 6, 7)  # columns that stand to the right
LATEX = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "<": r"\textless{}",
        ">": r"\textgreater{}",
        "–": "--",
        "[": "{[}",  # or a row that begins with it would be taken for a length
        "−": "$-$",
        "\n": " ",
        "\r": " ",
    }
    | {character: "\\" + character for character in "&%$#_{}"}
)
MARKDOWN = str.maketrans(
    {character: "\\" + character for character in "\\|`*_[]<>"} | {"\n": " ", "\r": " "}
)


def rows(results: Mapping[str, Result]) -> list[tuple[str, ...]]:
    """Return a row of text for each predictor, and for each that was published on the same text."""
    found: list[tuple[str, ...]] = []
    others: dict[tuple[str, ...], None] = {}  # each once
    for result in results.values():
        run, kind = result.run, result.run["vocabulary"]["kind"]
        figure, digits = UNITS[kind]
        for name, row in result.to_json().items():
            if name != "run":
                where = (str(run["model"]), f"{run['corpus']} ({run['split']})", name)
                value = row[QUOTED[kind]]
                shown = "–" if value is None else f"{value:,.{digits}f}"
                found.append((*where, f"{row['tokens']:,}", figure, shown, *_gain(row)))
        for other in published.beside(run):
            text = "Hutter Prize" if other.note else str(run["corpus"])
            for name in ("static", "dynamic"):
                where = (f"{other.model}, published", f"{text} (test)", name)
                others[*where, "", figure, f"{other.values[name]}", "", ""] = None
    return [*found, *others]


def _gain(row: Mapping[str, Any]) -> tuple[str, str]:
    gain = row.get("gain")
    if not gain or gain["relative"] is None:
        return "", ""
    relative, low, high = (100 * gain[key] for key in ("relative", "low", "high"))
    return f"{relative:+.1f}".replace("-", "−"), f"[{low:.1f}, {high:.1f}]".replace("-", "−")


def markdown(results: Mapping[str, Result]) -> str:
    """Return a table as GitHub and others show it."""
    rule = ["---:" if k in NUMBERS else "---" for k in range(len(HEADS))]
    lines = [HEADS, rule, *([cell.translate(MARKDOWN) for cell in row] for row in rows(results))]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def latex(results: Mapping[str, Result]) -> str:
    """Return a table for a paper that loads booktabs."""
    columns = "".join("r" if k in NUMBERS else "l" for k in range(len(HEADS)))
    lines = [" & ".join(cell.translate(LATEX) for cell in row) for row in (HEADS, *rows(results))]
    head, body = lines[0], lines[1:]
    return "\n".join(
        [
            "% needs \\usepackage{booktabs}",
            f"\\begin{{tabular}}{{{columns}}}",
            "\\toprule",
            f"{head} \\\\",
            "\\midrule",
            *(f"{line} \\\\" for line in body),
            "\\bottomrule",
            "\\end{tabular}",
            "",
        ]
    )
