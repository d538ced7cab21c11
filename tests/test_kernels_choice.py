"""Which engine is chosen and why, what happens where none can run, and reading without learning."""

import subprocess
import sys
from dataclasses import dataclass, replace

import pytest
import torch
from conftest import MODELS, tiny
from kernel_checks import RULES, follow, priors
from torch import nn

from dyneval import kernels
from dyneval.engines import Reference
from dyneval.gradient_stats import without_statistics
from dyneval.reading import Reader
from dyneval.rules import Decay, Rms, RmsDecay, Sgd, Term

RULE = RULES[3]


@dataclass(frozen=True)
class Tilted(Sgd):
    """A term of one's own, which looks like a known one."""

    def gain(self, prior):
        return self.learning_rate * (prior.theta > 0)


@dataclass(frozen=True)
class Mine(Term):
    rate: float

    def pull(self, prior):
        return self.rate


def chosen(model, rule=RULE, start=None, engine="auto"):
    make, why = kernels.choose_one(model, rule, start or priors(model), engine)
    return type(make()).__name__, why


def test_the_projects_own_models_have_the_segment_engine(model):
    name, why = chosen(model)
    assert name == "Segment"
    assert why == f"fused: hand-written for {type(model).__name__}"


def test_any_other_module_has_the_generic_route(lstm):
    assert chosen(lstm, engine="generic")[0] == "Generic"
    lstm.more = nn.Parameter(torch.zeros(2, dtype=torch.double))
    name, why = chosen(lstm)
    assert name == "Generic"
    assert why == "generic: LSTM has no kernels of its own; autograd with fused updates"
    assert chosen(lstm, engine="fused")[0] == "Generic"


@pytest.mark.parametrize(
    "rule",
    [
        Tilted(0.1),
        Sgd(0.1) + Mine(0.1),
        Rms(0.1, 0.1) + Rms(0.1, 0.2),
        Rms(0.1) + RmsDecay(1) + RmsDecay(2),
    ],
    ids=str,
)
def test_what_the_kernels_have_no_code_for_is_left_to_the_reference(rule, lstm):
    name, why = chosen(lstm, rule)
    assert name == "Reference"
    assert why == f"reference: the kernels have no code for {rule}"
    with pytest.raises(ValueError, match="no code for"):
        chosen(lstm, rule, engine="fused")


def test_terms_of_a_kind_add_up(lstm, text):
    rule = Sgd(0.1) + Sgd(0.2) + Decay(0.1) + Decay(0.05) + Rms(0.01, 0.1) + Rms(0.02, 0.1)
    start = priors(lstm)
    make, why = kernels.choose_one(lstm, rule, start)
    assert why.startswith("fused")
    found, expected = (
        follow(make(), text, [5] * 4),
        follow(Reference(lstm, rule, start), text, [5] * 4),
    )
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("engine", ["auto", "fused", "reference"])
def test_missing_statistics_are_asked_for_at_once(lstm, engine):
    with pytest.raises(ValueError, match="dyneval gradient-stats"):
        chosen(lstm, RULE, without_statistics(lstm), engine)


def test_weights_that_do_not_fit_are_left_to_the_reference(lstm):
    start = priors(lstm)
    assert "not all float32 or all float64" in chosen(tiny("lstm").half())[1]
    name = "output.weight"
    turned = start[name].rms.t().contiguous().t()
    assert (
        "not contiguous" in chosen(lstm, start=start | {name: replace(start[name], rms=turned)})[1]
    )
    single = replace(start[name], rms=start[name].rms.float())
    assert "precision or shape" in chosen(lstm, start=start | {name: single})[1]
    elsewhere = {
        name: replace(prior, theta=prior.theta.to("meta")) for name, prior in start.items()
    }
    assert "is on meta, not on the CPU" in kernels.choose_one(lstm, RULE, elsewhere)[1]


def test_the_reference_can_be_asked_for(lstm):
    assert chosen(lstm, engine="reference") == ("Reference", "reference: asked for")
    with pytest.raises(ValueError, match="give one of auto, fused, generic, reference"):
        kernels.choose_one(lstm, RULE, priors(lstm), "fast")


PROGRAM = """
import warnings
import torch
from dyneval import kernels
from dyneval.gradient_stats import without_statistics
from dyneval.models import LSTM
from dyneval.rules import Sgd

{before}
model = LSTM(5, embedding_size=3, units=3)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for _ in range(2):
        make, why = kernels.choose_one(model, Sgd(0.1), without_statistics(model))
        make()
        forward, how = kernels.fast_forward(model)
print(why)
print(how)
print(len(caught), *{{warning.category.__name__ for warning in caught}})
"""


@pytest.mark.parametrize(
    ("before", "reason"),
    [
        ("import sys; sys.modules['numba'] = None", "import of numba halted"),
        (
            # as where no folder that numba would try can be written
            "import os; os.environ.update(NUMBA_CACHE_DIR=os.devnull, "
            "NUMBA_CACHE_LOCATOR_CLASSES='UserProvidedCacheLocator')",
            "cannot cache function",
        ),
        ("import numba; numba.config.DISABLE_JIT = 1", "NUMBA_DISABLE_JIT"),
    ],
)
def test_without_numba_or_its_cache_the_reference_runs_with_one_warning(before, reason):
    program = PROGRAM.format(before=before)
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    why, how, warned = run.stdout.splitlines()
    assert why.startswith("reference: numba cannot be used")
    assert how.startswith("reference: numba cannot be used")
    assert reason in why
    assert warned == "1 RuntimeWarning"


def test_what_processes_compile_can_be_linked_together():
    """Numbers in the names of functions begin anew in each process; two of one name are one."""
    ask = "from dyneval.kernels.network import collect; print(collect.py_func.__qualname__)"
    names = {
        subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True).stdout
        for _ in range(2)
    }
    assert len(names) == 2
    assert all(name.startswith("collect_") for name in names)


def test_a_damaged_cache_is_done_without(tmp_path, monkeypatch):
    import ctypes

    import numba
    import numpy as np

    from dyneval.kernels.compiling import PLACE, Kernel

    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))

    def double(place):
        place[0] *= 2

    for _ in range(2):
        number = ctypes.c_double(3.0)
        Kernel(double, (PLACE,)).compiled(np.float64).ctypes(ctypes.pointer(number))
        assert number.value == 6
        (index,) = tmp_path.rglob("*.nbi")
        index.write_bytes(index.read_bytes()[:50])


@pytest.mark.parametrize("name", MODELS)
def test_reading_only_is_the_models_own(name, text):
    model = tiny(name)
    forward, how = kernels.fast_forward(model)
    assert how == f"fused: hand-written for {type(model).__name__}"
    streams = text[:60].view(2, 30)
    for stream in (streams[:1], streams):
        found, expected = Reader(forward), Reader(model)
        for tokens in stream.split(7, 1):
            ours, theirs = found.read(tokens), expected.read(tokens).detach()
            torch.testing.assert_close(ours.log_probs, theirs.log_probs, rtol=1e-12, atol=1e-13)
            torch.testing.assert_close(ours.hidden, theirs.hidden, rtol=1e-12, atol=1e-13)


def test_reading_follows_the_weights_of_the_model(lstm, text):
    forward, _ = kernels.fast_forward(lstm)
    with torch.no_grad():
        lstm.output.weight.mul_(2)
    h, state = forward.hidden(text[None, :5])
    expected, after = lstm.hidden(text[None, :5])
    torch.testing.assert_close(h, expected.detach())
    torch.testing.assert_close(forward.logits(h[:, 1:3]), lstm.logits(expected[:, 1:3]).detach())
    torch.testing.assert_close(state, tuple((h.detach(), c.detach()) for h, c in after))


@pytest.mark.parametrize("engine", ["fused", "generic"])
@pytest.mark.parametrize("name", MODELS)
def test_reading_only_is_not_learning_to_the_bit(name, engine, text):
    model = tiny(name)
    if engine == "generic":
        model.more = nn.Parameter(torch.zeros(2, dtype=torch.double))
    forward, how = kernels.fast_forward(model)
    assert how.startswith(engine)
    still, reader = kernels.choose_one(model, Sgd(0.0), priors(model))[0](), Reader(forward)
    for start in range(0, 60, 7):
        tokens, targets = text[None, start : start + 7], text[None, start + 1 : start + 8]
        ours, theirs = still.predict(tokens), reader.read(tokens)
        assert torch.equal(ours.log_probs, theirs.log_probs)
        assert torch.equal(ours.hidden, theirs.hidden)
        assert not theirs.log_probs.requires_grad
        still.learn(targets)


def test_a_model_that_does_not_fit_reads_for_itself():
    model = nn.Linear(3, 3).half()
    forward, how = kernels.fast_forward(model)
    assert forward is model
    assert how.startswith("reference: the weights are torch.float16")


def test_compiling_is_announced(monkeypatch, caplog):
    from dyneval.kernels import compiling

    monkeypatch.setattr(compiling, "_PATIENCE", 0.0)
    with compiling.announced():
        for _ in range(1000):
            if caplog.messages:
                break
            torch.zeros(10000).sort()
    assert caplog.messages == ["compiling the fused kernels; later runs find them in numba's cache"]
