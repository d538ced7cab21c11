"""Documents: a text cut into spans, each of which can be read on its own.

The documents of a text, one behind the other, are the text: no token is lost, none is in two. A
blank line belongs to the document before it, or else to the first one; a file without a token is
none. How documents are read is the matter of `waves`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from dyneval import corpora
from dyneval.corpora import Corpus
from dyneval.vocabularies import EOS, Text, Unknown, Vocabulary

Bounds = NDArray[np.int64]
FILES = "files"
CUTS = ("lines", "blank-lines", FILES)
LABEL = 60  # characters


@dataclass(frozen=True)
class Documents:
    """A text, and where each of its documents begins; the last bound is where the text ends."""

    text: Text
    bounds: Bounds  # (D + 1,)
    files: tuple[str, ...] = ()  # what each document is called, where it is a file

    def __len__(self) -> int:
        return len(self.bounds) - 1

    @property
    def numbers(self) -> NDArray[np.int32]:
        """Return the number of each token's document, from 1."""
        return np.repeat(np.arange(1, len(self) + 1, dtype=np.int32), np.diff(self.bounds))

    def labels(self, vocabulary: Vocabulary) -> list[str]:
        """Return what to call each document: its file, or what its first line begins with."""
        if self.files:
            return [name[-LABEL:] for name in self.files]
        labels = []
        for start, end in pairwise(self.bounds.tolist()):
            # no token is less than a byte, and no character more than four
            shown = vocabulary.show(self.text.tokens[start : min(end, start + 4 * LABEL)])
            labels.append(shown.strip().split("\n")[0][:LABEL])
        return labels


def check(cut: str) -> None:
    """Refuse a way to cut that is not known."""
    size = cut.removeprefix("chunks:")
    if cut not in CUTS and (size == cut or not size.isdecimal() or int(size) < 1):
        raise ValueError(
            f"a text cannot be cut into {cut!r}; give {', '.join(CUTS)}, or chunks:N for pieces "
            "of N tokens, 1 or more"
        )


def load(name: str, vocabulary: Vocabulary, unknown: Unknown | None, cut: str | None) -> Corpus:
    """Return the corpus, or the folder of files, that is to be cut."""
    read = corpora.load_files if cut == FILES else corpora.load
    return read(name, vocabulary, unknown)


def read(
    corpus: Corpus, split: str | None = None, cut: str | None = None, limit: int | None = None
) -> Documents:
    """Return the documents of a split's first tokens (default: all); without a cut it is one."""
    if cut == FILES:
        files = corpus.read_files(split)
        text = Text.join(list(files.values()))[:limit]
        ends = np.minimum(np.cumsum([len(file) for file in files.values()]), len(text))
        bounds, first = np.unique(np.concatenate([[0], ends]), return_index=True)
        # a bound that occurs again is of a file without tokens
        names = list(files)
        return Documents(text, bounds, tuple(names[k - 1] for k in first[1:]))
    text = corpus.read(split)[:limit]
    starts = _starts(text, corpus.vocabulary, cut) if cut else [0]
    return Documents(text, np.unique([*starts, len(text)] if len(text) else [0]))


def _starts(text: Text, vocabulary: Vocabulary, cut: str) -> Sequence[int] | Bounds:
    """Return where the documents of a text begin."""
    check(cut)
    if cut.startswith("chunks:"):
        return range(0, len(text), int(cut.removeprefix("chunks:")))
    newlines, spaces, blank = _white(vocabulary, cut)
    lines = np.concatenate([[0], np.flatnonzero(np.isin(text.tokens, newlines)) + 1])
    lines = lines[lines < len(text)]
    if not len(lines):
        return [0]
    full = np.logical_or.reduceat(~np.isin(text.tokens, spaces), lines)
    if cut == "blank-lines":
        full[1:] &= ~full[:-1] | np.isin(text.tokens[lines[1:] - 1], blank)
    begin = lines[full]
    begin[:1] = 0
    return np.concatenate([[0], begin])


def _white(vocabulary: Vocabulary, cut: str) -> tuple[list[int], list[int], list[int]]:
    """Return the tokens that end a line, those that leave it blank, and those that do both.

    Of a tokenizer's tokens, which may hold several characters, each that holds a newline ends a
    line, and one with two newlines leaves a blank line behind.
    """
    if vocabulary.kind == "bytes":
        return [ord("\n")], list(b" \t\n\r\v\f"), []
    if vocabulary.kind == "tokens":
        pieces = list(enumerate(vocabulary.symbols))
        newlines = [k for k, piece in pieces if "\n" in piece]
        blank = [k for k, piece in pieces if re.search(r"\n\s*\n", piece)]
        return newlines, [k for k, piece in pieces if not piece.strip()], blank
    newline = EOS if vocabulary.kind == "words" else "\n"
    if newline not in vocabulary.ids:
        raise ValueError(
            f"the model's vocabulary of {vocabulary.kind} has no end of a line, so there are no "
            f"{cut} to cut a text into; give chunks:N"
        )
    spaces = [k for symbol, k in vocabulary.ids.items() if symbol == EOS or symbol.isspace()]
    return [vocabulary.ids[newline]], spaces, []
