import checks
import oracle
import pytest
import torch
from checks import scores
from oracle import weights_of

from dyneval.neural_cache import NeuralCache
from dyneval.predictors import Dynamic, Static
from dyneval.rules import Rms, RmsDecay, Sgd
from dyneval.streams import PAD

RULE, UPDATE = Rms(0.01, 0.05) + RmsDecay(0.3), oracle.rms_rms_decay(0.01, 0.3, 0.05)


@pytest.mark.parametrize("warm_up", ["none", "full_window"])
@pytest.mark.parametrize(("size", "segment_length"), [(1, 3), (4, 7), (20, 3), (500, 5)])
@pytest.mark.parametrize("learns", [False, True])
def test_the_cache_agrees_with_a_double_loop(
    lstm, make_stats, streams, learns, size, segment_length, warm_up
):
    """Over a base that is static and one that learns, for one stream and for four."""
    streams, stats = streams[:, :62], make_stats(lstm)
    squares = {name: rms**2 for name, rms in stats.rms.items()}

    def make():
        base = Dynamic(lstm, RULE, stats.priors(lstm)) if learns else Static(lstm)
        return NeuralCache(base, size, weight=0.3, scale=2.0, warm_up=warm_up)

    together = scores(make(), streams, segment_length)
    for row, stream in enumerate(streams[:3]):
        text = stream[stream != PAD].tolist()
        base = oracle.read(
            weights_of(lstm), text, segment_length, UPDATE if learns else None, squares
        )
        log_probs = oracle.cached(
            base.log_probs, base.hidden, text, size, 0.3, 2.0, warm_up == "full_window"
        )
        expected = -log_probs[range(len(text) - 1), text[1:]]
        torch.testing.assert_close(together[row, : len(text) - 1], expected, rtol=1e-10, atol=1e-13)
        if not row:
            alone = scores(make(), stream[None], segment_length)[0]
            torch.testing.assert_close(alone, expected, rtol=1e-10, atol=1e-13)
    assert together[3].isnan().all()


def test_segments_may_be_of_any_length(lstm, text):
    """Long ones after short ones, and the other way round: the window is the same."""
    cache = NeuralCache(Static(lstm), size=10, weight=0.3, scale=2.0)
    found, start = [], 0
    for length in (1, 2, 30, 20, 4, 60, 33):
        targets = text[None, start + 1 : start + 1 + length]
        found.append(cache.predict(text[None, start : start + length]).nats(targets))
        cache.learn(targets)
        start += length
    expected = scores(NeuralCache(Static(lstm), size=10, weight=0.3, scale=2.0), text[None], 7)
    torch.testing.assert_close(torch.cat(found, 1), expected, rtol=1e-11, atol=1e-13)


def test_probabilities_add_up_at_every_token(lstm, text):
    for warm_up in ("none", "full_window"):
        cache = NeuralCache(Static(lstm), size=10, weight=0.3, scale=2.0, warm_up=warm_up)
        total = cache.predict(text[None]).log_probs.exp().sum(-1)
        torch.testing.assert_close(total, torch.ones_like(total), rtol=1e-12, atol=0)


def test_without_a_weight_the_base_speaks_alone(lstm, text):
    cache = NeuralCache(Static(lstm), size=10, weight=0.0)
    assert torch.equal(scores(cache, text[None]), scores(Static(lstm), text[None]))


def test_a_large_scale_does_not_overflow(lstm, text):
    nats = scores(NeuralCache(Static(lstm), size=50, weight=0.3, scale=1e4), text[None])
    assert nats.isfinite().all()


def test_the_base_learns_from_its_own_loss(lstm, text):
    base = Dynamic(lstm, Sgd(0.3))
    scores(NeuralCache(base, size=50, weight=0.9), text[None])
    alone = Dynamic(lstm, Sgd(0.3))
    scores(alone, text[None])
    for name, weight in alone.weights().items():
        assert torch.equal(base.weights()[name], weight)


@pytest.mark.parametrize(
    ("base", "warm_up"),
    [("static", "none"), ("static", "full_window"), ("sgd", "none"), ("final", "full_window")],
)
def test_a_cache_keeps_to_the_protocol(small, make_stats, base, warm_up):
    priors = make_stats(small).priors(small)
    bases = {
        "static": lambda: Static(small),
        "sgd": lambda: Dynamic(small, Sgd(0.3)),
        "final": lambda: Dynamic(small, RULE, priors),
    }
    checks.check_predictor(
        lambda: NeuralCache(bases[base](), size=3, weight=0.3, scale=2.0, warm_up=warm_up)
    )


def test_a_reset_of_the_state_alone_begins_another_text(lstm, text):
    """What was read stays in the cache, but the last token is not followed by the next."""
    first, second = text[:31], text[50:81]
    cache = NeuralCache(Static(lstm), size=500, weight=0.3, scale=2.0)
    scores(cache, first[None])
    cache.reset(weights=False)
    found = scores(cache, second[None])[0]
    one, two = (oracle.read(weights_of(lstm), part.tolist(), 3) for part in (first, second))
    for t in range(len(second) - 1):
        keys = torch.cat([one.hidden[:29], two.hidden[:t]])
        following = torch.cat([first[1:30], second[1 : t + 1]])
        votes = torch.zeros(7, dtype=torch.double)
        votes.index_add_(0, following, torch.softmax(2.0 * keys @ two.hidden[t], 0))
        p = 0.7 * two.log_probs[t].exp() + 0.3 * votes
        assert found[t].item() == pytest.approx(-p[second[t + 1]].log().item(), rel=1e-10)


def test_a_reset_of_the_weights_alone_empties_the_cache(lstm, text):
    cache = NeuralCache(Static(lstm), size=500, weight=0.3, scale=2.0)
    scores(cache, text[None, :31])
    cache.reset(state=False)
    found = scores(cache, text[None, 30:61])[0]
    base = oracle.read(weights_of(lstm), text[:61].tolist(), 3)
    # the state of token 29 is carried on, and waits for token 30
    rest = text[29:61].tolist()
    expected = oracle.cached(base.log_probs[29:], base.hidden[29:], rest, 500, 0.3, 2.0)[1:]
    torch.testing.assert_close(found, -expected[range(30), rest[2:]], rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize(
    "settings",
    [
        {"size": 0},
        {"weight": -0.1},
        {"weight": 1.0},
        {"weight": float("nan")},
        {"scale": -1.0},
        {"scale": float("inf")},
        {"warm_up": "slow"},
    ],
    ids=str,
)
def test_settings_that_cannot_work_are_refused(lstm, settings):
    with pytest.raises(ValueError, match="give"):
        NeuralCache(Static(lstm), **settings)
