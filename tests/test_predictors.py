import copy
import math
import pickle
from dataclasses import dataclass

import checks
import oracle
import pytest
import torch
from checks import scores
from oracle import weights_of
from torch import nn
from torch.nn import functional as F

from dyneval.evaluation import evaluate
from dyneval.gradient_stats import GradientStats
from dyneval.models import ARCHITECTURES
from dyneval.predictors import Collector, Dynamic, Static
from dyneval.reading import Categorical
from dyneval.rules import Decay, Rms, RmsDecay, Sgd
from dyneval.streams import PAD, parallel, segments

TABLE_1 = {
    "traditional": (1, Sgd(0.1), oracle.sgd(0.1)),
    "sgd": (3, Sgd(0.3), oracle.sgd(0.3)),
    "sgd+decay": (3, Sgd(0.3) + Decay(0.02), oracle.sgd_decay(0.3, 0.02)),
    "rms+decay": (3, Rms(0.01, 0.05) + Decay(0.02), oracle.rms_decay(0.01, 0.02, 0.05)),
    "rms+rms-decay": (3, Rms(0.01, 0.05) + RmsDecay(0.3), oracle.rms_rms_decay(0.01, 0.3, 0.05)),
}
RULES = [rule for _, rule, _ in TABLE_1.values()]


def close(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-13, equal_nan=True)


def test_static_scores_are_those_of_the_trained_weights(model, streams):
    nats = scores(Static(model), streams)
    for row, stream in enumerate(streams[:3]):
        text = stream[stream != PAD].tolist()
        close(nats[row, : len(text) - 1], oracle.read(weights_of(model), text, 3).nats)


@pytest.mark.parametrize("name", TABLE_1)
def test_every_rule_agrees_with_the_paper(model, make_stats, streams, name):
    """Over 50 segments, in the scores and in the weights at the end, for one stream and four."""
    segment_length, rule, update = TABLE_1[name]
    streams = streams[:, : 50 * segment_length + 1]
    stats = make_stats(model)
    squares = {name: rms**2 for name, rms in stats.rms.items()}
    together = Dynamic(model, rule, stats.priors(model))
    nats = scores(together, streams, segment_length)
    for row, stream in enumerate(streams):
        text = stream[stream != PAD].tolist()
        if len(text) == 1:
            assert nats[row].isnan().all()
            continue
        expected = oracle.read(weights_of(model), text, segment_length, update, squares)
        close(nats[row, : len(text) - 1], expected.nats)
        assert nats[row, len(text) - 1 :].isnan().all()
        for name, weight in together.weights(row).items():
            close(weight, expected.weights[name])
        if not row:
            alone = scores(Dynamic(model, rule, stats.priors(model)), stream[None], segment_length)
            close(alone[0], expected.nats)
            static = scores(Static(model), stream[None], segment_length)
            assert (static - alone).abs().mean() > 0.05  # it did learn


@pytest.mark.parametrize("average", ["tensors", "weights"])
def test_the_paper_from_statistics_to_scores(model, text, average):
    collector = Collector(model)
    for _ in evaluate(collector, parallel(text[60:], 2), 5):
        pass
    squares, _ = oracle.mean_squares(weights_of(model), text[60:].tolist(), 2, 5)
    expected = oracle.read(
        weights_of(model),
        text[:46].tolist(),
        3,
        oracle.rms_rms_decay(0.01, 0.5, 0.02),
        squares,
        getattr(oracle, f"average_over_{average}"),
    )
    priors = collector.stats().priors(model, average)
    clipped = [(0.5 * prior.rms_norm > 1).float().mean().item() for prior in priors.values()]
    assert 0 < sum(clipped) < len(clipped)
    dynamic = Dynamic(model, Rms(0.01, 0.02) + RmsDecay(0.5), priors)
    close(scores(dynamic, text[None, :46])[0], expected.nats)
    for name, weight in dynamic.weights().items():
        close(weight, expected.weights[name])


def test_sgd_agrees_with_torch_optim(model, streams):
    found = scores(Dynamic(model, Sgd(0.3)), streams)
    for row, stream in enumerate(streams[:3]):
        stream = stream[stream != PAD][None]
        own = copy.deepcopy(model)
        optimiser = torch.optim.SGD(own.parameters(), lr=0.3)
        state, expected = None, []
        for inputs, targets in segments(stream, 3):
            h, state = own.hidden(inputs, state)
            nats = F.cross_entropy(own.logits(h)[0], targets[0], reduction="none")
            optimiser.zero_grad()
            nats.mean().backward()
            optimiser.step()
            state = [(h.detach(), c.detach()) for h, c in state]
            expected.append(nats.detach())
        close(found[row, : stream.shape[1] - 1], torch.cat(expected))


@pytest.mark.parametrize(
    "rule",
    [Sgd(0), Sgd(0) + Decay(0), Rms(0, 0.1) + Decay(0), Rms(0, 0.1) + RmsDecay(0)],
    ids=str,
)
def test_a_rule_that_does_not_move_is_exactly_static(model, make_stats, text, streams, rule):
    text, streams = text[:16], streams[:, :16]
    priors = make_stats(model).priors(model)
    dynamic = Dynamic(model, rule, priors)
    assert torch.equal(scores(dynamic, text[None]), scores(Static(model), text[None]))
    for name, weight in weights_of(model).items():
        assert torch.equal(dynamic.weights()[name], weight)
    close(scores(Dynamic(model, rule, priors), streams), scores(Static(model), streams))


def predictors(model, stats):
    """Return ways to make each predictor, by name."""
    every = {"static": lambda: Static(model), "collector": lambda: Collector(model)}
    priors = stats.priors(model)
    for row, (_, rule, _) in TABLE_1.items():
        every[row] = lambda rule=rule: Dynamic(model, rule, priors)
    return every


@pytest.mark.parametrize("name", ["static", "collector", *TABLE_1])
def test_predictors_keep_to_the_protocol(small, make_stats, name):
    checks.check_predictor(predictors(small, make_stats(small))[name])


@pytest.mark.parametrize("name", ["static", "collector", "sgd", "rms+rms-decay"])
def test_the_model_is_never_written_to(model, make_stats, streams, name):
    model.train()  # what a caller may be in the middle of
    before = {key: value.clone() for key, value in model.state_dict().items()}
    versions = [weight._version for weight in model.parameters()]
    flags = [weight.requires_grad for weight in model.parameters()]
    predictor = predictors(model, make_stats(model))[name]()
    scores(predictor, streams[:3, :11])
    stored = predictor.state_dict()
    predictor.reset(torch.tensor([1]))
    predictor.load_state_dict(stored)
    predictor.reset()
    scores(predictor, streams[:3, :11])
    assert all(module.training for module in model.modules())
    assert [weight._version for weight in model.parameters()] == versions
    assert [weight.requires_grad for weight in model.parameters()] == flags
    assert all(weight.grad is None for weight in model.parameters())
    for key, value in model.state_dict().items():
        assert torch.equal(value, before[key])


def test_dropout_is_off_while_learning(text, make_stats):
    torch.manual_seed(0)
    settings = {"embedding_size": 4, "units": 4, "layers": 2, "dropout": 0.5}
    model = ARCHITECTURES["lstm"](7, **settings).double().train()
    priors = make_stats(model).priors(model)
    first, second = (scores(Dynamic(model, RULES[-1], priors), text[None]) for _ in range(2))
    assert torch.equal(first, second)


def test_finished_streams_stay_as_they_are(lstm, make_stats, streams):
    dynamic = Dynamic(lstm, RULES[-1], make_stats(lstm).priors(lstm))
    ends, snapshots = {1: 40, 2: 15, 3: 0}, {}
    for k, _ in enumerate(evaluate(dynamic, streams, 3), 1):
        state = dynamic.state_dict()
        for row, end in ends.items():
            mine = {key: v for key, v in state.items() if key.startswith(f"streams.{row}.")}
            if 3 * k >= end:
                snapshots.setdefault(row, mine)
                assert mine.keys() == snapshots[row].keys()
                assert all(torch.equal(mine[key], snapshots[row][key]) for key in mine)
    assert dynamic.position.tolist() == [150, 40, 15, 0]
    for name, weight in weights_of(lstm).items():
        assert torch.equal(dynamic.weights(3)[name], weight)


def test_a_row_without_a_target_reads_on_and_learns_nothing(lstm, make_stats, text):
    priors = make_stats(lstm).priors(lstm)
    dynamic, other = (Dynamic(lstm, RULES[-1], priors) for _ in range(2))
    scores(dynamic, text[:13].expand(2, -1))
    before = {name: weight.clone() for name, weight in dynamic.weights(1).items()}
    inputs, targets = text[12:15].expand(2, -1), text[13:16].repeat(2, 1)
    targets[1] = PAD
    nats = dynamic.predict(inputs).nats(targets)
    dynamic.learn(targets)
    assert nats[1].isnan().all()
    assert dynamic.position.tolist() == [15, 12]
    moved = dynamic.weights(0)
    for name, weight in dynamic.weights(1).items():
        assert torch.equal(weight, before[name])
        assert not torch.equal(moved[name], before[name])
    state = dynamic.state_dict()  # the weights of the segment were still the same, so was what h is
    close(state["streams.1.state.0.0"], state["streams.0.state.0.0"])
    other.load_state_dict(state)  # and the segment is closed: nothing of it is learned later
    further = text[15:22].expand(2, -1)
    assert torch.equal(scores(dynamic, further), scores(other, further))


def test_a_reset_is_of_weights_or_state_or_both(model, make_stats, text):
    priors = make_stats(model).priors(model)
    _, rule, update = TABLE_1["sgd+decay"]
    first, second = text[:31], text[50:81]

    def after_first():
        dynamic = Dynamic(model, rule, priors)
        scores(dynamic, first[None])
        return dynamic

    going_on = after_first()
    going_on.reset(weights=False, state=False)
    assert torch.equal(scores(going_on, second[None]), scores(after_first(), second[None]))
    assert going_on.position.tolist() == [60]

    both = after_first()
    both.reset()
    expected = oracle.read(weights_of(model), second.tolist(), 3, update)
    close(scores(both, second[None])[0], expected.nats)
    assert both.position.tolist() == [30]

    # another text begins, read with what was learned
    state = after_first()
    learned = oracle.read(weights_of(model), first.tolist(), 3, update).weights
    state.reset(weights=False)
    close(scores(state, second[None, :4])[0], oracle.read(learned, second[:4].tolist(), 3).nats)

    # the text goes on, read with the trained weights
    forgets, expected = after_first(), after_first()
    forgets.reset(state=False)
    stored = expected.state_dict()
    for name, weight in weights_of(model).items():
        stored[f"streams.0.weights.{name}"] = weight
    expected.load_state_dict(stored)
    assert torch.equal(scores(forgets, second[None]), scores(expected, second[None]))
    assert forgets.position.tolist() == [60]


@pytest.mark.parametrize("name", ["static", "collector", "rms+rms-decay"])
def test_a_state_of_fewer_streams_may_be_loaded(lstm, make_stats, streams, name):
    make = predictors(lstm, make_stats(lstm))[name]
    one, three = make(), make()
    scores(one, streams[:1, :20])
    scores(three, streams[:3, :20])
    three.load_state_dict(one.state_dict())
    found, expected = (scores(each, streams[:1, 19:40]) for each in (three, one))
    assert torch.equal(found, expected)


@pytest.mark.parametrize("engine", ["fused", "generic", "reference"])
@pytest.mark.parametrize("how", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_predictor_is_not_copied_but_by_its_state(how, engine, lstm):
    """A copy would share memory that learning writes to, or read with weights that do not move."""
    for predictor in (Dynamic(lstm, Sgd(0.1), engine=engine), Static(lstm, engine)):
        with pytest.raises(TypeError, match="make another and load this one's state_dict"):
            how(predictor)


def test_a_model_without_weights_is_read_but_cannot_learn(text):
    class Uniform(torch.nn.Module):
        def hidden(self, tokens, state=None):
            return torch.zeros(*tokens.shape, 2), None

        def logits(self, h):
            return torch.zeros(*h.shape[:-1], 7)

    static = Static(Uniform())
    assert static.engine == "reference: the model has no weights"
    assert scores(static, text[None], 3).mean().item() == pytest.approx(math.log(7))
    with pytest.raises(ValueError, match="Uniform has no weights that could learn; use Static"):
        Dynamic(Uniform(), Sgd(0.1))


def test_a_predictor_needs_a_prior_for_each_weight(lstm, make_stats):
    stats = make_stats(lstm)
    priors = stats.priors(lstm)
    del priors["output.bias"]
    with pytest.raises(ValueError, match=r"no prior for the weight output\.bias"):
        Dynamic(lstm, Sgd(0.1), priors)
    rms = {name: value for name, value in stats.rms.items() if name != "output.bias"}
    with pytest.raises(ValueError, match=r"output\.bias"):
        GradientStats(rms, stats.collection).priors(lstm)
    with pytest.raises(ValueError, match="dyneval gradient-stats"):
        Dynamic(lstm, Rms(0.1))


class Bigram(nn.Module):
    """A model of one's own: two methods, no state."""

    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.zeros(3, 3, dtype=torch.double))

    def hidden(self, tokens, state=None):
        return self.table[tokens], state

    def logits(self, h):
        return h


@pytest.mark.parametrize("rule", [RULES[1], RULES[-1]], ids=str)
def test_any_module_can_learn(make_stats, rule):
    model = Bigram()
    priors = make_stats(model).priors(model)
    checks.check_predictor(lambda: Dynamic(model, rule, priors))
    stream = torch.tensor([0, 1, 2] * 20)[None]
    nats = scores(Dynamic(model, rule, priors), stream)[0]
    assert nats[0].item() == pytest.approx(torch.tensor(3.0).log().item())
    assert nats[-3:].mean() < nats[:3].mean() - 0.05


class LearnsFirst(Dynamic):
    """Learn from the tokens of a segment, then predict them."""

    def predict(self, tokens):
        if tokens.shape[1] > 1:
            super().predict(tokens[:, :-1])
            super().learn(tokens[:, 1:])
        return super().predict(tokens)


class ScoresLate(Dynamic):
    """Answer with the weights there are when it is asked: after `learn` they know the answer."""

    def predict(self, tokens):
        return Late(self, super().predict(tokens).hidden)


@dataclass
class Late:
    predictor: Dynamic
    hidden: torch.Tensor

    def nats(self, targets):
        logits = [
            F.linear(h, theta["output.weight"], theta["output.bias"])
            for h, theta in zip(self.hidden, map(self.predictor.weights, range(99)), strict=False)
        ]
        return Categorical(torch.stack(logits).log_softmax(-1), self.hidden).nats(targets)


class Shares(Dynamic):
    """Let every stream learn what the first one did."""

    def learn(self, targets):
        super().learn(targets)
        for row in range(1, len(targets)):
            for name, theta in self.weights(row).items():
                theta.copy_(self.weights(0)[name])


@pytest.mark.parametrize(
    ("planted", "check"),
    [
        (LearnsFirst, checks.check_scores_are_a_probability),
        (ScoresLate, checks.check_scores_are_a_probability),
        (ScoresLate, checks.check_predictions_stand),
        (Shares, checks.check_a_batch_is_its_rows_alone),
    ],
)
@pytest.mark.parametrize("rule", [RULES[1], RULES[-1]], ids=str)
def test_a_planted_predictor_fails(small, make_stats, planted, check, rule):
    priors = make_stats(small).priors(small)
    with pytest.raises(AssertionError):
        check(lambda: planted(small, rule, priors))
