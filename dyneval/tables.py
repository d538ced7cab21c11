"""Tables for papers and pull requests: LaTeX (booktabs) and Markdown, of the same rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from dyneval import published
from dyneval.report import UNITS
from dyneval.results import QUOTED, Result
from dyneval.views import Shown

HEADS = ("model", "text", "predictor", "tokens", "figure", "value", "gain, %", "95%")
NUMBERS = (3, 5, 6, 7)  # columns that stand to the right
STUDIED = ("model", "weights", "valid", "test", "gain, %", "95%")
CURVED = ("predictor", "positions", "bits/token", "95%", "gain, bits/token", "95%")
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
        "↳": r"\quad",
        "\n": " ",
        "\r": " ",
    }
    | {character: "\\" + character for character in "&%$#_{}"}
)
MARKDOWN = str.maketrans(
    {character: "\\" + character for character in "\\|`*_[]<>"} | {"\n": " ", "\r": " "}
)


class Section(NamedTuple):
    """A table, and the numbers of its columns that stand to the right."""

    title: str
    heads: tuple[str, ...]
    numbers: Sequence[int]
    rows: list[tuple[str, ...]]


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
    relative = f"{100 * gain['relative']:+.1f}".replace("-", "−")
    if "low" not in gain:  # of a published row
        return relative, ""
    low, high = (f"{100 * gain[key]:.1f}".replace("-", "−") for key in ("low", "high"))
    return relative, f"[{low}, {high}]"


def _sections(found: Mapping[str, Shown]) -> list[Section]:
    """Return the tables of results, of experiments, and of the curves of sequences."""
    whole = {name: one for name, one in found.items() if isinstance(one, Result)}
    sections = [Section("", HEADS, NUMBERS, rows(whole))] if whole else []
    for name, one in found.items():
        if isinstance(one, Result):
            continue
        curves = {name: one} if "buckets" in one else one["curves"]
        if studied := list(_studied(one)) if "studies" in one else []:
            sections.append(Section(published.heading(one), STUDIED, range(1, 6), studied))
        for curve, value in curves.items():
            sections.append(Section(curve, CURVED, range(2, 6), list(_curved(value))))
    return sections


def _studied(found: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """Yield a row for each published one, and for each of ours below it."""
    for line in published.lines(found):
        figures = (line.figures.get(split) for split in ("valid", "test"))
        shown = ("" if value is None else f"{value:,.{line.digits}f}" for value in figures)
        name = f"↳ {line.name}" if line.ours else line.name
        yield name, line.parameters, *shown, *_gain(line.figures)


def _curved(value: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """Yield a row for each predictor, over all positions and over the last ones."""
    for name, row in value.items():
        for part in ("all", "last") if name not in ("buckets", "run") else ():
            if part == "last" and row[part]["from"] == 1:  # all over again
                continue
            bands = (row[part]["bits_per_token"], row[part].get("gain"))
            span = f"{row[part]['from']:,}–{row[part]['to']:,}"
            yield name, span, *(cell for band in bands for cell in _band(band))


def _band(band: Mapping[str, float] | None) -> tuple[str, str]:
    if not band:
        return "", ""
    mean, low, high = (f"{band[key]:.3f}".replace("-", "−") for key in ("mean", "low", "high"))
    return mean, f"[{low}, {high}]"


def markdown(found: Mapping[str, Shown]) -> str:
    """Return tables as GitHub and others show them."""
    return "\n".join(
        (f"**{section.title.translate(MARKDOWN)}**\n\n" if section.title else "")
        + "".join(f"| {' | '.join(line)} |\n" for line in _markdown_lines(section))
        for section in _sections(found)
    )


def _markdown_lines(section: Section) -> list[Sequence[str]]:
    rule = ["---:" if k in section.numbers else "---" for k in range(len(section.heads))]
    cells = [[cell.translate(MARKDOWN) for cell in row] for row in section.rows]
    return [section.heads, rule, *cells]


def latex(found: Mapping[str, Shown]) -> str:
    """Return tables for a paper that loads booktabs."""
    head = "% needs \\usepackage{booktabs}\n"
    return head + "\n".join(_tabular(section) for section in _sections(found))


def _tabular(section: Section) -> str:
    columns = "".join("r" if k in section.numbers else "l" for k in range(len(section.heads)))
    head, *body = (
        " & ".join(cell.translate(LATEX) for cell in row) + " \\\\"
        for row in (section.heads, *section.rows)
    )
    return "\n".join(
        [
            *([f"% {' '.join(section.title.split())}"] if section.title else []),
            f"\\begin{{tabular}}{{{columns}}}",
            "\\toprule",
            head,
            "\\midrule",
            *body,
            "\\bottomrule",
            "\\end{tabular}",
            "",
        ]
    )
