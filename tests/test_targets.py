"""Targets: each adapts what it says, as the paper's loop does, alone and many streams at once."""

import copy
import gc
import weakref

import checks
import oracle
import pytest
import torch
from checks import scores
from conftest import tiny
from oracle import weights_of
from test_predictors import RULES, TABLE_1, Bigram, close
from torch import nn

from dyneval import targets
from dyneval.batched import Batched
from dyneval.collection import collect
from dyneval.corpora import Corpus
from dyneval.engines import Rows
from dyneval.evaluation import evaluate
from dyneval.gradient_stats import GradientStats
from dyneval.models import fingerprint
from dyneval.predictors import Collector, Dynamic, Static
from dyneval.rules import Rms, RmsDecay, Sgd
from dyneval.streams import PAD, parallel
from dyneval.targets import (
    AllWeights,
    HiddenMatrix,
    LastLayers,
    LowRank,
    Matching,
    NoEmbedding,
    NormsAndBiases,
    parse,
)
from dyneval.vocabularies import Vocabulary

TARGETS = [
    HiddenMatrix(3),
    HiddenMatrix(2, layer=0, first=1),
    LowRank(2),
    LowRank(1, "layers*hh", seed=3),
    Matching("*bias*"),
    NormsAndBiases(),
    LastLayers(1),
    NoEmbedding(),
    AllWeights(),
]


def stats_of(model, make_stats):
    """Return made-up statistics of a target's module, as `make_stats` does of a model."""
    found = make_stats(model, fingerprint(model))
    about = vars(found.collection) | {"target": targets.target_of(model)}
    return GradientStats(found.rms, type(found.collection)(**about))


def whole(model, target, own):
    """Return how the oracle makes all weights of a model of those that adapt, and its names."""
    base = weights_of(model)
    if isinstance(target, HiddenMatrix):
        layers = sum(name.endswith("weight_hh") for name in base)
        layer = layers - 1 if target.layer is None else target.layer
        units = base[f"layers.{layer}.weight_hh"].shape[0] // 4

        def mixed(theta):
            end = units - target.first - target.units
            place = (target.first, end) * 2
            matrix = nn.functional.pad(theta["matrix"], place)
            return base | {f"layers.{layer}.hidden_matrix": matrix}

        return mixed
    if isinstance(target, LowRank):
        fixed = {
            name.removeprefix("changes.").removesuffix(".v"): v
            for name, v in own.named_buffers()
            if name.startswith("changes.")
        }
        return lambda theta: (
            base | {name: base[name] + theta[f"changes.{name}.u"] @ v for name, v in fixed.items()}
        )
    return lambda theta: base | theta


@pytest.mark.parametrize("target", TARGETS, ids=str)
@pytest.mark.parametrize("name", TABLE_1)
def test_every_rule_agrees_with_the_paper(model, make_stats, streams, name, target):
    """For one stream and four of unequal length, by each engine, in scores and weights."""
    segment_length, rule, update = TABLE_1[name]
    streams = streams[:, : 15 * segment_length + 1]
    own = target.of(model)
    stats = stats_of(own, make_stats)
    squares = {name: rms**2 for name, rms in stats.rms.items()}
    combine = whole(model, target, own)
    for engine in ("auto", "generic", "reference"):
        together = Dynamic(own, rule, stats.priors(own), engine)
        nats = scores(together, streams, segment_length)
        for row, stream in enumerate(streams[:3] if engine == "auto" else streams[1:3], 1):
            row -= engine == "auto"
            text = stream[stream != PAD].tolist()
            if len(text) < 2:
                continue
            expected = oracle.read(
                weights_of(own), text, segment_length, update, squares, whole=combine
            )
            close(nats[row, : len(text) - 1], expected.nats)
            for weight, theta in together.weights(row).items():
                close(theta, expected.weights[weight])
    alone = scores(Dynamic(own, rule, stats.priors(own)), streams[:1], segment_length)
    close(alone[0], scores(Dynamic(own, rule, stats.priors(own)), streams, segment_length)[0])


@pytest.mark.parametrize("target", TARGETS, ids=str)
@pytest.mark.parametrize("rule", [RULES[2], RULES[-1]], ids=str)
def test_predictors_keep_to_the_protocol(make_stats, target, rule):
    """Among other things, probabilities add up to one."""
    model = tiny("small", 3)
    if target == TARGETS[1] or "hh" in str(target):  # of layers that a model of one has not
        target = HiddenMatrix(2, layer=0, first=1)
    own = target.of(model)
    priors = stats_of(own, make_stats).priors(own)
    for engine in ("auto", "generic"):
        checks.check_predictor(lambda engine=engine: Dynamic(own, rule, priors, engine))


@pytest.mark.parametrize("target", TARGETS, ids=str)
def test_what_does_not_move_is_static(model, make_stats, streams, target):
    own = target.of(model)
    priors = stats_of(own, make_stats).priors(own)
    dynamic = Dynamic(own, Rms(0, 0.1) + RmsDecay(0), priors)
    close(scores(dynamic, streams), scores(Static(model), streams))
    close(scores(Static(own), streams), scores(Static(model), streams))


@pytest.mark.parametrize("target", TARGETS, ids=str)
def test_statistics_of_a_target_are_those_of_the_paper(model, text, target):
    own = target.of(model)
    collector = Collector(own)
    for _ in evaluate(collector, parallel(text[60:], 3), 5):
        pass
    found = collector.stats()
    assert (found.collection.target, found.collection.model) == (str(target), fingerprint(model))
    combine = whole(model, target, own)
    theta = {name: value.requires_grad_() for name, value in weights_of(own).items()}
    rows, squares, count = parallel(text[60:], 3).tolist(), {}, 0
    states = [None] * 3
    for start in range(0, len(rows[0]) - 1, 5):
        losses = []
        for row, stream in enumerate(rows):
            for t in range(start, min(start + 5, len(stream) - 1)):
                p, _, states[row] = oracle.step(combine(theta), stream[t], states[row])
                losses.append(-p[stream[t + 1]])
        gradients = oracle.gradient_of(sum(losses) / len(losses), theta)
        squares = {name: squares.get(name, 0) + g**2 for name, g in gradients.items()}
        states = [[(h.detach(), c.detach()) for h, c in state] for state in states]
        count += 1
    for name, rms in found.rms.items():
        close(rms, (squares[name] / count).sqrt())


def test_no_gain_of_a_low_rank_change_runs_away(model, text):
    """Were U and V to adapt, one would have no statistics: its gain would be η/ε everywhere."""
    own, rule = LowRank(2).of(model), Rms(1e-3, 1e-9)
    collector = Collector(own)
    for _ in evaluate(collector, parallel(text, 3), 5):
        pass
    highest = rule.learning_rate / rule.epsilon
    for prior in collector.stats().priors(own).values():
        assert (rule.gain(prior) < 0.1 * highest).float().mean() > 0.5


def test_a_step_on_a_low_rank_change_is_one_on_the_matrix_in_the_mean():
    model = tiny("lstm", 7)
    steps = []
    for seed in range(300):
        v = dict(LowRank(2, "output*", seed).of(model).named_buffers())["changes.output.weight.v"]
        steps.append(v.T @ v)
    mean = torch.stack(steps).mean(0)
    torch.testing.assert_close(mean, torch.eye(len(mean), dtype=mean.dtype), atol=0.3, rtol=0)


@pytest.mark.parametrize("target", [t for t in TARGETS if t != AllWeights()], ids=str)
def test_what_stays_is_shared_however_many_streams(model, make_stats, streams, target):
    own = target.of(model)
    dynamic = Dynamic(own, RULES[-1], stats_of(own, make_stats).priors(own))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    scores(dynamic, streams[:3, :11])
    places = {weight.data_ptr() for weight in model.parameters()}
    module = dynamic._streams._module
    held = [buffer for name, buffer in module.named_buffers() if not name.endswith(".v")]
    assert held
    assert all(buffer.data_ptr() in places for buffer in held)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_streams_are_batched_where_that_pays(make_stats, streams):
    model = tiny("lstm")

    def kind(target, engine="auto", count=3):
        own = target.of(model)
        dynamic = Dynamic(own, Sgd(0.1), stats_of(own, make_stats).priors(own), engine)
        scores(dynamic, streams[:count, :5])
        return type(dynamic._streams), dynamic.engine.partition(":")[0]

    assert kind(AllWeights()) == (Rows, "fused")  # each is as fast as memory allows
    assert kind(AllWeights(), "generic") == (Batched, "generic")
    assert kind(AllWeights(), "generic", 1) == (Rows, "generic")
    assert kind(Matching("*bias*")) == (Batched, "generic")
    for target in (HiddenMatrix(3), LowRank(1)):
        assert kind(target, count=1) == kind(target) == (Batched, "batched")
        assert kind(target, "reference") == (Rows, "reference")


def test_nothing_of_a_segment_stays(lstm, make_stats, streams, monkeypatch):
    """What the gradients are made of is not held by the graph that it came of."""
    held = []
    collected = Batched._collected

    def spy(self, gradients):
        tensors = (t for uses in self._uses.values() for _, *pair in uses for t in pair)
        held.extend(map(weakref.ref, tensors))
        return collected(self, gradients)

    monkeypatch.setattr(Batched, "_collected", spy)
    own = HiddenMatrix(3).of(lstm)
    scores(Dynamic(own, Sgd(0.1), stats_of(own, make_stats).priors(own)), streams[:2, :20])
    gc.collect()
    assert held
    assert not any(reference() is not None for reference in held)


class Recurrent(nn.Module):
    """torch's own LSTM, which vmap can only read row by row."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(3, 4)
        self.cells = nn.LSTM(4, 4, batch_first=True)
        self.output = nn.Linear(4, 3)

    def hidden(self, tokens, state=None):
        if state is not None:
            state = tuple(part.transpose(0, 1).contiguous() for part in state)
        h, state = self.cells(self.embedding(tokens), state)
        return h, tuple(part.transpose(0, 1) for part in state)

    def logits(self, h):
        return self.output(h)


class Across(nn.Module):
    """A model that puts time before the streams on its way."""

    def __init__(self):
        super().__init__()
        self.embedding, self.map = nn.Embedding(3, 4), nn.Linear(4, 3)

    def hidden(self, tokens, state=None):
        return torch.tanh(self.embedding(tokens.T)).transpose(0, 1), state

    def logits(self, h):
        return self.map(h.transpose(0, 1)).transpose(0, 1)


@pytest.mark.parametrize("target", [LowRank(1), Matching("*.weight*"), AllWeights()], ids=str)
@pytest.mark.parametrize("kind", [Recurrent, Across, Bigram])
def test_models_of_ones_own_may_be_read_in_any_way(make_stats, kind, target):
    torch.manual_seed(0)
    model = kind().double().eval()
    if kind is Bigram:
        target = AllWeights()
    own = target.of(model)
    priors = stats_of(own, make_stats).priors(own)
    checks.check_a_batch_is_its_rows_alone(lambda: Dynamic(own, RULES[-1], priors))
    checks.check_resume_is_exact(lambda: Dynamic(own, RULES[-1], priors))


def test_a_model_without_mix_has_no_hidden_matrix():
    with pytest.raises(ValueError, match=r"Recurrent\.hidden takes no `mix`.*low-rank:8"):
        HiddenMatrix(2).of(Recurrent())


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (HiddenMatrix(6), "reaches beyond the model: layer 0 has 5 units, layer 1 has 5 units"),
        (HiddenMatrix(2, layer=2), "reaches beyond"),
        (HiddenMatrix(3, first=3), "reaches beyond"),
        (LowRank(2, "*.bias"), "no matrix matches"),
        (Matching("softmax.*"), "no weight matches 'softmax.*'; there are embedding.weight"),
    ],
    ids=str,
)
def test_targets_that_a_model_has_not(lstm, target, message):
    with pytest.raises(ValueError, match=message.replace("*", r"\*")):
        target.of(lstm)


@pytest.mark.parametrize("target", TARGETS, ids=str)
def test_a_target_is_written_and_read(target):
    assert parse(str(target)) == target


@pytest.mark.parametrize(
    "text",
    ["", "all", "all-weights:3", "hidden-matrix", "hidden-matrix:", "hidden-matrix:x", "low-rank:0"]
    + ["hidden-matrix:2,width=3", "hidden-matrix:2,layer=-1", "matching", "low-rank:2,rank"],
)
def test_a_target_that_is_none(text):
    with pytest.raises(ValueError, match="give"):
        parse(text)


def test_statistics_belong_to_their_target(lstm, tmp_path):
    corpus = Corpus("text", Vocabulary("bytes"), {"train": bytes([1, 2, 3, 4] * 50)}, "train")
    found = collect(HiddenMatrix(3).of(lstm), corpus, 5, batch_size=4)
    with pytest.raises(ValueError, match="of the target hidden-matrix:3, not of all-weights"):
        found.priors(lstm)
    with pytest.raises(ValueError, match="collect its own with .* --target low-rank:2"):
        found.priors(LowRank(2).of(lstm))
    with pytest.raises(ValueError, match="belong to other weights"):
        found.priors(HiddenMatrix(3).of(tiny("lstm, tied")))
    assert found.priors(HiddenMatrix(3).of(lstm)).keys() == {"matrix"}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU that torch can use")
@pytest.mark.parametrize("target", TARGETS, ids=str)
def test_a_gpu_computes_the_same(model, make_stats, streams, target):
    found = []
    for device in ("cpu", "cuda"):
        own = target.of(copy.deepcopy(model).to(device))
        dynamic = Dynamic(own, RULES[-1], stats_of(own, make_stats).priors(own), "generic")
        found.append(scores(dynamic, streams[:, :31]).cpu())
    close(found[1], found[0])
