"""Tiny checkpoints with gradient statistics, texts, and the command line, as fixtures.

A test that breaks a file works on a copy; nobody writes into `checkpoints` and `texts`.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from processes import Done, one_line

from dyneval import cli, collection, corpora, gradient_stats, models
from dyneval.models import Checkpoint
from dyneval.vocabularies import EOS, UNK, Vocabulary

ANIMALS = ("the", "cat", "saw", "a", "dog", "and", "bit", "it")
COLOURS = ("no", "red", "sun", "is", "blue", "or", "half", "green", "über", "all")


def prose(words: tuple[str, ...], count: int, seed: int) -> str:
    """Return `count` words in lines, the first of them most often."""
    random = np.random.default_rng(seed)
    chosen = random.choice(
        words, count, p=np.arange(len(words), 0, -1) / sum(range(len(words) + 1))
    )
    lengths = random.integers(4, 9, count)
    lines = [list(line) for line in np.split(chosen, np.cumsum(lengths)) if len(line)]
    return "".join(" ".join(line) + "\n" for line in lines)


VOCABULARIES = {
    "bytes": Vocabulary("bytes"),
    "characters": Vocabulary("characters", tuple(sorted(set(prose(ANIMALS + COLOURS, 999, 0))))),
    "words": Vocabulary("words", (EOS, UNK, *ANIMALS, *COLOURS[:-2])),
}
ARCHITECTURES = {
    "bytes": ("mlstm", {"embedding_size": 6, "units": 12}),
    "characters": ("lstm", {"embedding_size": 5, "units": 10, "layers": 2}),
    "words": ("lstm", {"embedding_size": 8, "units": 8, "layers": 1, "tied": True}),
}


@pytest.fixture(scope="session")
def texts(tmp_path_factory) -> dict[str, Path]:
    """A text to collect statistics on, and one of other words that few tests read to its end."""
    folder = tmp_path_factory.mktemp("texts")
    files = {"train": prose(ANIMALS, 1500, 1), "shifted": prose(COLOURS, 700, 2)}
    for name, text in files.items():
        (folder / f"{name}.txt").write_text(text, "utf-8")
    return {name: folder / f"{name}.txt" for name in files}


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory, texts) -> dict[str, Path]:
    """A checkpoint folder for each kind of vocabulary: untrained weights, always the same."""
    folders = {kind: tmp_path_factory.mktemp("checkpoints") / kind for kind in VOCABULARIES}
    for kind, folder in folders.items():
        vocabulary, (architecture, settings) = VOCABULARIES[kind], ARCHITECTURES[kind]
        with torch.random.fork_rng():
            torch.manual_seed(4)
            model = models.ARCHITECTURES[architecture](len(vocabulary), **settings).eval()
        models.save(folder, Checkpoint(model, vocabulary, {"made": "by a test"}))
        corpus = corpora.load(texts["train"], vocabulary)
        stats = collection.collect(model, corpus, 5, split="all", batch_size=10, batches=20)
        stats.save(folder / gradient_stats.FILE)
    return folders


@pytest.fixture
def copied(checkpoints, tmp_path) -> Callable[[str], Path]:
    """Give a copy of a checkpoint that a test may write into."""

    def copy(kind: str) -> Path:
        return Path(shutil.copytree(checkpoints[kind], tmp_path / f"copy of {kind}"))

    return copy


@pytest.fixture
def shifted(texts) -> str:
    """The name of the text that the models were not made for."""
    return str(texts["shifted"])


@pytest.fixture
def command(monkeypatch, capsys) -> Callable[..., Done]:
    """Run the command line in this process."""

    def run(*arguments: object) -> Done:
        monkeypatch.setattr(sys, "argv", ["dyneval", *map(str, arguments)])
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        code = stopped.value.code
        assert isinstance(code, int)
        return Done(code, *capsys.readouterr())

    return run


@pytest.fixture
def mistake(command) -> Callable[..., str]:
    """Run a command that must end with exit code 2 and one line -> that line."""

    def run(*arguments: object) -> str:
        code, out, err = command(*arguments)
        assert (code, out) == (2, "")
        return one_line(err)

    return run
