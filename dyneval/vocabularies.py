"""Vocabularies: a text as tokens of words, characters or bytes, and what each token stands for.

Every `Text` knows how many words, characters and bytes of the file each of its tokens stands
for, so that bits per character or byte need no guess.
"""

from __future__ import annotations

import codecs
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

Kind = Literal["words", "characters", "bytes", "tokens"]
Unknown = Literal["error", "drop", "unk"]
Ints = NDArray[np.int32]
KINDS = ("words", "characters", "bytes")  # that can be made of a text
EOS, UNK = "<eos>", "<unk>"


@dataclass(frozen=True)
class Text:
    """Tokens read from a text, and how many of its words, characters and bytes each stands for.

    The counts add up to those of the whole text, unless symbols were dropped. The one space before
    a word belongs to the word; what other white space a line has, and its end, to its `<eos>`.
    """

    tokens: Ints
    words: Ints
    characters: Ints
    bytes: Ints

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def stream(self) -> Tensor:
        """Return the tokens as the one row (1, N) that predictors read."""
        import torch

        return torch.from_numpy(self.tokens).long()[None]

    def __getitem__(self, span: slice) -> Text:
        return Text(*(getattr(self, name)[span] for name in self.__dataclass_fields__))

    @classmethod
    def join(cls, parts: list[Text]) -> Text:
        """Return texts one behind the other."""
        fields = cls.__dataclass_fields__
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in fields))


@dataclass(frozen=True)
class Vocabulary:
    """The symbols a model predicts, in the order of their ids; bytes need no list.

    Those of kind `tokens` are a tokenizer's (`subwords.py`), several of which may look alike; a
    byte that is no UTF-8 on its own is a lone surrogate, U+DC00 plus the byte.
    """

    kind: Kind
    symbols: tuple[str, ...] = ()
    begin: int | None = None  # the token that stands before a text, if there is one

    def __post_init__(self) -> None:
        if self.kind not in (*KINDS, "tokens"):
            raise ValueError(f"unknown kind of vocabulary {self.kind!r}; give {', '.join(KINDS)}")
        if self.kind != "tokens" and len(self.ids) != len(self.symbols):
            raise ValueError("a vocabulary names a symbol twice")
        if self.kind == "characters" and any(len(symbol) != 1 for symbol in self.symbols):
            raise ValueError("a character vocabulary holds symbols that are not one character")

    def __len__(self) -> int:
        return 256 if self.kind == "bytes" else len(self.symbols)

    @cached_property
    def ids(self) -> dict[str, int]:
        """The id of each symbol."""
        return {symbol: k for k, symbol in enumerate(self.symbols)}

    @classmethod
    def of(cls, kind: Kind, raw: bytes, name: str = "text") -> Vocabulary:
        """Return the vocabulary of a training text, in order of first appearance."""
        if kind == "bytes":
            return cls("bytes")
        text = decode(raw, name)
        if kind == "characters":
            return cls("characters", tuple(sorted(set(text))))
        symbols = {word: None for line in _lines(text) for word in (*line.split(), EOS)}
        return cls(kind, tuple(symbols) or (EOS,))

    def read(self, raw: bytes, name: str = "text", unknown: Unknown | None = None) -> Text:
        """Return a text as tokens of this vocabulary.

        A symbol outside it becomes `<unk>` where the vocabulary has that (`unknown="unk"`, then
        the default), is left out (`"drop"`), or is an error that names it (`"error"`).
        """
        if self.kind == "tokens":
            raise ValueError(f"{name} cannot be read without the tokenizer of these tokens")
        if unknown == "unk" and self.kind != "bytes" and UNK not in self.ids:
            raise ValueError(
                f"the vocabulary has no {UNK} for the unknown symbols of {name}; "
                "leave them out with unknown='drop' (--unknown drop)"
            )
        if self.kind == "bytes":
            return _read_bytes(raw)
        policy: Unknown = unknown or ("unk" if UNK in self.ids else "error")
        read = _read_words if self.kind == "words" else _read_characters
        return read(self, decode(raw, name), name, policy)

    def spell(self, tokens: Iterable[int]) -> Iterator[str]:
        """Yield the text of tokens as they come; joined, it is what reads as these tokens.

        A character of several bytes comes with its last one. Bytes that are no UTF-8 become �.
        """
        if self.kind in ("bytes", "tokens"):
            decoder = codecs.getincrementaldecoder("utf-8")("replace")
            for token in tokens:
                yield decoder.decode(self.piece(token))
            yield decoder.decode(b"", True)
            return
        space = ""
        for token in tokens:
            symbol = self.symbols[token]
            if self.kind == "characters":
                yield symbol
            else:
                yield "\n" if symbol == EOS else space + symbol
                space = "" if symbol == EOS else " "

    def piece(self, token: int) -> bytes:
        """Return the bytes that a token of kind `bytes` or `tokens` stands for."""
        if self.kind == "bytes":
            return bytes([token])
        return self.symbols[token].encode("utf-8", "surrogateescape")

    def show(self, tokens: NDArray[Any]) -> str:
        """Return tokens as text that a person can read."""
        if self.kind == "bytes":
            return bytes(tokens.tolist()).decode("utf-8", "backslashreplace")
        return "".join(self.spell(tokens.tolist()))

    def to_json(self) -> dict[str, Any]:
        """Return this vocabulary as JSON values."""
        symbols = {} if self.kind == "bytes" else {"symbols": list(self.symbols)}
        return {"kind": self.kind} | symbols

    @classmethod
    def from_json(cls, value: Any) -> Vocabulary:
        """Return the vocabulary that `to_json` described."""
        if not isinstance(value, dict) or not isinstance(value.get("symbols", []), list):
            raise ValueError("a vocabulary is an object with 'kind' and 'symbols'")
        if not all(isinstance(symbol, str) for symbol in value.get("symbols", [])):
            raise ValueError("the symbols of a vocabulary are strings")
        return cls(value.get("kind"), tuple(value.get("symbols", ())))  # type: ignore[arg-type]


def decode(raw: bytes, name: str) -> str:
    """Return UTF-8 bytes as text, or say where they are none."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{name} is not UTF-8: byte 0x{raw[error.start]:02x} at position {error.start}; "
            "read it with a model of bytes, or convert it"
        ) from None


def _lines(text: str) -> list[str]:
    """Return the lines of a text with their ends, cut at newlines only."""
    lines = [line + "\n" for line in text.split("\n")]
    last = lines.pop()[:-1]
    return [*lines, last] if last else lines


def _read_bytes(raw: bytes) -> Text:
    tokens = np.frombuffer(raw, np.uint8).astype(np.int32)
    starts = (tokens & 0xC0) != 0x80  # any byte but a continuation of a UTF-8 character
    return Text(tokens, words_of(tokens), starts.astype(np.int32), np.ones_like(tokens))


def words_of(points: NDArray[Any]) -> Ints:
    """Return 1 where a word of white-space separated text begins, else 0, of (N,) characters."""
    space = np.isin(points, [ord(symbol) for symbol in " \t\n\r\v\f"])
    before = np.concatenate([np.ones(1, bool), space[:-1]])[: len(space)]
    starts: Ints = (~space & before).astype(np.int32)
    return starts


def sizes_of(points: NDArray[Any]) -> Ints:
    """Return how many bytes of UTF-8 each character has."""
    sizes: Ints = 1 + (points > 0x7F).astype(np.int32) + (points > 0x7FF) + (points > 0xFFFF)
    return sizes


def _read_characters(vocabulary: Vocabulary, text: str, name: str, unknown: Unknown) -> Text:
    points = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    table = np.full(sys.maxunicode + 1, -1, np.int32)
    for symbol, k in vocabulary.ids.items():
        table[ord(symbol)] = k
    tokens = table[points]
    missing = tokens < 0
    if unknown == "error" and missing.any():
        position = int(missing.argmax())
        raise ValueError(
            f"{name} holds {text[position]!r} (U+{points[position]:04X}) at character {position}, "
            "which the vocabulary does not; leave such symbols out with unknown='drop' "
            "(--unknown drop)"
        )
    if unknown == "unk":
        tokens[missing] = vocabulary.ids[UNK]
    words, sizes, kept = words_of(points), sizes_of(points), tokens >= 0
    return Text(tokens[kept], words[kept], np.ones(kept.sum(), np.int32), sizes[kept])


def _read_words(vocabulary: Vocabulary, text: str, name: str, unknown: Unknown) -> Text:
    ids = vocabulary.ids
    if EOS not in ids:
        raise ValueError(f"a vocabulary of words needs {EOS}, the end of a line")
    eos, substitute = ids[EOS], ids.get(UNK, -1) if unknown == "unk" else -1
    tokens: list[int] = []
    words: list[int] = []
    characters: list[int] = []
    sizes: list[int] = []
    for number, line in enumerate(_lines(text), 1):
        rest, rest_bytes = len(line), len(line) if line.isascii() else len(line.encode())
        separator = 0 if line[:1].strip() else 1
        for word in line.split():
            length = len(word) + separator
            size = length if word.isascii() else len(word.encode()) + separator
            separator = 1
            rest, rest_bytes = rest - length, rest_bytes - size
            token = ids.get(word, substitute)
            if token >= 0:
                tokens.append(token)
                words.append(1)
                characters.append(length)
                sizes.append(size)
            elif unknown == "error":
                raise ValueError(
                    f"{name} holds {word!r} in line {number}, which the vocabulary does not; "
                    "leave such words out with unknown='drop' (--unknown drop)"
                )
        tokens.append(eos)
        words.append(0)
        characters.append(rest)
        sizes.append(rest_bytes)
    return Text(*(np.array(column, np.int32) for column in (tokens, words, characters, sizes)))
