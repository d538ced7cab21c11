"""Studies: the part of a page that shows an experiment, ours below the rows of the paper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from dyneval import published, spelling
from dyneval.page import curves
from dyneval.page.markup import Markup, join, number, pointer, tag
from dyneval.page.parts import facts_of, gain_of, table
from dyneval.published import Line

SETTINGS = {  # of a row, as the paper calls them
    "segment_length": "n",
    "rule": "Rule",
    "learning_rate": "η",
    "decay_rate": "λ",
    "epsilon": "ε",
}


def article(name: str, found: Mapping[str, Any], identity: str, several: bool) -> Markup:
    """Return all that there is to see of what `dyneval experiment --save` wrote."""
    outer, inner = ("h2", "h3") if several else ("h1", "h2")
    parts = {f"Loss by position: {name}": _curve(found, name) for name in found["curves"]}
    below = f"h{int(inner[1]) + 1}"
    parts |= {f"Samples: {name}": _samples(found, name, below) for name in found["samples"]}
    if found["studies"]:
        parts["Settings and provenance"] = join(
            *(_study(study, k) for k, study in enumerate(found["studies"]))
        )
    places = {label: f"{identity}-part{k}" for k, label in enumerate(parts, 1)}
    links = [tag("li", tag("a", label, href=f"#{place}")) for label, place in places.items()]
    sections = [
        tag("section", tag(inner, label, id=places[label]), part, aria_labelledby=places[label])
        for label, part in parts.items()
    ]
    return tag(
        "article",
        tag("p", name, class_="over") if several else None,
        tag(outer, found["title"]),
        tag("p", f"{found['figure'].capitalize()}, {found['scale']} scale", class_="lead"),
        tag("section", _summary(found), class_="summary", aria_label="Summary"),
        tag("nav", tag("ul", *links), aria_label="Contents") if len(links) > 1 else None,
        *sections,
        id=identity,
        data_name=name,
    )


def title(found: Mapping[str, Any]) -> str:
    """Return what was studied."""
    return str(found["title"])


# Ours beside the paper's


def _summary(found: Mapping[str, Any]) -> Markup:
    lines, own = list(published.lines(found)), list(published.ours(found))
    shown = {line.place for line in lines}
    lines += [
        replace(line, name=f"{line.name}: {line.row}") for line in own if line.place not in shown
    ]
    facts = [tag("li", f"The paper, {of}: {fact}.") for of, fact in published.facts(found).items()]
    notes = [
        "Gain: by what part the test figure is lower than that of the same model without learning. "
        "Ours, ↳ and in colour, have their interval of 95% from a paired block bootstrap; p is of "
        "no difference. A ring is the paper's gain, a dot ours."
    ]
    if "published" not in found:
        notes.append(
            "This result was saved without the paper's rows. Save the experiment again to see "
            "them: what is done is not done again."
        )
    about = {study["run"]["corpus"]: study["run"]["note"] for study in found["studies"]}
    notes += [f"{corpus}: {note}." for corpus, note in about.items() if note]
    notes += [f"{line.figures['diverged']}." for line in own if "diverged" in line.figures]
    return join(
        tag("ul", *facts, class_="published") if facts else None,
        _beside(found, lines) if lines else None,
        *(tag("p", note, class_="note") for note in notes if lines),
    )


def _beside(found: Mapping[str, Any], lines: Sequence[Line]) -> Markup:
    ends = [
        line.gain[end]
        for line in lines
        for end in ("relative", "low", "high")
        if line.gain and end in line.gain
    ]
    scale = min(0.0, *ends, 0.0), max(0.0, *ends, 0.0)
    rows = [
        tag(
            "tr",
            tag("th", f"↳ {line.name}" if line.ours else line.name, scope="row"),
            tag("td", _weights(found, line)),
            *(tag("td", _figure(line, split)) for split in ("valid", "test")),
            tag("td", gain_of(line.gain, *line.place) if line.gain else None),
            tag("td", _drawn(line, *scale) if line.gain else None, class_="bar"),
            tag("td", _chance(line)),
            class_=("ours" if line.figures else "missing") if line.ours else None,
        )
        for line in lines
    ]
    heads = ("Model", "Weights", "Valid", "Test", "Gain, % (95%)", "", "p")
    return tag("div", table(heads, rows, "Ours and published figures"), class_="beside")


def _weights(found: Mapping[str, Any], line: Line) -> Markup:
    """Return how many weights a model has: as the paper says it, or as the file does."""
    if not line.ours or not line.parameters:
        return join(line.parameters)
    study = line.place[1]
    weights = found["studies"][int(study)]["run"]["weights"]
    return number(weights, line.parameters, pointer("studies", study, "run", "weights"))


def _figure(line: Line, split: str) -> Markup | None:
    value = line.figures.get(split)
    if value is None:
        return None
    return number(value, f"{value:,.{line.digits}f}", pointer(*line.place, split))


def _chance(line: Line) -> Markup | None:
    chance = (line.gain or {}).get("p_value")
    if chance is None:
        return None
    return number(chance, f"{chance:.3f}", pointer(*line.place, "gain", "p_value"))


def _drawn(line: Line, low: float, high: float) -> Markup:
    """Draw a gain, and its interval if it has one, on the scale of the table."""
    assert line.gain

    def place(value: float) -> float:
        return 4 + 92 * (value - low) / (high - low or 1)

    zero, middle = f"{place(0):.2f}%", f"{place(line.gain['relative']):.2f}%"
    parts = [tag("line", x1=zero, x2=zero, y1="0", y2="100%", class_="zero")]
    if "low" in line.gain:
        first, last = place(line.gain["low"]), place(line.gain["high"])
        width = f"{max(0.0, last - first):.2f}%"
        parts.append(tag("rect", x=f"{first:.2f}%", width=width, y="35%", height="30%", rx=2))
    parts.append(tag("circle", cx=middle, cy="50%", r=4))
    return tag("svg", *parts, class_="span", aria_hidden="true")


# What else was found


def _curve(found: Mapping[str, Any], name: str) -> Markup:
    return curves.body(found["curves"][name], ("curves", name))


def _samples(found: Mapping[str, Any], name: str, heading: str) -> Markup:
    """Return what was written, a column for each predictor."""
    columns = []
    for predictor, written in found["samples"][name].items():
        place = ("samples", name, predictor)
        share = written.get("share")
        known = None if share is None else _share(share, *place)
        texts = [
            tag(
                "blockquote",
                tag("bdi", spelling.visible(sample["text"])),
                tabindex=0,
                role="region",
                aria_label=f"{predictor}, seed {sample['seed']}",
            )
            for sample in written["samples"]
        ]
        columns.append(tag("div", tag(heading, predictor), known, *texts))
    run = next(iter(found["samples"][name].values()))["run"]
    rules = {which: one["run"]["rule"] for which, one in found["samples"][name].items()}
    return join(tag("div", *columns, class_="samples"), facts_of(run | {"rule": rules}))


def _share(share: float, *place: str) -> Markup:
    value = number(share, f"{100 * share:.1f}", pointer(*place, "share"))
    return tag("p", value, "% of its words are in the text", class_="note")


def _study(study: Mapping[str, Any], number_: int) -> Markup:
    """Return how the rows of a study were tuned, and what they depend on."""
    rows = study["rows"]
    given = {key: None for row in rows.values() for key in row["settings"]}
    keys = [*(key for key in SETTINGS if key in given), *(k for k in given if k not in SETTINGS)]
    lines = []
    for name, row in rows.items():
        place = ("studies", str(number_), "rows", name)
        seconds = row.get("seconds"), study["tuning_seconds"].get(name)
        lines.append(
            tag(
                "tr",
                tag("th", name, scope="row"),
                *(
                    tag("td", _setting(row["settings"].get(key), *place, "settings", key))
                    for key in keys
                ),
                tag("td", _seconds(seconds[0], *place, "seconds")),
                tag("td", _seconds(seconds[1], "studies", str(number_), "tuning_seconds", name)),
            )
        )
    heads = ["Row", *(SETTINGS.get(key, key.replace("_", " ")) for key in keys)]
    run = study["run"] | {"rule": {}, "tuned by": study["plan"]}
    return join(
        table([*heads, "Seconds", "Tuning, s"], lines, study["name"], hidden=False),
        facts_of(run),
    )


def _setting(value: Any, *place: str) -> Markup | None:
    if value is None or isinstance(value, bool | str | list | dict):
        return None if value is None else join(str(value))
    return number(value, f"{value}" if isinstance(value, int) else f"{value:.3g}", pointer(*place))


def _seconds(value: float | None, *place: str) -> Markup | None:
    return None if value is None else number(value, f"{value:,.0f}", pointer(*place))
