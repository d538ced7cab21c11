"""Two real processes that share the streams find what one finds alone."""

import dataclasses
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from checkpoints import prose
from test_training import LSTM, finished

from dyneval import collection, corpora, gradient_stats, models, storage
from dyneval.processes import ALONE, Group, join
from dyneval.training import STATE, start

# gently: rounding grows with each step otherwise
PLAIN = dataclasses.replace(
    LSTM, model=LSTM.model | {"dropout": 0.0}, epochs=1, learning_rate=0.1, clip=1.0
)
SHARED = """
import sys
from pathlib import Path
import torch
from dyneval import collection, corpora, models
from dyneval.processes import join
from dyneval.training import start
from test_processes import PLAIN
from test_training import NT_ASGD, finished

torch.set_num_threads(1)
text, folder = Path(sys.argv[1]), Path(sys.argv[2])
corpus, group = corpora.load(text, "characters"), join()

finished(start(PLAIN, corpus, folder / "plain", group=group))
finished(start(NT_ASGD, corpus, folder / "whole", group=group))
stopped = start(NT_ASGD, corpus, folder / "stopped", group=group)
for progress in stopped.run():
    if progress.step == 60:
        stopped.save()
        break
finished(start(NT_ASGD, corpus, folder / "stopped", group=group, resume=True))
model = models.load(folder / "plain").model
collected = collection.collect(model, corpus, 5, batch_size=6, skip=2, batches=40, group=group)
collected.save(folder / f"statistics-{group.rank}.safetensors")
"""


def started(code, *arguments, rank, port):
    """Start one of two processes as torchrun does."""
    here = Path(__file__).parent
    environment = os.environ | {
        "PYTHONPATH": f"{here.parent}{os.pathsep}{here}",
        "OMP_NUM_THREADS": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": "2",
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
    }
    return subprocess.Popen([sys.executable, "-c", code, *map(str, arguments)], env=environment)


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text(prose(("the", "cat", "saw", "a", "dog"), 900, 1))
    return path


@pytest.fixture(scope="module")
def shared(text, tmp_path_factory):
    """A folder of what two processes made of a text together."""
    folder = tmp_path_factory.mktemp("shared")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    both = [started(SHARED, text, folder, rank=rank, port=port) for rank in range(2)]
    assert [process.wait(240) for process in both] == [0, 0]
    return folder


def test_they_train_what_one_trains(text, shared, tmp_path):
    corpus = corpora.load(text, "characters")
    alone = start(PLAIN, corpus, tmp_path / "alone")
    finished(alone)
    ours, theirs = models.load(tmp_path / "alone"), models.load(shared / "plain")
    for weight, other in zip(ours.model.parameters(), theirs.model.parameters(), strict=True):
        torch.testing.assert_close(other, weight, rtol=1e-3, atol=1e-6)
    for entry, other in zip(alone.history, theirs.about["history"], strict=True):
        for name in ("train_nats", "valid_nats"):
            assert other[name] == pytest.approx(entry[name], rel=1e-5)
    assert theirs.about["processes"] == 2


def test_they_are_resumed_as_if_never_stopped(shared):
    """With units dropped out, random lengths, averages and fine-tuning: to the last bit."""
    whole, stopped = (storage.read_tensors(shared / name / STATE) for name in ("whole", "stopped"))
    assert whole[0].keys() == stopped[0].keys()
    for name, value in whole[0].items():
        assert torch.equal(value, stopped[0][name]), name
    assert whole[1]["step"] == stopped[1]["step"]
    random = whole[0]["random"]
    assert not torch.equal(random[0], random[1])  # each drops out units of its own


def test_they_are_resumed_by_as_many(text, shared):
    with pytest.raises(ValueError, match="holds a training with another processes"):
        start(PLAIN, corpora.load(text, "characters"), shared / "plain", resume=True)


def test_they_collect_the_statistics_of_one(text, shared):
    model = models.load(shared / "plain").model
    corpus = corpora.load(text, "characters")
    alone = collection.collect(model, corpus, 5, batch_size=6, skip=2, batches=40)
    parts = [gradient_stats.load(shared / f"statistics-{rank}.safetensors") for rank in range(2)]
    for part in parts:
        assert part.collection == alone.collection
        for name, rms in alone.rms.items():
            torch.testing.assert_close(part.rms[name], rms, rtol=1e-4, atol=1e-8)
    assert torch.equal(parts[0].rms["output.bias"], parts[1].rms["output.bias"])


def test_streams_that_cannot_be_shared():
    assert Group(1, 2).rows(torch.arange(6).view(6, 1)).flatten().tolist() == [3, 4, 5]
    with pytest.raises(ValueError, match="5 streams .* by 2 processes; give .* multiple of 2"):
        Group(0, 2).rows(torch.zeros(5, 3))


def test_a_process_alone(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert join() is ALONE
    tensor = torch.ones(2)
    ALONE.average([tensor])
    ALONE.wait()
    assert ALONE.first
    assert ALONE.any(True, False) == [True, False]
    assert ALONE.gather(tensor)[0] is tensor
    assert ALONE.rows(tensor).tolist() == [1.0, 1.0]
