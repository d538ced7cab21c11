import json
import math

import oracle
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dyneval import rules
from dyneval.gradient_stats import Prior
from dyneval.rules import Decay, Rms, RmsDecay, Sgd, Sum

RULES = [
    Sgd(0.3),
    Sgd(0.3) + Decay(0.02),
    Rms(0.01, 0.05) + Decay(0.02),
    Rms(0.01, 0.05) + RmsDecay(0.7),
]
ORACLES = [
    oracle.sgd(0.3),
    oracle.sgd_decay(0.3, 0.02),
    oracle.rms_decay(0.01, 0.02, 0.05),
    oracle.rms_rms_decay(0.01, 0.7, 0.05),
]


@pytest.fixture
def prior():
    generator = torch.Generator().manual_seed(0)
    theta, rms = torch.rand((2, 6, 5), dtype=torch.double, generator=generator)
    rms[0, 0] = 0.0
    return Prior(theta, rms, 0.4)


@pytest.mark.parametrize(
    ("rule", "update"), list(zip(RULES, ORACLES, strict=True)), ids=[str(rule) for rule in RULES]
)
def test_a_step_is_that_of_the_paper(rule, update, prior):
    theta, gradient = prior.theta + 0.3, torch.linspace(-1, 1, 30, dtype=torch.double).view(6, 5)
    expected = update(theta, prior.theta, gradient, prior.rms**2, prior.mean_rms)
    torch.testing.assert_close(rule.step(theta, gradient, prior), expected, rtol=1e-13, atol=0)


def test_the_pull_goes_no_further_than_the_trained_weights(prior):
    pull = RmsDecay(0.7).pull(prior)
    clipped = prior.rms_norm > 1 / 0.7
    assert clipped.any()
    assert not clipped.all()
    assert pull[clipped].eq(1).all()
    torch.testing.assert_close(pull[~clipped], 0.7 * prior.rms_norm[~clipped])
    assert (RmsDecay(1e9).step(prior.theta + 1, prior.theta, prior) >= prior.theta).all()


def test_without_a_rate_there_is_no_pull(prior):
    assert torch.equal(RmsDecay(0.0).pull(prior), torch.zeros(6, 5, dtype=torch.double))


def test_gains_and_pulls_add_up(prior):
    rule = Sgd(0.5) + Sgd(0.25) + Decay(0.1) + RmsDecay(0.2)
    assert rule.gain(prior) == 0.75
    torch.testing.assert_close(rule.pull(prior), 0.1 + RmsDecay(0.2).pull(prior))
    assert rule == (Sgd(0.5) + Sgd(0.25)) + (Decay(0.1) + RmsDecay(0.2))


def test_a_rule_of_your_own_is_one_small_class(prior):
    class Constant(rules.Term):
        def pull(self, prior):
            return 0.5

    rule = Sgd(2.0) + Constant()
    found = rule.step(prior.theta + 1, torch.ones(6, 5), prior)
    torch.testing.assert_close(found, prior.theta + 1 - 2 - 0.5)


@pytest.mark.parametrize("rule", [*RULES, Sgd(0.0), Sum(())], ids=str)
def test_a_rule_survives_json(rule):
    assert rules.from_json(json.loads(json.dumps(rule.to_json()))) == rule


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_a_rule_says_what_it_is(rule):
    names = {term.__name__: term for term in (Sgd, Rms, Decay, RmsDecay)}
    assert eval(repr(rule), names) == rule


def test_rules_go_by_the_names_of_the_table():
    made = [rules.rule(name, 0.3, 0.02, 0.05) for name in rules.NAMES]
    assert made == [
        Sgd(0.3),
        Sgd(0.3) + Decay(0.02),
        Rms(0.3, 0.05) + Decay(0.02),
        Rms(0.3, 0.05) + RmsDecay(0.02),
    ]
    assert [rule.needs_statistics for rule in made] == [False, False, True, True]
    with pytest.raises(ValueError, match="no rule 'adam'; give one of sgd, "):
        rules.rule("adam", 0.1)
    with pytest.raises(ValueError, match="no term 'Adam'"):
        rules.from_json([{"term": "Adam"}])
    with pytest.raises(ValueError, match="Sgd"):
        rules.from_json([{"term": "Sgd", "rate": 0.1}])


@pytest.mark.parametrize("value", [-0.1, math.nan, math.inf])
@pytest.mark.parametrize(
    ("term", "name"), [(Sgd, "learning_rate"), (Rms, "epsilon"), (Decay, "rate")]
)
def test_a_setting_is_a_number_of_at_least_zero(term, name, value):
    settings = {"learning_rate": 0.1, name: value} if term is Rms else {name: value}
    with pytest.raises(ValueError, match=f"{name} {value} of {term.__name__}"):
        term(**settings)


def test_settings_that_cannot_work_are_refused():
    with pytest.raises(ValueError, match="overshoots"):
        Decay(1.5)
    with pytest.raises(ValueError, match="divides by zero"):
        Rms(0.1, 0.0)


@pytest.mark.parametrize("rule", [Rms(0.1), RmsDecay(0.1)], ids=str)
def test_statistics_that_are_missing_are_asked_for(rule):
    prior = Prior(torch.ones(2))
    with pytest.raises(ValueError, match="dyneval gradient-stats"):
        rule.step(torch.ones(2), torch.ones(2), prior)


@given(
    st.floats(1e-4, 0.1), st.floats(1e-4, 1), st.floats(1e-4, 0.1), st.integers(1, 5000),
    st.integers(1, 20),
)  # fmt: skip
def test_settings_of_the_first_release_mean_the_same_step(
    learning_rate, decay_rate, epsilon, batches, tensors
):
    """Its statistics were not divided by N_b, nor its average by the number of tensors."""
    rms = torch.tensor([0.3, 0.7], dtype=torch.double)
    prior = Prior(torch.zeros(2, dtype=torch.double), rms, rms.mean().item())
    theirs = rms * math.sqrt(batches)
    gain = learning_rate / (theirs + epsilon)
    pull = (decay_rate * theirs / (theirs.mean() * tensors)).clamp(max=1)
    rule = rules.from_first_release(
        learning_rate, decay_rate, epsilon, batches=batches, tensors=tensors
    )
    torch.testing.assert_close(rule.gain(prior), gain)
    torch.testing.assert_close(rule.pull(prior), pull)
