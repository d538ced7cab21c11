"""Spelling: tokens as pieces of text that can be shown one by one.

A cell is one token, or as many tokens or bytes as it takes to end with a whole character. Joined,
the cells are the text. A byte that is no UTF-8 is a cell of its own, and its text a lone surrogate,
U+DC00 plus the byte.
"""

from __future__ import annotations

import codecs
import unicodedata
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dyneval.vocabularies import Vocabulary

Array = NDArray[Any]
JOINERS = "\u200c\u200d"  # what makes one emoji, or one Persian word, of several parts
# all that has no shape of its own: controls, formats, lone surrogates, separators, unassigned
SHAPELESS = {"Cc", "Cf", "Cs", "Zl", "Zp", "Cn", "Co"}


@dataclass(frozen=True)
class Cells:
    """Pieces of a text, each with the tokens it is made of."""

    texts: list[str]  # (C,)
    starts: Array  # (C + 1,) the number of each one's first token, and behind them of all

    @cached_property
    def text(self) -> str:
        """The text itself."""
        return "".join(self.texts)

    @cached_property
    def places(self) -> Array:
        """(C,) where each cell's text begins: at its first character that is no space, if any."""
        lengths = np.array([len(text) for text in self.texts], np.int64)
        spaces = [
            len(text) - len(text.lstrip(" ")) if text.strip(" ") else 0 for text in self.texts
        ]
        return np.cumsum(lengths) - lengths + np.array(spaces, np.int64)

    def sums(self, values: Array) -> Array:
        """(N,) values of the first N tokens -> (C,) their sums; 0 for cells that go beyond."""
        running = np.concatenate([[0.0], np.cumsum(values)])
        ends = self.starts[1:] <= len(values)
        starts = np.minimum(self.starts, len(values))
        return np.where(ends, running[starts[1:]] - running[starts[:-1]], 0.0)


def cells(tokens: Array, vocabulary: Vocabulary) -> Cells:
    """Return the cells of (N,) tokens."""
    if vocabulary.kind == "tokens":
        return _whole_characters(tokens, vocabulary)
    if vocabulary.kind != "bytes":
        return Cells(list(vocabulary.spell(tokens.tolist())), np.arange(len(tokens) + 1))
    texts = list(tokens.astype(np.uint8).tobytes().decode("utf-8", "surrogateescape"))
    points = np.array([ord(text) for text in texts], np.int64)
    sizes = 1 + (points > 0x7F) + (points > 0x7FF) + (points > 0xFFFF)
    sizes[(points >= 0xDC80) & (points <= 0xDCFF)] = 1
    return Cells(texts, np.concatenate([[0], np.cumsum(sizes)]))


def _whole_characters(tokens: Array, vocabulary: Vocabulary) -> Cells:
    """Return cells of as many tokens as it takes to end with a whole character."""
    decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
    texts, starts, text = [], [0], ""
    for k, token in enumerate(tokens.tolist(), 1):
        text += decoder.decode(vocabulary.piece(token), k == len(tokens))
        if not decoder.getstate()[0]:
            texts.append(text)
            starts.append(k)
            text = ""
    return Cells(texts, np.array(starts))


def visible(text: str) -> str:
    """Return a text in which every character can be seen and none changes the order of others.

    A control and a byte that is no UTF-8 become their two digits, a line's end ↵ with the newline
    behind it, a tab likewise, and nothing at all ⟨⟩.
    """
    if not text:
        return "⟨⟩"
    joined = any(character.isalpha() or character > "\u2100" for character in text.strip(JOINERS))
    return "".join(
        character if character in JOINERS and joined else _picture(character) for character in text
    )


def on_one_line(text: str) -> str:
    """Return a text that can be seen, on one line."""
    return visible(text).replace("\n", "").replace("\t", "")


def _picture(character: str) -> str:
    point = ord(character)
    if character == "\n":
        return "↵\n"
    if character == "\t":
        return "⇥\t"
    if point < 0x20 or point == 0x7F:
        return f"⟨{point:02X}⟩"
    if 0xDC80 <= point <= 0xDCFF:
        return f"⟨{point - 0xDC00:02X}⟩"
    if unicodedata.category(character) in SHAPELESS:
        return f"⟨U+{point:04X}⟩"
    return character
