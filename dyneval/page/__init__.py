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
from dyneval.page import curves, overview, sections, studies
from dyneval.page.markup import Markup, join, tag
from dyneval.results import Result
from dyneval.views import Shown

FOLDER = Path(__file__).parent
SCRIPTS = ("numbers.js", "charts.js", "text.js", "page.js")
ENDINGS = (".html",)


def build(results: Mapping[str, Shown]) -> str:
    """Return the HTML of one or more results, by the names they go by."""
    if not results:
        raise ValueError("there is no result to report; give one that `evaluate --save` wrote")
    style = (FOLDER / "page.css").read_text("utf-8")
    script = '"use strict";\n' + "\n".join((FOLDER / name).read_text("utf-8") for name in SCRIPTS)
    several = len(results) > 1
    articles, titles = [], []
    for k, (name, result) in enumerate(results.items(), 1):
        part = _part(result)
        articles.append(part.article(name, result, f"r{k}", several))
        titles.append(part.title(result))
    identified = {f"r{k}": shown for k, shown in enumerate(results.items(), 1)}
    title = "Dynamic evaluation" if several else titles[0]
    skeleton = Template((FOLDER / "page.html").read_text("utf-8"))
    return skeleton.substitute(
        title=join(title),
        heading=join(tag("h1", "Dynamic evaluation") if several else None),
        style=Markup(style),
        style_hash=_hash(style),
        script=Markup(script),
        script_hash=_hash(script),
        body=join(overview.section(identified) if several else None, *articles),
    )


def _part(shown: Shown) -> Any:
    """Return the module that shows a kind of result."""
    if isinstance(shown, Result):
        return sections
    return studies if "studies" in shown else curves


def write(results: Mapping[str, Shown], path: Path) -> None:
    """Write the page."""
    storage.check_writable(path, ENDINGS)
    text = build(results)
    with storage.replacing(path) as temporary:
        temporary.write_text(text, "utf-8", newline="\n")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
