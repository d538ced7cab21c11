"""Statistics of a stream's own past, where no text is at hand to collect them on."""

import checks
import oracle
import pytest
import torch
from checks import scores
from conftest import tiny
from oracle import weights_of
from processes import json_of

from dyneval.gradient_stats import RunningStats
from dyneval.predictors import Dynamic
from dyneval.rules import Rms, RmsDecay
from dyneval.targets import LowRank

RULE = Rms(0.02, 0.01) + RmsDecay(0.02)


def read(weights, text, n, warm_up):
    """Return nats and weights of the paper's loop, only that MS_g is of the segments before."""
    update = oracle.rms_rms_decay(0.02, 0.02, 0.01)
    theta = {name: value.clone() for name, value in weights.items()}
    sums = {name: torch.zeros_like(value) for name, value in weights.items()}
    state, nats = None, []
    for count, start in enumerate(range(0, len(text) - 1, n)):
        theta = {name: value.detach().requires_grad_() for name, value in theta.items()}
        losses = []
        for t in range(start, min(start + n, len(text) - 1)):
            p, _, state = oracle.step(theta, text[t], state)
            losses.append(-p[text[t + 1]])
        nats += [loss.item() for loss in losses]
        gradients = oracle.gradient_of(sum(losses) / len(losses), theta)
        if count >= warm_up:
            squares = {name: value / count for name, value in sums.items()}
            mean = oracle.average_over_tensors(squares)
            with torch.no_grad():
                theta = {
                    name: update(theta[name], weights[name], gradients[name], squares[name], mean)
                    for name in theta
                }
        sums = {name: value + gradients[name] ** 2 for name, value in sums.items()}
        state = [(h.detach(), c.detach()) for h, c in state]
    return nats, theta


@pytest.mark.parametrize("warm_up", [1, 4])
def test_they_are_of_the_segments_before(lstm, text, warm_up):
    dynamic = Dynamic(lstm, RULE, RunningStats(warm_up).priors(lstm))
    assert dynamic.engine == "reference: its statistics are of the stream's own past"
    found = scores(dynamic, text[None, :61], 5)
    nats, theta = read(weights_of(lstm), text[:61].tolist(), 5, warm_up)
    torch.testing.assert_close(
        found[0], torch.tensor(nats, dtype=torch.double), rtol=1e-9, atol=1e-12
    )
    for name, weight in dynamic.weights().items():
        torch.testing.assert_close(weight, theta[name].detach(), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("target", [None, LowRank(2)], ids=str)
def test_predictors_keep_to_the_protocol(target):
    """Each stream has statistics of its own, which are kept and forgotten with its weights."""
    model = tiny("small", 3)
    own = target.of(model) if target else model
    checks.check_predictor(lambda: Dynamic(own, RULE, RunningStats(1).priors(own)))


def test_other_engines_refuse(lstm):
    priors = RunningStats().priors(lstm)
    with pytest.raises(ValueError, match="generic engine cannot be used: its statistics are of"):
        Dynamic(lstm, RULE, priors, "generic")
    with pytest.raises(ValueError, match="averaged over tensors only"):
        RunningStats().priors(lstm, "weights")


def test_on_the_command_line(command, checkpoints, shifted, tmp_path):
    line = ["evaluate", checkpoints["bytes"], shifted, "--limit", 900, "--json"]
    found = json_of(command(*line, "--stats", "running"))
    assert found["run"]["statistics"]["all-weights"]["corpus"] == "running"
    assert found["run"]["engines"]["dynamic"].startswith("reference")
    assert found["dynamic"]["nats"] < found["static"]["nats"]
