"""Pages: one HTML file that shows what models learned while they read.

The file holds all that it needs, its style and script as real files beside this one. It asks no
network for anything, and a policy in its head forbids the browser to run or fetch what is not in
it, whatever the text that was read holds.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from pathlib import Path
from string import Template
from typing import Any

from dyneval import storage
from dyneval.page import curves, sections
from dyneval.page.markup import Markup, join, tag
from dyneval.results import Result

FOLDER = Path(__file__).parent
SCRIPTS = ("numbers.js", "charts.js", "text.js", "page.js")
ENDINGS = (".html",)


Shown = Result | Mapping[str, Any]  # the latter is what `Timescales.to_json` returned


def build(results: Mapping[str, Shown]) -> str:
    """Return the HTML of one or more results, by the names they go by."""
    if not results:
        raise ValueError("there is no result to report; give one that `evaluate --save` wrote")
    style = (FOLDER / "page.css").read_text("utf-8")
    script = '"use strict";\n' + "\n".join((FOLDER / name).read_text("utf-8") for name in SCRIPTS)
    several = len(results) > 1
    articles, titles, places = [], [], {}
    for k, (name, result) in enumerate(results.items(), 1):
        part = sections if isinstance(result, Result) else curves
        articles.append(part.article(name, result, f"r{k}", several))
        titles.append(part.title(result))
        if isinstance(result, Result):
            places[f"r{k}"] = name, result
    overview = sections.overview(places) if several and places else None
    title = "Dynamic evaluation" if several else titles[0]
    skeleton = Template((FOLDER / "page.html").read_text("utf-8"))
    return skeleton.substitute(
        title=join(title),
        heading=join(tag("h1", "Dynamic evaluation") if several else None),
        style=Markup(style),
        style_hash=_hash(style),
        script=Markup(script),
        script_hash=_hash(script),
        body=join(overview, *articles),
    )


def write(results: Mapping[str, Shown], path: Path) -> None:
    """Write the page."""
    storage.check_writable(path, ENDINGS)
    text = build(results)
    with storage.replacing(path) as temporary:
        temporary.write_text(text, "utf-8", newline="\n")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
