"""Engines for a GPU: on the CPU as far as they run there, and on a GPU where there is one."""

import copy
import importlib.util
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import MODELS, tiny
from kernel_checks import RULES, difference, follow, priors
from test_kernels_generic import CASES, make
from test_run import run_of
from torch import nn

from dyneval import corpora, kernels, models
from dyneval.collection import collect
from dyneval.engines import Reference
from dyneval.kernels import cuda
from dyneval.kernels.cuda import Foreach
from dyneval.neural_cache import NeuralCache
from dyneval.predictors import Dynamic, Static
from dyneval.rules import Sgd

HERE = Path(__file__).parent
LENGTHS = [5, 1, 3, 2, 9] * 3
needs_gpu = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="there is no GPU that torch can use"
)


def on_gpu(test):
    return pytest.mark.gpu(needs_gpu(test))


@pytest.mark.skipif(not importlib.util.find_spec("triton"), reason="Triton is not installed")
def test_the_kernel_by_tritons_interpreter():
    """In a process of its own, which is told to interpret before Triton is imported."""
    options = ("-q", "-p", "no:cacheprovider", "-p", "no:xdist")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, HERE / "interpreted.py"],
        env=os.environ | {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""},
        cwd=HERE.parent,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout


def agree(found, expected, start, text, precision=1e-9):
    for ours, theirs in zip(
        follow(found, text, LENGTHS), follow(expected, text, LENGTHS), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=precision, atol=precision)
    assert difference(found, expected, start) < precision


@pytest.mark.parametrize("rule", [RULES[0], RULES[3]], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_torchs_operations_move_any_model_as_the_reference_does(name, rule, text):
    model = make(name)
    if name.startswith("padded"):
        model.embedding.sparse = False
    start = priors(model)
    agree(Foreach(model, rule, start), Reference(model, rule, start), start, text)


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_torchs_operations_know_every_rule(rule, text):
    model = make("odd uses")
    start = priors(model)
    agree(Foreach(model, rule, start), Reference(model, rule, start), start, text)


def test_triton_that_cannot_run_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "dyneval.kernels.triton_updates", None)
    cuda.without_triton.cache_clear()
    why = cuda.without_triton(torch.device("cpu"))
    cuda.without_triton.cache_clear()
    assert why.startswith("Triton cannot be used (import of dyneval.kernels.triton_updates halted")


# On a GPU


def on_both(model):
    """Return a model and its priors on the CPU, and a copy and its priors on the GPU."""
    there = copy.deepcopy(model).cuda()
    return model, priors(model), there, priors(there)


def cpu(tensors):
    return {name: tensor.cpu() for name, tensor in tensors.items()}


@on_gpu
@pytest.mark.filterwarnings("ignore:RNN module weights")  # torch's GRU would have them side by side
@pytest.mark.parametrize("kind", ["auto", "torch", "reference"])
@pytest.mark.parametrize("name", [*MODELS, *CASES])
def test_a_gpu_computes_the_references_numbers(name, kind, text, monkeypatch):
    model = tiny(name) if name in MODELS else make(name)
    if name.startswith("padded"):
        model.embedding.sparse = False
    here, start, there, start_there = on_both(model)
    if kind == "torch":
        monkeypatch.setattr(cuda, "without_triton", lambda device: "Triton is left out")
    engine = "auto" if kind == "torch" else kind
    for rule in RULES:
        found, why = kernels.choose_one(there, rule, start_there, engine)
        assert why == {
            "auto": "generic: on cuda, autograd with Triton updates",
            "torch": "generic: on cuda, autograd with torch's updates; Triton is left out",
            "reference": "reference: asked for",
        }.get(kind)
        agree(found(), Reference(here, rule, start), start, text)


@on_gpu
def test_weights_or_priors_on_several_devices_are_left_to_the_reference(lstm):
    _, start, there, start_there = on_both(lstm)
    name = "output.weight"
    mixed = start_there | {name: start[name]}
    assert kernels.choose_one(there, RULES[3], mixed)[1] == (
        f"reference: {name} is on cpu, not on cuda:0 as other weights"
    )
    there.output.cpu()
    why = kernels.choose_one(there, RULES[3], priors(there))[1]
    assert "output.weight is on cpu, not on cuda:0" in why
    assert "output.weight is on cpu, not on cuda:0" in kernels.fast_forward(there)[1]


@on_gpu
def test_a_priors_precision_or_shape_is_seen_on_a_gpu_too(lstm):
    *_, there, start = on_both(lstm)
    name = "output.weight"
    single = replace(start[name], rms=start[name].rms.float())
    assert "precision or shape" in kernels.choose_one(there, RULES[3], start | {name: single})[1]


@on_gpu
@pytest.mark.parametrize("name", MODELS)
def test_reading_only_is_not_learning_to_the_bit(name, text):
    model = tiny(name).float().cuda()
    still = kernels.choose_one(model, Sgd(0.0), priors(model))[0]()
    static = Static(model)
    assert static.engine == "generic: on cuda, torch's own products"
    for start in range(0, 60, 7):
        tokens, targets = text[None, start : start + 7], text[None, start + 1 : start + 8]
        assert torch.equal(still.predict(tokens).log_probs, static.predict(tokens).log_probs)
        still.learn(targets)
        static.learn(targets)


@on_gpu
@pytest.mark.parametrize("name", MODELS)
def test_the_same_bits_twice(name, text):
    model = tiny(name).float().cuda()
    start = priors(model)
    engines = [kernels.choose_one(model, RULES[3], start)[0]() for _ in range(2)]
    nats = [torch.cat(follow(engine, text, LENGTHS)) for engine in engines]
    assert torch.equal(*nats)
    first, second = (engine.weights() for engine in engines)
    assert all(torch.equal(first[name], second[name]) for name in first)


@on_gpu
@pytest.mark.parametrize("name", MODELS)
def test_segments_that_look_alike_are_played(name, text, caplog):
    """Some others in between, resets, a stored state, token by token, and more than is learned."""
    here, start, there, start_there = on_both(tiny(name))
    expected, found = Reference(here, RULES[3], start), cuda.Triton(there, RULES[3], start_there)
    lengths = [5] * 6 + [2] + [5] * 2 + [1, 3, 3, 3, 3, 5]
    for round_ in range(3):
        for ours, theirs in zip(
            follow(found, text, lengths), follow(expected, text, lengths), strict=True
        ):
            torch.testing.assert_close(ours.cpu(), theirs, rtol=1e-9, atol=1e-9)
        for engine in (found, expected):
            engine.predict(text[None, :5])
            engine.predict(text[None, 5:6])
            engine.learn(text[None, 1:5])
            engine.predict(text[None, :5])
            engine.reset(weights=round_ == 0, state=True)
            engine.load_state_dict(cpu(engine.state_dict()))
    assert found._recorder._recorded is not None
    assert not caplog.records


class Deciding(nn.Module):
    """A model that looks at its numbers, which cannot be recorded."""

    def __init__(self):
        super().__init__()
        self.embedding, self.output = nn.Embedding(7, 4), nn.Linear(4, 7)

    def hidden(self, tokens, state=None):
        h = self.embedding(tokens)
        return (h if h.sum().item() > 0 else -h), None

    def logits(self, h):
        return self.output(h)


@on_gpu
def test_what_cannot_be_recorded_is_read_as_ever(text, caplog):
    here, start, there, start_there = on_both(Deciding().double())
    expected, found = Reference(here, RULES[3], start), cuda.Triton(there, RULES[3], start_there)
    for ours, theirs in zip(
        follow(found, text, [5] * 8), follow(expected, text, [5] * 8), strict=True
    ):
        torch.testing.assert_close(ours.cpu(), theirs, rtol=1e-9, atol=1e-9)
    assert [record.levelname for record in caplog.records] == ["WARNING"]


class Wide(nn.Module):
    """One large matrix in the middle, and a table as large."""

    def __init__(self, width=2048):
        super().__init__()
        self.embedding, self.map = nn.Embedding(2048, width), nn.Linear(width, width)
        self.output = nn.Linear(width, 7)

    def hidden(self, tokens, state=None):
        return torch.tanh(self.map(self.embedding(tokens))), None

    def logits(self, h):
        return self.output(h)


@on_gpu
@pytest.mark.parametrize("rule", RULES, ids=str)
def test_no_gradient_of_a_matrix_takes_memory(rule, text):
    torch.manual_seed(1)
    model = Wide().cuda()
    engine = kernels.choose_one(model, rule, priors(model))[0]()
    follow(engine, text, [5])
    tokens, targets = text[None, 5:10], text[None, 6:11]
    engine.predict(tokens)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    engine.learn(targets)
    size = model.map.weight.numel() * model.map.weight.element_size()
    assert torch.cuda.max_memory_allocated() - before < size / 8


@on_gpu
def test_predictors_on_a_gpu_are_those_of_the_cpu(lstm, streams):
    """Rows of unequal length, a cache, and a state that was stored on the CPU."""
    here, start, there, start_there = on_both(lstm)
    found = NeuralCache(Dynamic(there, RULES[3], start_there), 20)
    expected = NeuralCache(Dynamic(here, RULES[3], start), 20)

    def read(first, last):
        inputs, targets = streams[:, first:last], streams[:, first + 1 : last + 1]
        inputs = inputs.masked_fill(targets < 0, -1)
        ours, theirs = (each.predict(inputs).nats(targets) for each in (found, expected))
        torch.testing.assert_close(ours.cpu(), theirs, rtol=1e-9, atol=1e-9, equal_nan=True)
        for each in (found, expected):
            each.learn(targets)

    read(0, 7)
    read(7, 14)
    stored = cpu(found.state_dict())
    found = NeuralCache(Dynamic(there, RULES[3], start_there), 20)
    found.load_state_dict(stored)
    read(14, 21)
    static, still = Static(there), Static(here)
    for each in (static, still):
        each.predict(streams[:1, :5])
        each.learn(streams[:1, 1:6])
    static.load_state_dict(cpu(static.state_dict()))
    ours, theirs = (each.predict(streams[:1, 5:9]) for each in (static, still))
    torch.testing.assert_close(ours.log_probs.cpu(), theirs.log_probs)


@on_gpu
def test_a_run_on_a_gpu(checkpoints, shifted, tmp_path):
    expected = run_of(checkpoints, shifted, device="cpu").execute()
    run = run_of(checkpoints, shifted)
    found = run.execute(folder=tmp_path / "kept")
    assert found.run["device"].startswith("cuda")
    assert found.run["engines"]["dynamic"] == "generic: on cuda, autograd with Triton updates"
    for name, score in expected.scores.items():
        np.testing.assert_allclose(found.scores[name].nats, score.nats, rtol=1e-3, atol=1e-3)
    again = run.execute(folder=tmp_path / "kept", resume=True)
    assert np.array_equal(again.scores["dynamic"].nats, found.scores["dynamic"].nats)


@on_gpu
def test_statistics_that_are_collected_on_a_gpu(checkpoints, texts):
    checkpoint = models.load(checkpoints["words"])
    corpus = corpora.load(str(texts["train"]), checkpoint.vocabulary)
    every = [
        collect(checkpoint.model.to(device), corpus, 5, split="all", batch_size=4, batches=3)
        for device in ("cpu", "cuda")
    ]
    expected, found = every
    assert found.collection == expected.collection
    for name, rms in expected.rms.items():
        torch.testing.assert_close(found.rms[name], rms, rtol=1e-4, atol=1e-6)
    for average in ("tensors", "weights"):
        prior = found.priors(checkpoint.model, average)["output.bias"]
        assert prior.theta.is_cuda
        assert prior.scale.is_cuda


@on_gpu
def test_how_fast_it_is(capsys):
    """Printed, for whoever looks; how fast it must be depends on the machine."""
    torch.manual_seed(1)
    model = models.LSTM(10_000, embedding_size=650, units=650).cuda()
    start = priors(model)
    text = torch.randint(10_000, (2000,))
    speeds = {}
    for name in ("reference", "generic"):
        engine = kernels.choose_one(model, RULES[3], start, name)[0]()
        follow(engine, text, [5] * 20)
        torch.cuda.synchronize()
        began = time.perf_counter()
        follow(engine, text, [5] * 100)
        torch.cuda.synchronize()
        speeds[name] = 500 / (time.perf_counter() - began)
    with capsys.disabled():
        ratio = speeds["generic"] / speeds["reference"]
        print(f" {speeds['generic']:,.0f} tokens/s, {ratio:.2f} times the reference")
