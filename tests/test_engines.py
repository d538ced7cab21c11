import copy

import pytest
import torch
from torch.nn import functional as F

from dyneval.engines import Reference
from dyneval.gradient_stats import without_statistics
from dyneval.rules import Decay, Rms, RmsDecay, Sgd

RULES = [Sgd(0.3), Sgd(0.3) + Decay(0.1), Rms(0.02, 0.1) + Decay(0.1), Rms(0.02, 0.1) + RmsDecay(1)]
TOKENS = torch.tensor([[3, 1, 4, 1, 5]])
TARGETS = torch.tensor([[1, 4, 1, 5, 2]])


@pytest.fixture(params=RULES, ids=str)
def rule(request):
    return request.param


@pytest.fixture
def priors(lstm, make_stats):
    return make_stats(lstm).priors(lstm)


def same(found, expected, rtol=1e-12):
    assert set(found) == set(expected)
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=rtol, atol=1e-15)


def test_learning_is_one_step_of_the_rule(lstm, priors, rule):
    engine = Reference(lstm, rule, priors)
    expected = copy.deepcopy(lstm)
    state = None
    for _ in range(3):
        engine.predict(TOKENS)
        engine.learn(TARGETS)
        h, state = expected.hidden(TOKENS, state)
        loss = F.cross_entropy(expected.logits(h)[0], TARGETS[0])
        gradients = torch.autograd.grad(loss, list(expected.parameters()))
        state = [(h.detach(), c.detach()) for h, c in state]
        with torch.no_grad():
            for (name, theta), gradient in zip(expected.named_parameters(), gradients, strict=True):
                theta.copy_(rule.step(theta, gradient, priors[name]))
    same(engine.weights(), {name: theta.detach() for name, theta in expected.named_parameters()})


def test_a_weight_that_was_not_used_feels_its_pull_alone(lstm, make_stats, rule):
    lstm.unused = torch.nn.Parameter(torch.tensor([1.0, 2.0], dtype=torch.double))
    priors = make_stats(lstm).priors(lstm)
    engine = Reference(lstm, rule, priors)
    moved = priors["unused"].theta + 1
    engine.load_state_dict(engine.state_dict() | {"weights.unused": moved})
    for _ in range(2):
        engine.predict(TOKENS)
        engine.learn(TARGETS)
        moved = rule.step(moved, torch.zeros(2, dtype=torch.double), priors["unused"])
        torch.testing.assert_close(engine.weights()["unused"], moved, rtol=1e-13, atol=0)


def test_only_the_first_tokens_may_have_targets(lstm, priors, rule):
    """The state goes on behind the last token, the loss is over those with a target."""
    short, long = Reference(lstm, rule, priors), Reference(lstm, rule, priors)
    for engine, length in ((short, 3), (long, 5)):
        engine.predict(TOKENS[:, :length])
        engine.learn(TARGETS[:, :3])
    same(long.weights(), short.weights())
    long.predict(TOKENS)
    long.learn(TARGETS[:, :0])  # no target at all: nothing is learned, not even the pull
    same(long.weights(), short.weights())


def test_a_reset_is_of_weights_or_state_or_both(lstm, priors, rule):
    fresh = Reference(lstm, rule, priors).predict(TOKENS).log_probs
    engine = Reference(lstm, rule, priors)

    def adapt():
        engine.predict(TOKENS)
        engine.learn(TARGETS)
        engine.predict(TOKENS)  # and a segment is open

    adapt()
    engine.reset(weights=True, state=True)
    assert torch.equal(engine.predict(TOKENS).log_probs, fresh)
    adapt()
    adapted = {name: theta.clone() for name, theta in engine.weights().items()}
    engine.reset(weights=False, state=True)
    same(engine.weights(), adapted, rtol=0)
    assert not any(name.startswith("state") for name in engine.state_dict())
    adapt()
    before = engine.state_dict()
    engine.reset(weights=True, state=False)
    same(engine.weights(), {name: prior.theta for name, prior in priors.items()}, rtol=0)
    after = engine.state_dict()
    assert any(name.startswith("state") for name in after)
    for name in after:
        assert name.startswith("weights") or torch.equal(after[name], before[name])


def test_a_dropped_segment_is_not_learned_from(lstm, priors, rule):
    """What was read stays in the state, but no gradient reaches back into it."""
    found, expected = Reference(lstm, rule, priors), Reference(lstm, rule, priors)
    found.predict(TOKENS)
    found.reset(weights=False, state=False)
    expected.predict(TOKENS)
    expected.learn(TARGETS[:, :0])
    for engine in (found, expected):
        engine.predict(TOKENS)
        engine.learn(TARGETS)
    same(found.weights(), expected.weights(), rtol=0)


def test_a_stored_state_is_a_copy(lstm, priors, rule):
    engine = Reference(lstm, rule, priors)
    engine.predict(TOKENS)
    engine.learn(TARGETS)
    stored = engine.state_dict()
    before = {name: value.clone() for name, value in stored.items()}
    engine.predict(TOKENS)
    engine.learn(TARGETS)
    same(stored, before, rtol=0)
    engine.load_state_dict(stored)
    same(engine.state_dict(), before, rtol=0)
    engine.predict(TOKENS)
    engine.learn(TARGETS)
    same(stored, before, rtol=0)


def test_learning_needs_no_permission_of_the_caller(lstm, priors, rule):
    """Code that only evaluates runs under no_grad; the steps are the same there."""
    found, expected = Reference(lstm, rule, priors), Reference(lstm, rule, priors)
    expected.predict(TOKENS)
    expected.learn(TARGETS)
    with torch.no_grad():
        found.predict(TOKENS[:, :2])
        found.predict(TOKENS[:, 2:])
        found.learn(TARGETS)
    same(found.weights(), expected.weights())


@pytest.mark.parametrize("rule", RULES[2:], ids=str)
def test_missing_statistics_are_asked_for_at_once(lstm, rule):
    with pytest.raises(ValueError, match="dyneval gradient-stats"):
        Reference(lstm, rule, without_statistics(lstm))
