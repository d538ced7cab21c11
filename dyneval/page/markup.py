"""Markup: HTML made of elements whose text and attributes are escaped, whatever they hold."""

from __future__ import annotations

import html
import json
from typing import Any

EMPTY = {"br", "col"}  # elements without an end tag here


class Markup(str):
    """HTML that stands as it is; any other string is text."""

    __slots__ = ()


def tag(name: str, *content: object, **attributes: object) -> Markup:
    """Return an element; `class_` is its class, and `data_of` its data-of.

    An attribute that is None or False is left out, and one that is True stands without a value.
    """
    parts = [name]
    for key, value in attributes.items():
        key = key.rstrip("_").replace("_", "-")
        if value is True:
            parts.append(key)
        elif value is not None and value is not False:
            parts.append(f'{key}="{html.escape(str(value))}"')
    start = "<" + " ".join(parts) + ">"
    return Markup(start if name in EMPTY else f"{start}{join(*content)}</{name}>")


def join(*content: object) -> Markup:
    """Return pieces of HTML and text behind each other; None is nothing."""
    return Markup(
        "".join(
            part if isinstance(part, Markup) else html.escape(str(part))
            for part in content
            if part is not None
        )
    )


def number(value: float | None, text: str, of: str | None = None) -> Markup:
    """Return a number as people read it, with its full value and its place in the result's file."""
    if value is None:
        return tag("span", "–", class_="none")
    return tag("data", text.replace("-", "−"), value=repr(value), data_of=of)


def pointer(*keys: str) -> str:
    """Return where a value stands in a JSON object (RFC 6901)."""
    return "".join("/" + key.replace("~", "~0").replace("/", "~1") for key in keys)


def data(value: Any, **attributes: object) -> Markup:
    """Return JSON for the page's own script; nothing in it can end the element or run."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return tag("script", Markup(text), type="application/json", **attributes)
