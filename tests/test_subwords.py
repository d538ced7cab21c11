"""Subwords: whatever a tokenizer makes of a text, its counts add up to those of the text."""

import json

import numpy as np
import pytest
from hugging_face import TEXT, byte_level, sentence_piece
from hypothesis import given
from hypothesis import strategies as st

from dyneval import documents, results, spelling
from dyneval.corpora import Corpus
from dyneval.subwords import Subwords
from dyneval.vocabularies import Vocabulary

BYTES = Subwords.of_tokenizer(byte_level())
PIECES = Subwords.of_tokenizer(sentence_piece())
BOTH = pytest.mark.parametrize("vocabulary", [BYTES, PIECES], ids=["bytes", "pieces"])


def counts(text):
    return {name: int(getattr(text, name).sum()) for name in ("words", "characters", "bytes")}


@BOTH
@pytest.mark.parametrize(
    "text",
    [
        TEXT,
        "  two  spaces \t and\na line  ",
        "🙂 una niña, 👩‍👩‍👧 y ﬁn ½ Å\u0301",  # that a normaliser makes longer and shorter
        "unseen: ☃ᚠ\r\n",
        "\ufeff a mark",
        " ",
    ],
)
def test_counts_add_up(vocabulary, text):
    found = vocabulary.read(text.encode())
    assert counts(found) == {
        "words": len(text.split()),
        "characters": len(text),
        "bytes": len(text.encode()),
    }
    assert min(found.bytes.min(), found.characters.min(), found.words.min()) >= 0


@given(text=st.text(max_size=60))
@BOTH
def test_counts_of_any_text_add_up(vocabulary, text):
    found = vocabulary.read(text.encode())
    whole = counts(Vocabulary("bytes").read(text.encode()))
    assert counts(found) == (whole if len(found) else dict.fromkeys(whole, 0))


def test_an_empty_text_has_no_token():
    assert len(BYTES.read(b"")) == 0


@BOTH
def test_tokens_are_those_of_the_tokenizer(vocabulary):
    expected = vocabulary.tokenizer(TEXT, add_special_tokens=False)["input_ids"]
    assert vocabulary.read(TEXT.encode()).tokens.tolist() == expected


def test_tokens_of_bytes_spell_the_text():
    tokens = BYTES.read(TEXT.encode()).tokens
    assert "".join(BYTES.spell(tokens.tolist())) == TEXT
    assert BYTES.show(tokens) == TEXT
    assert PIECES.show(PIECES.read(b"The cat saw").tokens) == " The cat saw"
    assert PIECES.show(PIECES.read("☃".encode()).tokens) == " ☃"


def test_cells_end_with_whole_characters():
    text = "a café 🙂 ☃\n"
    found = BYTES.read(text.encode())
    cells = spelling.cells(found.tokens, BYTES)
    assert cells.text == text
    assert cells.starts[-1] == len(found)
    assert all(cell.encode() for cell in cells.texts)
    part = spelling.cells(found.tokens[:-2], BYTES)  # within a character
    assert text.encode().startswith(part.text.encode("utf-8", "surrogateescape"))


def test_a_result_spells_its_tokens_without_the_tokenizer():
    value = json.loads(json.dumps(BYTES.to_json()))
    found = Vocabulary.from_json(value)
    tokens = BYTES.read(TEXT.encode()).tokens
    assert found.show(tokens) == TEXT
    assert spelling.cells(tokens, found).text == TEXT
    with pytest.raises(ValueError, match="without the tokenizer"):
        found.read(b"a")
    assert set(results.UNITS_OF) == set(results.QUOTED)


def test_a_text_that_is_not_utf_8():
    with pytest.raises(ValueError, match="is not UTF-8: byte 0xff at position 1"):
        BYTES.read(b"a\xff")


@pytest.mark.parametrize(
    ("cut", "expected"),
    [
        ("lines", ["one\n", "two\n\n", "  three\n", " \n \n", "four"]),
        ("blank-lines", ["one\ntwo\n\n", "  three\n \n \n", "four"]),
    ],
)
def test_documents_of_a_tokenizers_tokens(cut, expected):
    """A document begins with a token, so spaces behind a newline may go with the line before."""
    raw = "".join(expected).encode()
    corpus = Corpus("text", BYTES, {"all": raw}, "all")
    found = documents.read(corpus, cut=cut)
    spelled = [
        BYTES.show(found.text.tokens[start:end])
        for start, end in zip(found.bounds[:-1], found.bounds[1:], strict=True)
    ]
    assert "".join(spelled) == raw.decode()
    whole = [text for text in spelled if text.strip()]
    assert [text.strip() for text in whole] == [text.strip() for text in expected if text.strip()]


def test_splits_do_not_cut_characters():
    from dyneval.corpora import _whole

    raw = ("ñ🙂" * 100).encode()
    parts = _whole(raw, "tokens", "text")
    assert b"".join(parts[name] for name in ("train", "valid", "test")) == raw
    assert all(part.decode() for part in parts.values())
    assert np.isclose(len(parts["valid"]) / len(raw), 0.05, atol=0.01)
