import re
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dyneval import corpora, documents
from dyneval.corpora import Corpus
from dyneval.vocabularies import KINDS, Vocabulary

texts = st.text("ab \n\t\r", max_size=40)
kinds = st.sampled_from(KINDS)


def corpus_of(written, kind):
    raw = written.encode()
    # of a text that has all symbols, so that there are lines in it
    vocabulary = Vocabulary.of(kind, b"a b \n\t\r" + raw)
    return Corpus("a", vocabulary, {"all": raw}, "all")


def pieces(found, written):
    """What is written in each document."""
    ends = np.concatenate([[0], np.cumsum(found.text.bytes)])[found.bounds]
    return [written.encode()[start:end].decode() for start, end in pairwise(ends.tolist())]


@given(texts, kinds)
def test_a_line_with_the_blank_ones_behind_it_is_a_document(written, kind):
    found = pieces(documents.read(corpus_of(written, kind), cut="lines"), written)
    assert "".join(found) == written
    expected = [line.strip() for line in written.split("\n") if line.strip()]
    assert [piece.strip() for piece in found] == (expected or [""] * bool(written))
    assert all(piece.endswith("\n") for piece in found[:-1])


@given(texts, kinds)
def test_blank_lines_part_documents(written, kind):
    found = pieces(documents.read(corpus_of(written, kind), cut="blank-lines"), written)
    assert "".join(found) == written
    expected = [part.strip() for part in re.split(r"\n\s*\n", written.strip())]
    assert [piece.strip() for piece in found] == (expected if written else [])
    assert all(piece.endswith("\n") for piece in found[:-1])


@given(texts, kinds, st.integers(1, 50))
def test_chunks_are_of_one_length(written, kind, size):
    found = documents.read(corpus_of(written, kind), cut=f"chunks:{size}")
    assert "".join(pieces(found, written)) == written
    lengths = np.diff(found.bounds).tolist()
    assert all(length == size for length in lengths[:-1])
    assert all(1 <= length <= size for length in lengths)


@given(texts, kinds, st.integers(1, 50), st.sampled_from(["lines", "blank-lines", "chunks:3"]))
def test_a_limit_is_applied_before_the_cut(written, kind, limit, cut):
    corpus = corpus_of(written, kind)
    whole, found = (documents.read(corpus, cut=cut, limit=k) for k in (None, limit))
    assert np.array_equal(found.text.tokens, whole.text.tokens[:limit])
    assert found.bounds[-1] == min(limit, len(whole.text))
    # a line that is cut short may be blank
    assert set(found.bounds[:-1]) <= set(whole.bounds)


@given(texts, kinds)
def test_without_a_cut_the_text_is_one(written, kind):
    found = documents.read(corpus_of(written, kind))
    assert len(found) == (len(found.text) > 0)
    assert found.numbers.tolist() == [1] * len(found.text)


def test_the_paragraphs_of_a_text_of_words():
    """As WikiText has them: a blank line holds a space, and is a lone <eos>."""
    raw = b" \n = Title = \n \n first line \n second line \n \n \n next \n"
    corpus = Corpus("a", Vocabulary.of("words", raw), {"all": raw}, "all")
    found = documents.read(corpus, cut="blank-lines")
    assert np.diff(found.bounds).tolist() == [6, 8, 2]
    assert found.numbers.tolist() == [1] * 6 + [2] * 8 + [3] * 2
    assert found.labels(corpus.vocabulary) == ["= Title =", "first line", "next"]


def test_a_document_is_called_what_it_begins_with():
    raw = ("\n \n" + "ü" * 70 + "\nb\n\nc c\n").encode()
    corpus = Corpus("a", Vocabulary("bytes"), {"all": raw}, "all")
    found = documents.read(corpus, cut="lines")
    assert found.labels(corpus.vocabulary) == ["ü" * 60, "b", "c c"]


def test_a_text_without_lines_cannot_be_cut_into_them():
    corpus = Corpus("a", Vocabulary("characters", ("a", " ")), {"all": b"a a"}, "all")
    for cut in ("lines", "blank-lines"):
        with pytest.raises(ValueError, match=f"no {cut} to cut a text into; give chunks:N"):
            documents.read(corpus, cut=cut)


@pytest.mark.parametrize(
    "cut", ["pages", "", "chunks", "chunks:", "chunks:0", "chunks:-3", "chunks:1.5", "Lines"]
)
def test_cuts_that_are_not_known(cut):
    with pytest.raises(ValueError, match=re.escape(f"cannot be cut into {cut!r}; give lines, bl")):
        documents.check(cut)


# Files


@pytest.fixture
def folder(tmp_path):
    """Files whose order is not that in which they were written, and what is none of them."""
    for name, written in (("c", "the cat"), ("a", "the dog\n"), ("b", ""), (".hidden", "no")):
        (tmp_path / f"{name}.txt").write_text(written)
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "d.txt").write_text("and\n")
    return tmp_path


@pytest.mark.parametrize("kind", KINDS)
def test_files_are_read_apart(folder, kind):
    """What one ends with and the next begins with is not one word."""
    (folder / "d.txt").write_text("saw it")
    vocabulary = Vocabulary.of(kind, b"the cat saw it dog\n")
    corpus = documents.load(str(folder), vocabulary, None, "files")
    found = documents.read(corpus, cut="files")
    assert found.files == ("a.txt", "c.txt", "d.txt")  # a file without a token is none
    assert found.labels(vocabulary) == list(found.files)
    assert np.array_equal(corpus.read().tokens, found.text.tokens)
    for name, (start, end) in zip(found.files, pairwise(found.bounds.tolist()), strict=True):
        alone = corpora.load(folder / name, vocabulary).read()
        for field in ("tokens", "words", "characters", "bytes"):
            assert np.array_equal(getattr(found.text[start:end], field), getattr(alone, field))


def test_a_limit_may_end_within_a_file(folder):
    corpus = documents.load(str(folder), Vocabulary("bytes"), None, "files")
    for limit, bounds in ((3, [0, 3]), (8, [0, 8]), (9, [0, 8, 9]), (99, [0, 8, 15])):
        found = documents.read(corpus, cut="files", limit=limit)
        assert found.bounds.tolist() == bounds
        assert found.files == ("a.txt", "c.txt")[: len(bounds) - 1]


def test_a_pattern_names_files(folder):
    def files(pattern):
        corpus = documents.load(f"{folder}/{pattern}", Vocabulary("bytes"), None, "files")
        names = documents.read(corpus, cut="files").files
        return [name.removeprefix(f"{folder}/") for name in names]

    assert files("[ac].txt") == ["a.txt", "c.txt"]
    assert files("**/*.txt") == ["a.txt", "below/d.txt", "c.txt"]
    assert files("c.txt") == ["c.txt"]
    (folder / "c[1].txt").write_text("a file is not a pattern")
    assert files("c[1].txt") == ["c[1].txt"]


def test_files_that_are_not_there(folder):
    (folder / "empty").mkdir()
    for name in (folder / "empty", folder / "*.xml", "ptb", "-"):
        with pytest.raises(ValueError, match=re.escape(f"there is no file in {name}; give a fold")):
            documents.load(str(name), Vocabulary("bytes"), None, "files")
    with pytest.raises(ValueError, match=r"is a folder; .* \(--documents files\)"):
        documents.load(str(folder), Vocabulary("bytes"), None, "lines")


def test_a_file_that_cannot_be_read_is_named(folder):
    (folder / "c.txt").write_bytes(b"\xff")
    corpus = documents.load(str(folder), Vocabulary("characters", ("t",)), "drop", "files")
    with pytest.raises(ValueError, match=re.escape(f"c.txt in {folder} is not UTF-8: byte 0xff")):
        documents.read(corpus, cut="files")
