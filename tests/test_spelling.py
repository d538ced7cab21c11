import unicodedata

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dyneval.spelling import cells, visible
from dyneval.vocabularies import EOS, Vocabulary


def of_bytes(raw):
    return cells(np.frombuffer(raw, np.uint8).astype(np.int32), Vocabulary("bytes"))


def test_bytes_of_one_character_are_one_cell():
    found = of_bytes("aé€🙂z".encode())
    assert found.texts == ["a", "é", "€", "🙂", "z"]
    assert found.starts.tolist() == [0, 1, 3, 6, 10, 11]


def test_bytes_that_are_no_utf_8_are_cells_of_their_own():
    found = of_bytes(b"a\xff\xc3(\xe2\x82")  # the last two begin a character that never ends
    assert [visible(text) for text in found.texts] == ["a", "⟨FF⟩", "⟨C3⟩", "(", "⟨E2⟩", "⟨82⟩"]
    assert found.starts.tolist() == [0, 1, 2, 3, 4, 5, 6]


@given(st.binary(max_size=60))
def test_cells_are_the_bytes_again(raw):
    found = of_bytes(raw)
    assert found.text.encode("utf-8", "surrogateescape") == raw
    assert found.starts[-1] == len(raw)
    sizes = np.diff(found.starts)
    assert sizes.tolist() == [len(t.encode("utf-8", "surrogateescape")) for t in found.texts]


def test_words_have_the_space_before_them():
    vocabulary = Vocabulary("words", (EOS, "the", "cat"))
    found = cells(np.array([1, 2, 0, 2]), vocabulary)
    assert found.texts == ["the", " cat", "\n", "cat"]
    assert found.places.tolist() == [0, 4, 7, 8]  # behind the space
    assert found.text == "the cat\ncat"


def test_sums_of_what_was_scored():
    found = of_bytes("aéz".encode())
    assert found.sums(np.array([1.0, 2.0, 3.0, 4.0])).tolist() == [1, 5, 4]
    assert found.sums(np.array([1.0, 2.0])).tolist() == [1, 0, 0]  # the second is not whole
    assert found.sums(np.array([])).tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a", "a"),
        (" word", " word"),
        ("\n", "↵\n"),
        ("\t", "⇥\t"),
        ("\r\0\x1b\x7f", "⟨0D⟩⟨00⟩⟨1B⟩⟨7F⟩"),
        ("\x85", "⟨U+0085⟩"),
        ("\u202e", "⟨U+202E⟩"),  # from here on right to left
        ("\u200b\ufeff", "⟨U+200B⟩⟨U+FEFF⟩"),
        ("\u2028", "⟨U+2028⟩"),
        ("\udcff", "⟨FF⟩"),
        ("\ud800", "⟨U+D800⟩"),
        ("", "⟨⟩"),
        ("\u200d", "⟨U+200D⟩"),  # by itself; not within an emoji
        ("👩\u200d🔬", "👩\u200d🔬"),
        ("שלום", "שלום"),
        ("<b>&amp;", "<b>&amp;"),
    ],
)
def test_what_has_no_shape_is_shown(text, shown):
    assert visible(text) == shown


@given(st.text(max_size=20))
def test_what_is_shown_can_be_written_and_orders_nothing(text):
    shown = visible(text)
    shown.encode()
    wild = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
    assert not wild & {unicodedata.bidirectional(character) for character in shown}
    assert all(character in "\n\t" or character >= " " for character in shown)
