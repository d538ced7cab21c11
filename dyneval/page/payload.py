"""Payloads: what the page's script draws from, as small as it gets without losing a digit."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dyneval import spelling, views
from dyneval.report import UNITS
from dyneval.results import Result
from dyneval.spelling import Cells

Array = NDArray[Any]


def payload(result: Result, cells: Cells | None) -> dict[str, Any]:
    """Return the nats of every token, the text in cells, and the points of the figures."""
    kind = result.run["vocabulary"]["kind"]
    chosen = views.pair(result)
    return {
        "kind": kind,
        "figure": UNITS[kind][0],
        "digits": UNITS[kind][1],
        "tokens": len(result.scored.tokens),
        "predictors": list(result.scores),
        "nats": [packed(_narrow(score.nats)) for score in result.scores.values()],
        "pair": [list(result.scores).index(name) for name in chosen] if chosen else None,
        "cumulative": views.cumulative(result),
        "positions": views.by_position(result, *chosen) if chosen else [],
        "text": _text(cells) if cells else None,
    }


def _text(cells: Cells) -> dict[str, Any]:
    """Return the different cells, which of them stand where, and how many tokens each has."""
    different = {text: k for k, text in enumerate(dict.fromkeys(cells.texts))}
    shown = [spelling.visible(text) for text in different]
    sizes = np.diff(cells.starts)
    ids = np.array([different[text] for text in cells.texts], np.uint32)
    return {
        "pieces": shown,
        "marked": [k for text, k in different.items() if shown[k] != text],
        "ids": packed(_smallest(ids)),
        "sizes": None if (sizes == 1).all() else packed(sizes.astype(np.uint8)),
    }


def packed(values: Array) -> dict[str, str]:
    """Return an array as base64, with the name of its type."""
    little = np.ascontiguousarray(values, values.dtype.newbyteorder("<"))
    return {"type": values.dtype.str[1:], "data": base64.b64encode(little.tobytes()).decode()}


def _narrow(values: Array) -> Array:
    """Return numbers in 32 bits where that loses nothing, as for what a model computed in them."""
    half = values.astype(np.float32)
    return half if (half == values).all() else values.astype(np.float64)


def _smallest(values: Array) -> Array:
    """Return counting numbers in as few bits as hold them all."""
    most = int(values.max()) if len(values) else 0
    return values.astype(np.min_scalar_type(most))
