"""The kernels for a GPU on the CPU, by Triton's interpreter; `test_kernels_cuda.py` runs this file.

Whether kernels are interpreted is settled when Triton is imported: TRITON_INTERPRET=1 must be set.
"""

import pytest
import torch
from conftest import MODELS, tiny
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_checks import RULES, difference, follow, priors
from test_kernels_generic import CASES, make

from dyneval.engines import Reference
from dyneval.gradient_stats import Prior
from dyneval.kernels.cuda import Triton, without_triton
from dyneval.kernels.rates import rates
from dyneval.kernels.triton_updates import Update

PRECISIONS = {torch.float64: 1e-12, torch.float32: 1e-5}


@st.composite
def matrices(draw):
    """A matrix between its tiles' sizes, its prior, and inputs and tokens of a few uses."""
    rows, columns = draw(st.integers(1, 40)), draw(st.integers(1, 300))
    count = draw(st.integers(0, 20))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))

    def numbers(*shape):
        return torch.randn(shape, dtype=torch.double, generator=generator)

    theta, prior = numbers(rows, columns), Prior(numbers(rows, columns), torch.rand(rows, columns))
    tokens = torch.randint(rows, (count,), generator=generator)
    return theta, prior, numbers(count, columns), numbers(count, rows), tokens


def within(prior, dtype):
    return Prior(prior.theta.to(dtype), prior.rms.to(dtype), 0.4)


@settings(max_examples=12, deadline=None, derandomize=True)
@given(matrices(), st.booleans(), st.booleans())
@pytest.mark.parametrize("dtype", PRECISIONS, ids=str)
@pytest.mark.parametrize("rule", RULES, ids=str)
def test_a_move_is_a_step_of_the_rule(rule, dtype, matrix, looks_up, pulled):
    """For any shape; after another use of the same weight there is no pull."""
    theta, prior, x, d, tokens = matrix
    prior = within(prior, torch.double)
    gradient = torch.zeros_like(theta).index_add_(0, tokens, x) if looks_up else d.t() @ x
    expected = rule.step(theta, gradient, prior)
    if pulled:
        expected = theta - rule.gain(prior) * gradient
    found = theta.to(dtype, copy=True)
    update = Update(found, within(prior, dtype), rates(rule))
    if looks_up:
        update.look_up(tokens, x.to(dtype), pulled=pulled)
    else:
        update.map(x.to(dtype), d.to(dtype), pulled=pulled)
    tolerance = PRECISIONS[dtype]
    torch.testing.assert_close(found.double(), expected, rtol=tolerance, atol=10 * tolerance)


def test_triton_is_usable_here():
    assert without_triton(torch.device("cpu")) is None


def agree(model, rule, text):
    start = priors(model)
    found, expected = Triton(model, rule, start), Reference(model, rule, start)
    lengths = [5, 1, 3, 9]
    for ours, theirs in zip(
        follow(found, text, lengths), follow(expected, text, lengths), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)
    assert difference(found, expected, start) < 1e-10


@pytest.mark.parametrize("rule", [RULES[0], RULES[3]], ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_the_projects_models_are_the_references(name, rule, text):
    agree(tiny(name), rule, text)


@pytest.mark.parametrize("name", [name for name in CASES if not name.startswith("padded")])
def test_any_model_is_the_references(name, text):
    agree(make(name), RULES[6], text)


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_every_rule_is_the_references(rule, text):
    agree(make("odd uses"), rule, text)


def test_no_gradient_of_a_captured_matrix_is_formed(text, monkeypatch):
    formed = set()
    descend = Triton._descend

    def spy(self, pairs):
        formed.update(weight.name for weight, _ in pairs)
        descend(self, pairs)

    monkeypatch.setattr(Triton, "_descend", spy)
    model = tiny("mlstm")
    follow(Triton(model, RULES[3], priors(model)), text, [5])
    assert formed == {"layers.0.bias", "layers.1.bias", "output.bias"}
