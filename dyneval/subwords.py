"""Subwords: the tokens of a Hugging Face tokenizer as a vocabulary.

What a token stands for is told by where it ends in the text, so the counts of any tokenizer add up
to those of the file, whatever it makes of spaces, accents or emoji.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dyneval.vocabularies import Ints, Text, Unknown, Vocabulary, decode, sizes_of, words_of


@dataclass(frozen=True)
class Subwords(Vocabulary):
    """The tokens of a tokenizer, which a model that was loaded with it predicts."""

    tokenizer: Any = field(default=None, compare=False, repr=False)

    @classmethod
    def of_tokenizer(cls, tokenizer: Any) -> Subwords:
        """Return the vocabulary of a fast tokenizer of transformers."""
        ids: dict[str, int] = tokenizer.get_vocab()
        pieces = [""] * (max(ids.values()) + 1)
        whole_bytes = "ByteLevel" in repr(tokenizer.backend_tokenizer.decoder)
        for token, k in ids.items():
            piece = _from_letters(token) if whole_bytes else _from_marks(token)
            pieces[k] = piece.decode("utf-8", "surrogateescape")
        return cls("tokens", tuple(pieces), tokenizer.bos_token_id, tokenizer)

    def read(self, raw: bytes, name: str = "text", unknown: Unknown | None = None) -> Text:
        """Return a text as tokens; every text can be read."""
        text = decode(raw, name)
        found = self.tokenizer(
            text,
            add_special_tokens=False,
            return_offsets_mapping=True,
            return_attention_mask=False,
            verbose=False,
        )
        # a token reaches from where the one before it ends: so no character is lost or counted
        # twice, of several tokens of one character the first has it, the last has what is left
        ends = np.array([end for _, end in found["offset_mapping"]], np.int64)
        ends = np.maximum.accumulate(ends)
        ends[-1:] = len(text)
        points = np.frombuffer(text.encode("utf-32-le"), np.uint32)

        def summed(values: Ints) -> Ints:
            total = np.concatenate([[0], np.cumsum(values)])
            each: Ints = np.diff(total[np.concatenate([[0], ends])]).astype(np.int32)
            return each

        tokens = np.array(found["input_ids"], np.int32)
        one = np.ones(len(points), np.int32)
        return Text(tokens, *map(summed, (words_of(points), one, sizes_of(points))))


def _letters() -> dict[str, int]:
    """Return the byte that each letter of a byte-level tokenizer stands for.

    A byte that can be seen is its own letter in Latin-1, the others follow from U+0100 on.
    """
    seen = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in seen]
    return {chr(byte): byte for byte in seen} | {
        chr(0x100 + k): byte for k, byte in enumerate(others)
    }


_LETTERS = _letters()


def _from_letters(token: str) -> bytes:
    return b"".join(
        bytes([_LETTERS[letter]]) if letter in _LETTERS else letter.encode() for letter in token
    )


def _from_marks(token: str) -> bytes:
    """Return the bytes of a token of SentencePiece: ▁ is a space, <0x0A> a byte."""
    if found := re.fullmatch(r"<0x([0-9A-F]{2})>", token):
        return bytes.fromhex(found[1])
    return token.replace("▁", " ").encode()
