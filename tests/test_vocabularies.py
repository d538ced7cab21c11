import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dyneval.vocabularies import KINDS, Text, Vocabulary

TEXTS = st.text(st.sampled_from("ab é\u00a0語𝄞\t\r\n\x1c<"), max_size=40)


def refused(function, *args, **kwargs):
    """The message of the ValueError that a call ends with, one line."""
    with pytest.raises(ValueError, match=".") as caught:
        function(*args, **kwargs)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def columns(text):
    return [getattr(text, field.name).tolist() for field in dataclasses.fields(Text)]


# Tokens and what they stand for


def test_words_by_hand():
    vocabulary = Vocabulary("words", ("<eos>", "the", "é"))
    text = vocabulary.read("the é\n\n  the  \nthe".encode())
    assert columns(text) == [
        [1, 2, 0, 0, 1, 0, 1, 0],  # each line ends in <eos>, the last one as well
        [1, 1, 0, 0, 1, 0, 1, 0],
        [3, 2, 1, 1, 4, 4, 3, 0],
        [3, 3, 1, 1, 4, 4, 3, 0],
    ]


def test_characters_by_hand():
    vocabulary = Vocabulary("characters", tuple("a é語𝄞"))
    assert columns(vocabulary.read("aé 語𝄞".encode())) == [
        [0, 2, 1, 3, 4],
        [1, 0, 0, 1, 0],
        [1, 1, 1, 1, 1],
        [1, 2, 1, 3, 4],
    ]


def test_bytes_by_hand():
    assert columns(Vocabulary("bytes").read("aé b".encode())) == [
        [0x61, 0xC3, 0xA9, 0x20, 0x62],
        [1, 0, 0, 0, 1],
        [1, 1, 0, 1, 1],
        [1, 1, 1, 1, 1],
    ]


@pytest.mark.parametrize("kind", KINDS)
@given(written=TEXTS)
@settings(deadline=None)
def test_counts_add_up_to_the_whole_text(kind, written):
    raw = written.encode()
    vocabulary = Vocabulary.of(kind, raw + b"\n")
    text = vocabulary.read(raw)
    # white space is Unicode's where words are split off, else ASCII's
    words = written.split() if kind == "words" else raw.split()
    assert (text.words.sum(), text.characters.sum(), text.bytes.sum()) == (
        len(words),
        len(written),
        len(raw),
    )
    assert min((column.min(initial=0) for column in vars(text).values()), default=0) == 0
    assert len({len(column) for column in vars(text).values()}) == 1


@given(raw=st.binary(max_size=40))
@settings(deadline=None)
def test_any_bytes_can_be_read(raw):
    text = Vocabulary("bytes").read(raw)
    assert bytes(text.tokens.tolist()) == raw
    assert text.bytes.sum() == len(raw)


@given(written=TEXTS)
@settings(deadline=None)
def test_characters_are_shown_as_they_were(written):
    vocabulary = Vocabulary.of("characters", written.encode())
    assert vocabulary.show(vocabulary.read(written.encode()).tokens) == written


def test_words_and_bytes_are_shown():
    words = Vocabulary.of("words", b"the cat\nsat")
    assert words.show(words.read(b"the cat\nsat").tokens).split("\n")[0].strip() == "the cat"
    assert Vocabulary("bytes").show(np.array([0x61, 0xC3, 0xA9, 0xFF])) == "aé\\xff"


@pytest.mark.parametrize("kind", KINDS)
@given(written=TEXTS)
@settings(deadline=None)
def test_what_is_spelled_reads_as_the_same_tokens(kind, written):
    vocabulary = Vocabulary.of(kind, written.encode() + b"\n")
    tokens = vocabulary.read(written.encode()).tokens.tolist()
    spelled = "".join(vocabulary.spell(tokens))
    assert vocabulary.read(spelled.encode()).tokens.tolist() == tokens
    if kind != "words":  # which are joined with one space, whatever stood between them
        assert spelled == written


def test_text_is_spelled_as_it_comes():
    assert list(Vocabulary("bytes").spell("aé𝄞".encode())) == ["a", "", "é", "", "", "", "𝄞", ""]
    assert list(Vocabulary("bytes").spell(b"\xc3a\xff\xe2\x82")) == ["", "�a", "�", "", "", "�"]
    words = Vocabulary("words", ("<eos>", "a", "cat", "<unk>"))
    assert list(words.spell([0, 1, 2, 0, 0, 3])) == ["\n", "a", " cat", "\n", "\n", "<unk>"]


def test_a_part_of_a_text():
    text = Vocabulary("bytes").read(b"one two")[4:]
    assert bytes(text.tokens.tolist()) == b"two"
    assert (len(text), text.words.sum(), text.bytes.sum()) == (3, 1, 3)


# Vocabularies


def test_words_in_order_of_appearance_and_characters_sorted():
    assert Vocabulary.of("words", b"b a\nb c").symbols == ("b", "a", "<eos>", "c")
    assert Vocabulary.of("characters", "ba é".encode()).symbols == (" ", "a", "b", "é")
    assert len(Vocabulary.of("bytes", b"b a")) == 256


@pytest.mark.parametrize("kind", KINDS)
def test_vocabularies_round_trip(kind):
    vocabulary = Vocabulary.of(kind, "the é cat\n".encode())
    assert Vocabulary.from_json(vocabulary.to_json()) == vocabulary


def test_impossible_vocabularies():
    assert "unknown kind of vocabulary 'letters'" in refused(Vocabulary, "letters")
    assert "twice" in refused(Vocabulary, "words", ("a", "a"))
    assert "not one character" in refused(Vocabulary, "characters", ("a", "bc"))
    assert "needs <eos>" in refused(Vocabulary("words", ("a",)).read, b"a")
    assert "is an object with" in refused(Vocabulary.from_json, ["a"])


# Unknown symbols


def test_unknown_words():
    without = Vocabulary("words", ("<eos>", "a"))
    message = refused(without.read, b"a a\na cat\n", "notes.txt")
    assert "notes.txt holds 'cat' in line 2" in message
    assert "--unknown drop" in message
    assert refused(without.read, b"a a\na cat\n", "notes.txt", "error") == message
    assert "no <unk>" in refused(without.read, b"a", "notes.txt", "unk")
    dropped = without.read(b"a a\na cat\n", unknown="drop")
    assert columns(dropped) == [[1, 1, 0, 1, 0], [1, 1, 0, 1, 0], [1, 2, 1, 1, 1], [1, 2, 1, 1, 1]]

    having = Vocabulary("words", ("<eos>", "a", "<unk>"))
    assert having.read(b"a cat").tokens.tolist() == [1, 2, 0]
    assert having.read(b"a cat", unknown="unk").tokens.tolist() == [1, 2, 0]
    assert having.read(b"a cat", unknown="drop").tokens.tolist() == [1, 0]
    assert "'cat' in line 1" in refused(having.read, b"a cat", unknown="error")


def test_unknown_characters():
    vocabulary = Vocabulary("characters", tuple("ab "))
    message = refused(vocabulary.read, "ab 𝄞é".encode(), "notes.txt")
    assert "notes.txt holds '𝄞' (U+1D11E) at character 3" in message
    assert "--unknown drop" in message
    assert "no <unk>" in refused(vocabulary.read, b"a", "notes.txt", "unk")
    dropped = vocabulary.read("é ab 𝄞b".encode(), unknown="drop")
    assert columns(dropped) == [[2, 0, 1, 2, 1], [0, 1, 0, 0, 0], [1] * 5, [1] * 5]


def test_bytes_know_every_symbol():
    for policy in ("error", "drop", "unk"):
        assert Vocabulary("bytes").read(b"\xff\x00", unknown=policy).tokens.tolist() == [255, 0]


def test_invalid_utf_8():
    for kind in ("words", "characters"):
        message = refused(Vocabulary.of, kind, b"ab\xffc", "notes.txt")
        assert "notes.txt is not UTF-8: byte 0xff at position 2" in message
    vocabulary = Vocabulary("characters", ("a",))
    assert "byte 0xe8 at position 1" in refused(vocabulary.read, "a語".encode()[:-1])
