from dataclasses import replace

import oracle
import pytest
import torch
from oracle import weights_of

from dyneval import gradient_stats, storage
from dyneval.evaluation import evaluate
from dyneval.gradient_stats import Collection, GradientStats
from dyneval.models import fingerprint
from dyneval.predictors import Collector
from dyneval.streams import PAD, padded, parallel


def collect(model, text, batch_size, segment_length):
    collector = Collector(model)
    for _ in evaluate(collector, parallel(text, batch_size), segment_length):
        pass
    return collector.stats("text", "1234")


@pytest.mark.parametrize(("batch_size", "segment_length"), [(1, 5), (3, 4)])
def test_statistics_are_the_mean_square_of_the_gradients(model, text, batch_size, segment_length):
    """The last batch is shorter (2 and 1 tokens) and counts as any other."""
    expected, batches = oracle.mean_squares(
        weights_of(model), text[:148].tolist(), batch_size, segment_length
    )
    stats = collect(model, text[:148], batch_size, segment_length)
    assert stats.collection == Collection(
        fingerprint(model), batch_size, segment_length, batches, "text", "1234"
    )
    assert set(stats.rms) == set(expected)
    for name, rms in stats.rms.items():
        torch.testing.assert_close(rms**2, expected[name], rtol=1e-10, atol=1e-18)


def test_averages_go_by_both_names(lstm, make_stats):
    stats = make_stats(lstm)
    squares = {name: rms**2 for name, rms in stats.rms.items()}
    averages = []
    for name in ("tensors", "weights"):
        priors = stats.priors(lstm, name)
        (average,) = {prior.mean_rms for prior in priors.values()}
        assert average == pytest.approx(getattr(oracle, f"average_over_{name}")(squares), rel=1e-12)
        averages.append(average)
        for name, weight in lstm.named_parameters():
            assert torch.equal(priors[name].theta, weight)
            torch.testing.assert_close(priors[name].rms_norm, stats.rms[name] / average)
    assert averages[0] != pytest.approx(averages[1], rel=0.005)
    with pytest.raises(ValueError, match="give tensors or weights"):
        stats.priors(lstm, "median")


def test_parts_merge_to_the_whole(lstm, text):
    first, second = text[:80], text[80:]
    whole = Collector(lstm)
    for part in (first, second):
        whole.reset()
        for _ in evaluate(whole, parallel(part, 4), 4):
            pass
    parts = [collect(lstm, part, 4, 4) for part in (first, second)]
    assert [part.collection.batches for part in parts] == [5, 4]
    merged = gradient_stats.merge(parts)
    assert merged.collection == whole.stats("text", "1234").collection
    for name, rms in whole.stats().rms.items():
        torch.testing.assert_close(merged.rms[name], rms, rtol=1e-12, atol=0)


@pytest.mark.parametrize(
    "difference",
    [{"model": "other"}, {"batch_size": 2}, {"segment_length": 9}, {"corpus": "other"}],
)
def test_parts_of_different_collections_do_not_merge(lstm, make_stats, difference):
    stats = make_stats(lstm)
    other = GradientStats(stats.rms, replace(stats.collection, **difference))
    with pytest.raises(ValueError, match=f"statistics of {next(iter(difference))}"):
        gradient_stats.merge([stats, other])


def test_statistics_of_another_model_are_refused(lstm, small, make_stats, text):
    stats = collect(lstm, text, 2, 5)
    stats.priors(lstm)
    with torch.no_grad():
        lstm.output.bias[0] += 1e-3
    with pytest.raises(ValueError, match="belong to other weights"):
        stats.priors(lstm)
    with pytest.raises(ValueError, match="belong to other weights"):
        stats.priors(small)


@pytest.mark.parametrize(
    ("dtype", "loss"), [(None, 1e-7), (torch.float32, 1e-7), (torch.bfloat16, 2**-8)]
)
def test_statistics_survive_a_file(lstm, make_stats, tmp_path, dtype, loss):
    stats = make_stats(lstm)
    stats.save(tmp_path / "stats.safetensors", dtype)
    found = gradient_stats.load(tmp_path / "stats.safetensors")
    assert found.collection == stats.collection
    for name, rms in stats.rms.items():
        assert found.rms[name].dtype == torch.float32
        torch.testing.assert_close(found.rms[name].double(), rms, rtol=loss, atol=0)
    found.priors(lstm)


def test_a_file_of_something_else_says_so(lstm, make_stats, tmp_path):
    path = tmp_path / "stats.safetensors"
    with pytest.raises(ValueError, match=r"stats\.safetensors does not exist"):
        gradient_stats.load(path)
    storage.write_tensors(path, {"output.bias": torch.ones(3)})
    with pytest.raises(ValueError, match=r"stats\.safetensors holds no gradient statistics"):
        gradient_stats.load(path)
    make_stats(lstm).save(path)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match=r"stats\.safetensors is no whole safetensors file"):
        gradient_stats.load(path)


def test_collecting_goes_on_exactly_where_it_stopped(lstm, text):
    stream = parallel(text, 3)
    collector, other = Collector(lstm), Collector(lstm)
    for _ in evaluate(collector, stream[:, :21], 4):
        pass
    other.load_state_dict(collector.state_dict())
    for each in (collector, other):
        for _ in evaluate(each, stream[:, 20:], 4):
            pass
    assert other.stats().collection == collector.stats().collection
    for name, rms in collector.stats().rms.items():
        assert torch.equal(other.stats().rms[name], rms)


def test_what_is_padded_does_not_count(lstm, text):
    """The loss of a batch is the mean over its tokens, and no token is no batch."""
    collector, expected = Collector(lstm), Collector(lstm)
    rows = [text[:5], text[5:7]]
    for _ in evaluate(collector, padded(rows), 5):
        pass
    theta = {name: weight.detach().requires_grad_() for name, weight in weights_of(lstm).items()}
    losses = [nats for row in rows for nats in oracle_nats(theta, row.tolist())]
    gradients = oracle.gradient_of(sum(losses) / 5, theta)
    for name, rms in collector.stats().rms.items():
        torch.testing.assert_close(rms, gradients[name].abs(), rtol=1e-10, atol=1e-14)

    expected.load_state_dict(collector.state_dict())
    collector.predict(padded(rows)[:, :2])
    collector.learn(torch.full((2, 2), PAD))
    assert collector.stats().collection == expected.stats().collection
    for name, rms in expected.stats().rms.items():
        assert torch.equal(collector.stats().rms[name], rms)


def test_nothing_gathered_is_no_statistics(lstm):
    with pytest.raises(ValueError, match="no batch was read yet"):
        Collector(lstm).stats()


def oracle_nats(theta, text):
    state, losses = None, []
    for token, following in zip(text, text[1:], strict=False):
        log_probs, _, state = oracle.step(theta, token, state)
        losses.append(-log_probs[following])
    return losses
