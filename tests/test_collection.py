import re

import pytest
import torch

from dyneval import collection, corpora, gradient_stats, models
from dyneval.evaluation import evaluate
from dyneval.predictors import Collector
from dyneval.streams import parallel


@pytest.fixture
def model(checkpoints):
    return models.load(checkpoints["characters"]).model


@pytest.fixture
def corpus(checkpoints, texts):
    return corpora.load(texts["train"], models.load_vocabulary(checkpoints["characters"]))


def tokens_of(corpus, split="train"):
    return torch.from_numpy(corpus.read(split).tokens).long()


def test_every_batch_of_the_split_is_read(model, corpus):
    seen = []
    found = collection.collect(model, corpus, 20, batch_size=6, report=lambda *at: seen.append(at))
    stream = parallel(tokens_of(corpus), 6)
    batches = -(-(stream.shape[1] - 1) // 20)
    assert (stream.shape[1] - 1) % 20  # the last is shorter, and counts as one
    assert seen == [(k + 1, batches) for k in range(batches)]
    made = found.collection
    assert (made.batch_size, made.segment_length, made.batches) == (6, 20, batches)
    assert (made.corpus, made.checksum) == (corpus.name, corpus.checksum("train"))
    assert made.model == models.fingerprint(model)
    collector = Collector(model)
    for _ in evaluate(collector, stream, 20):
        pass
    for name, rms in collector.stats().rms.items():
        assert torch.equal(found.rms[name], rms)


def test_a_limit_is_a_limit_and_recorded(model, corpus, tmp_path):
    found = collection.collect(model, corpus, 8, split="all", batch_size=3, batches=4)
    found.save(tmp_path / "stats")
    assert gradient_stats.load(tmp_path / "stats").collection.batches == 4
    collector = Collector(model)
    for _ in evaluate(collector, parallel(tokens_of(corpus, "all"), 3)[:, : 4 * 8 + 1], 8):
        pass
    for name, rms in collector.stats().rms.items():
        assert torch.equal(found.rms[name], rms)
    everything = collection.collect(model, corpus, 200, batch_size=9, batches=1000)
    assert everything.collection.batches < 1000


def test_parts_are_the_whole(model, corpus):
    """Each goes on from the hidden states that the text before it leaves."""
    whole = collection.collect(model, corpus, 50, batch_size=4)
    total = whole.collection.batches
    cuts = [0, 3, 10, total]
    seen = []
    parts = [
        collection.collect(
            *(model, corpus, 50),
            batch_size=4,
            skip=start,
            batches=end - start,
            report=lambda *at: seen.append(at),
        )
        for start, end in zip(cuts, cuts[1:], strict=False)
    ]
    assert [part.collection.batches for part in parts] == [3, 7, total - 10]
    # what is skipped is read, and reported, too
    assert seen == [(k, end) for end in cuts[1:] for k in range(1, end + 1)]
    merged = gradient_stats.merge(parts)
    assert merged.collection == whole.collection
    for name, rms in whole.rms.items():
        torch.testing.assert_close(merged.rms[name], rms, rtol=2e-6, atol=1e-12)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"segment_length": 0}, "segment of 0 tokens"),
        ({"segment_length": -1}, "segment of -1 tokens"),
        ({"batch_size": 0}, "batch size of at least 1"),
        ({"batches": 0}, "0 batches of 4 streams"),
        ({"skip": -1}, "skip 0 or more"),
        ({"skip": 5000}, "no batch left after 5000"),
        ({"batch_size": 10**6}, "cannot be cut into 1000000 streams"),
        ({"split": "dev"}, "has no split 'dev'"),
    ],
    ids=lambda value: "" if isinstance(value, str) else str(value),
)
def test_collections_that_make_no_sense(model, corpus, changes, says):
    arguments = {"segment_length": 5, "batch_size": 4} | changes
    with pytest.raises(ValueError, match=re.escape(says)):
        collection.collect(model, corpus, **arguments)
