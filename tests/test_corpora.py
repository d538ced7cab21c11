import contextlib
import functools
import gc
import gzip
import hashlib
import lzma
import subprocess
import sys
import threading
import warnings
import zipfile
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dyneval import corpora
from dyneval.corpora import SOURCES, Source
from dyneval.vocabularies import Vocabulary


@pytest.fixture
def no_corpora(monkeypatch, tmp_path):
    """Neither data nor a cache but an empty folder."""
    monkeypatch.delenv("DYNEVAL_DATA", raising=False)
    monkeypatch.setenv("DYNEVAL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def refused(function, *args, **kwargs):
    """The message of the ValueError that a call ends with, one line."""
    with pytest.raises(ValueError, match=".") as caught:
        function(*args, **kwargs)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# Files


@pytest.mark.parametrize("name", ["a.txt", "a.txt.xz", "a.txt.gz"])
def test_files_plain_and_packed(tmp_path, name):
    pack = {".xz": lzma.compress, ".gz": gzip.compress}.get(Path(name).suffix, bytes)
    (tmp_path / name).write_bytes(pack(b"some text"))
    for given_as in (tmp_path / name, str(tmp_path / name)):
        corpus = corpora.load(given_as)
        assert corpus.raw() == b"some text"
        assert corpus.name == str(tmp_path / name)
        assert corpus.vocabulary == Vocabulary("bytes")
        assert corpus.checksum() == hashlib.sha256(b"some text").hexdigest()


def test_standard_input():
    code = (
        "from dyneval import corpora\n"
        "corpus = corpora.load('-', 'characters')\n"
        "print(corpus.name, corpus.read().tokens.tolist(), corpus.checksum())"
    )
    raw = "é a".encode()
    done = subprocess.run([sys.executable, "-c", code], input=raw, capture_output=True, check=True)
    assert done.stdout.decode().strip() == f"- [2, 0, 1] {hashlib.sha256(raw).hexdigest()}"


def test_files_that_cannot_be_read(tmp_path):
    missing = tmp_path / "missing.txt"
    assert f"{missing} is neither a file nor a known corpus (ptb," in refused(corpora.load, missing)
    assert f"{tmp_path} is a folder" in refused(corpora.load, tmp_path)
    (tmp_path / "file").write_text("text")
    assert "cannot be read" in refused(corpora.load, tmp_path / "file" / "below")


@pytest.mark.parametrize("ending", [".xz", ".gz"])
@pytest.mark.parametrize("part", [0.1, 0.5, 0.99])
def test_packed_files_cut_off(tmp_path, ending, part):
    path = tmp_path / f"a{ending}"
    random = np.random.default_rng(0).integers(0, 256, 5000, np.uint8).tobytes()
    whole = lzma.compress(random) if ending == ".xz" else gzip.compress(random)
    path.write_bytes(whole[: int(part * len(whole))])
    assert f"{path} is no whole {ending} file" in refused(corpora.load, path)


def test_files_of_another_kind_than_their_ending(tmp_path):
    for ending in (".xz", ".gz"):
        (tmp_path / f"a{ending}").write_text("text")
        assert f"no whole {ending} file" in refused(corpora.load, tmp_path / f"a{ending}")


def test_an_empty_file(tmp_path):
    (tmp_path / "empty").touch()
    for kind in ("bytes", "characters"):
        corpus = corpora.load(tmp_path / "empty", kind)
        assert [len(corpus.read(split)) for split in corpus.splits] == [0, 0, 0, 0]


def test_unknown_arguments(tmp_path):
    (tmp_path / "a").write_text("text")
    assert "give error, drop or unk" in refused(corpora.load, tmp_path / "a", unknown="maybe")
    assert "unknown kind" in refused(corpora.load, tmp_path / "a", "letters")
    corpus = corpora.load(tmp_path / "a")
    assert "has no split 'dev'; give one of all, train, valid, test" in refused(corpus.read, "dev")


@given(raw=st.binary(max_size=200))
@settings(deadline=None)
def test_90_5_5_of_bytes(raw):
    splits = corpora._whole(raw, "bytes", "a")
    h = len(raw) // 20
    assert splits == {
        "all": raw,
        "train": raw[: len(raw) - 2 * h],
        "valid": raw[len(raw) - 2 * h : len(raw) - h],
        "test": raw[len(raw) - h :],
    }


@given(written=st.text(st.sampled_from("aé語𝄞\n"), max_size=120))
@settings(deadline=None)
def test_90_5_5_of_characters(written):
    splits = corpora._whole(written.encode(), "characters", "a")
    h = len(written) // 20
    parts = {name: raw.decode() for name, raw in splits.items()}
    assert parts == {
        "all": written,
        "train": written[: len(written) - 2 * h],
        "valid": written[len(written) - 2 * h : len(written) - h],
        "test": written[len(written) - h :],
    }


@given(lines=st.lists(st.text(st.sampled_from("aé "), max_size=9), max_size=80))
@settings(deadline=None)
def test_90_5_5_of_words_cuts_between_lines(lines):
    raw = "".join(line + "\n" for line in lines).encode()
    splits = corpora._whole(raw, "words", "a")
    assert splits["all"] == raw == splits["train"] + splits["valid"] + splits["test"]
    assert all(not part or part.endswith(b"\n") for part in splits.values())


def test_a_model_reads_in_its_own_vocabulary(tmp_path):
    (tmp_path / "a").write_text("a cat\n" * 20)
    vocabulary = Vocabulary("words", ("<unk>", "<eos>", "cat"))
    corpus = corpora.load(tmp_path / "a", vocabulary)
    assert corpus.vocabulary is vocabulary
    assert corpus.read().tokens[:3].tolist() == [0, 2, 1]
    dropping = corpora.load(tmp_path / "a", vocabulary, "drop")
    assert dropping.read().tokens[:3].tolist() == [2, 1, 2]


def test_the_vocabulary_is_the_training_split_s(tmp_path):
    (tmp_path / "a").write_text("a" * 90 + "b" * 10)
    corpus = corpora.load(tmp_path / "a", "characters")
    assert corpus.vocabulary.symbols == ("a",)
    message = refused(corpus.read, "test")
    assert f"{tmp_path / 'a'} (test) holds 'b' (U+0062) at character 0" in message


# Known corpora: found, else downloaded


PUBLISHED = b"one two\nthree\n"


def source(server="", **changes):
    fields = {
        "kind": "words",
        "splits": {part: (f"{part}.txt", f"tiny/{part}") for part in ("train", "valid", "test")},
        "url": f"{server}/{{}}" if server else "",
        "sha256": {"test": hashlib.sha256(PUBLISHED).hexdigest()},
        "tokens": {"test": 5},
    }
    return Source(**fields | changes)


@pytest.fixture
def server(tmp_path):
    """The address of a server on this machine, and the folder of its files."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *args):
            requests.append(self.path)

    requests = []
    (tmp_path / "public").mkdir()
    handler = functools.partial(Quiet, directory=tmp_path / "public")
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as http:
        thread = threading.Thread(target=http.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{http.server_port}", tmp_path / "public", requests
        http.shutdown()
        thread.join()


@contextlib.contextmanager
def known(monkeypatch, **sources):
    with monkeypatch.context() as patch:
        for name, value in sources.items():
            patch.setitem(SOURCES, name, value)
        patch.setenv("NO_PROXY", "127.0.0.1")
        yield


def write(folder, name, raw=PUBLISHED):
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(raw)


@pytest.mark.parametrize("ending", ["", ".xz", ".gz"])
@pytest.mark.parametrize("place", ["{}.txt", "tiny/{}"])
def test_found_in_the_data_folder(monkeypatch, no_corpora, tmp_path, ending, place):
    pack = {".xz": lzma.compress, ".gz": gzip.compress}.get(ending, bytes)
    for part in ("train", "valid", "test"):
        write(tmp_path, place.format(part) + ending, pack(PUBLISHED))
    monkeypatch.setenv("DYNEVAL_DATA", str(tmp_path))
    with known(monkeypatch, tiny=source()):
        corpus = corpora.load("tiny")
    assert list(corpus.splits) == ["train", "valid", "test"]
    assert corpus.raw() == corpus.raw("test") == PUBLISHED
    assert corpus.read().tokens.tolist() == [0, 1, 2, 3, 2]


def test_found_in_the_cache_and_the_data_folder_goes_first(monkeypatch, no_corpora, tmp_path):
    for part in ("train", "valid", "test"):
        write(no_corpora / "tiny", f"{part}.txt")
    with known(monkeypatch, tiny=source()):
        assert corpora.load("tiny").raw("train") == PUBLISHED
        write(tmp_path / "data", "train.txt", b"other\n")
        monkeypatch.setenv("DYNEVAL_DATA", str(tmp_path / "data"))
        assert corpora.load("tiny").raw("train") == b"other\n"


def test_found_nowhere(monkeypatch, no_corpora, tmp_path):
    monkeypatch.setenv("DYNEVAL_DATA", str(tmp_path / "data"))
    with known(monkeypatch, tiny=source()):
        message = refused(corpora.load, "tiny")
    assert f"tiny is not in {tmp_path / 'data'} or {no_corpora / 'tiny'}" in message
    assert "cannot be downloaded; set DYNEVAL_DATA" in message


def test_a_file_that_is_not_the_published_one(monkeypatch, no_corpora):
    for part in ("train", "valid", "test"):
        write(no_corpora / "tiny", f"{part}.txt", PUBLISHED + b"more\n")
    with known(monkeypatch, tiny=source()):
        message = refused(corpora.load, "tiny")
        assert f"{no_corpora / 'tiny' / 'test.txt'} is not the published file" in message
    with known(monkeypatch, tiny=source(sha256={})):
        message = refused(corpora.load("tiny").read, "test")
    assert "tiny (test) has 7 tokens, the published one 5" in message


def test_downloaded_once(monkeypatch, no_corpora, server):
    address, public, requests = server
    for part in ("train", "valid", "test"):
        write(public, f"{part}.txt")
    with known(monkeypatch, tiny=source(address)):
        assert corpora.load("tiny").read().tokens.tolist() == [0, 1, 2, 3, 2]
        assert corpora.load("tiny").raw() == PUBLISHED
    assert requests == ["/train.txt", "/valid.txt", "/test.txt"]
    assert (no_corpora / "tiny" / "test.txt").read_bytes() == PUBLISHED


def test_a_download_tells_how_far_it_is(monkeypatch, no_corpora, server):
    address, public, _ = server
    raw = b"abc " * 50_000
    write(public, "train.txt", raw)
    told = []
    here = {"kind": "bytes", "splits": {"train": ("train.txt",)}, "sha256": {}, "tokens": {}}
    tiny = source(address, **here)
    with known(monkeypatch, tiny=tiny), corpora.downloads(lambda *one: told.append(one)):
        for _ in range(2):  # the second time it is there
            assert corpora._find(SOURCES["tiny"], "tiny", "train") == raw
    assert {one[0] for one in told} == {"train.txt"}
    assert {one[2] for one in told} == {len(raw)}
    done = [one[1] for one in told]
    assert done[0] < len(raw) == done[-1]
    assert len(done) == 1 + -(-len(raw) // corpora.CHUNK)  # at the end once more


def test_downloaded_from_an_archive_once(monkeypatch, no_corpora, server):
    address, public, requests = server
    with zipfile.ZipFile(public / "tiny.zip", "w") as archive:
        archive.writestr("readme", "not this")
        archive.writestr("tiny", b"x" * 100)
    splits = {"all": ("tiny", "tiny/tiny")}
    changes = {"kind": "bytes", "splits": splits, "member": "tiny", "sha256": {}, "tokens": {}}
    whole = source(url=f"{address}/tiny.zip", **changes, size=100)
    with known(monkeypatch, tiny=whole):
        corpus = corpora.load("tiny")
        assert corpus.raw("all") == b"x" * 100
        assert [len(corpus.read(part)) for part in ("train", "valid", "test")] == [90, 5, 5]
        assert corpus.note == ""
        assert corpora.load("tiny").raw("all") == b"x" * 100
    assert requests == ["/tiny.zip"]


def test_a_download_with_a_wrong_checksum(monkeypatch, no_corpora, server):
    address, public, _ = server
    for part in ("train", "valid", "test"):
        write(public, f"{part}.txt", b"another text\n")
    with known(monkeypatch, tiny=source(address)):
        message = refused(corpora.load, "tiny")
        assert f"could not be downloaded from {address}/test.txt" in message
        assert "hash" in message
        # nothing of it stays: the right file is taken at the next try
        write(public, "test.txt")
        assert corpora.load("tiny").raw("test") == PUBLISHED


def test_a_download_that_is_not_there(monkeypatch, no_corpora, server):
    address, _, _ = server
    with known(monkeypatch, tiny=source(address)), warnings.catch_warnings():
        # the refused connection is left to the garbage collector, which is not our doing
        warnings.simplefilter("ignore", ResourceWarning)
        message = refused(corpora.load, "tiny")
        gc.collect()
    assert f"tiny is not in $DYNEVAL_DATA and could not be downloaded from {address}" in message
    assert "404" in message


def test_a_piece_says_that_it_is_not_the_published_split(monkeypatch, no_corpora):
    write(no_corpora / "tiny", "tiny", b"x" * 60)
    splits = {"all": ("tiny",)}
    piece = source(kind="bytes", splits=splits, sha256={}, tokens={}, size=100)
    with known(monkeypatch, tiny=piece):
        corpus = corpora.load("tiny")
    assert corpus.note == "the first 60 of 100 bytes, split 90-5-5: not the published split"
    assert [len(corpus.read(part)) for part in ("train", "valid", "test")] == [54, 3, 3]
    assert corpus.default_split == "test"


def test_only_the_first_characters_are_read(monkeypatch, no_corpora):
    write(no_corpora / "tiny", "tiny", "é語a𝄞b".encode())
    first = source(kind="characters", splits={"test": ("tiny",)}, sha256={}, tokens={}, limit=4)
    with known(monkeypatch, tiny=first):
        assert corpora.load("tiny").raw().decode() == "é語a𝄞"


# The real ones


@pytest.mark.corpora
@pytest.mark.parametrize(
    ("name", "symbols", "tokens"),
    [
        ("ptb", 10_000, {"train": 929_589, "valid": 73_760, "test": 82_430}),
        ("wikitext-2", 33_278, {"train": 2_088_628, "valid": 217_646, "test": 245_569}),
    ],
)
def test_standard_counts_of_words(corpora_folder, name, symbols, tokens):
    corpus = corpora.load(name)
    assert len(corpus.vocabulary) == symbols
    assert corpus.note == ""
    for part, count in tokens.items():
        raw, text = corpus.raw(part), corpus.read(part)
        assert len(text) == count
        assert text.words.sum() == len(raw.split())
        assert text.characters.sum() == len(raw.decode())
        assert text.bytes.sum() == len(raw)


@pytest.mark.corpora
@pytest.mark.parametrize(
    ("name", "size", "symbols", "note"),
    [
        ("text8", 12_549_840, 27, "the first 12,549,840 of 100,000,000 bytes"),
        ("enwik8", 4_154_399, 256, "the first 4,154,399 of 100,000,000 bytes"),
        ("enwiki-2014-xml", 10_509_828, 256, "no published split"),
    ],
)
def test_standard_splits_of_pieces(corpora_folder, name, size, symbols, note):
    corpus = corpora.load(name)
    assert len(corpus.raw("all")) == size
    assert len(corpus.vocabulary) == symbols
    assert note in corpus.note
    h = size // 20
    lengths = [len(corpus.raw(part)) for part in ("train", "valid", "test")]
    assert lengths == [size - 2 * h, h, h]
    text = corpus.read("test")
    assert len(text) == text.bytes.sum() == h
    assert text.words.sum() == len(corpus.raw("test").split())


@pytest.mark.corpora
def test_europarl_is_a_test_text(corpora_folder):
    corpus = corpora.load("europarl-es")
    assert list(corpus.splits) == ["test"]
    text = corpus.read()
    assert len(text) == text.characters.sum() == 5_000_000
    assert text.bytes.sum() == len(corpus.raw()) == 5_093_555
    assert len(corpus.vocabulary) == 125
    assert "differ in line breaks" in corpus.note
    as_bytes = corpora.load("europarl-es", "bytes").read()
    assert len(as_bytes) == 5_093_555
    assert as_bytes.words.sum() == text.words.sum() == 810_420
