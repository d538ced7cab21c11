"""The kernels' engines against the reference: segments of all kinds, resets, resumes, threads."""

import copy
from dataclasses import replace

import pytest
import torch
from conftest import MODELS, VOCABULARY, tiny
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_checks import RULES, difference, follow, priors

from dyneval.engines import Reference, Rows
from dyneval.evaluation import evaluate
from dyneval.kernels import linear, recurrent, threads
from dyneval.kernels.generic import Generic
from dyneval.kernels.segments import Segment
from dyneval.models import AWDLSTM, LSTM, MLSTM
from dyneval.predictors import Dynamic
from dyneval.rules import RmsDecay, Sgd

ENGINES = [Segment, Generic]
RULE = RULES[3]  # the paper's own
CLOSE = {"rtol": 1e-11, "atol": 1e-13}


@pytest.fixture(params=ENGINES, ids=lambda engine: engine.__name__)
def engine(request):
    return request.param


@pytest.fixture(params=[1, 2, 3])
def many_threads(request, monkeypatch):
    """Some threads, however small the work."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    monkeypatch.setattr(recurrent, "_WORTH", 1)
    monkeypatch.setattr(linear, "_WORTH", 1)
    yield request.param
    torch.set_num_threads(before)


def wide(kind=LSTM, **settings):
    """A model with more units than a thread gets at least, and room for whole vectors."""
    torch.manual_seed(5)
    model = kind(VOCABULARY, **{"embedding_size": 37, "units": 45, "layers": 2} | settings)
    return model.double().eval()


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_fifty_segments_are_the_references(name, rule, text, engine):
    model = tiny(name)
    start = priors(model)
    found, expected = engine(model, rule, start), Reference(model, rule, start)
    lengths = [5, 1, 3, 2, 4] * 10
    for ours, theirs in zip(
        follow(found, text, lengths), follow(expected, text, lengths), strict=True
    ):
        torch.testing.assert_close(ours, theirs, **CLOSE)
    assert difference(found, expected, start) < 1e-10


@pytest.mark.parametrize("kind", [LSTM, MLSTM])
@pytest.mark.parametrize("tied", [False, True])
def test_single_precision_is_as_exact_as_the_references(kind, tied, text, engine):
    sizes = {"embedding_size": 45} if tied else {}
    model = wide(kind, tied=tied, **sizes)
    exact = Reference(model, RULE, priors(model))
    single = copy.deepcopy(model).float()
    start = priors(single)
    found, plain = engine(single, RULE, start), Reference(single, RULE, start)
    for each in (exact, found, plain):
        follow(each, text, [5] * 30)
    assert difference(found, exact, start) <= 2 * difference(plain, exact, start) + 1e-6


@settings(deadline=None, max_examples=40)
@given(
    kind=st.sampled_from([LSTM, AWDLSTM, MLSTM]),
    tied=st.booleans(),
    sizes=st.tuples(*[st.integers(1, 40)] * 3),
    layers=st.integers(1, 3),
    rule=st.sampled_from(RULES),
    lengths=st.lists(st.integers(1, 23), min_size=1, max_size=6),
    seed=st.integers(0, 100),
)
def test_any_shape_is_right(kind, tied, sizes, layers, rule, lengths, seed):
    vocabulary, embedding, units = sizes
    if tied and kind is not AWDLSTM:
        units = embedding
    torch.manual_seed(seed)
    model = kind(vocabulary, embedding_size=embedding, units=units, layers=layers, tied=tied)
    model = model.double().eval()
    start = priors(model)
    text = torch.randint(vocabulary, (sum(lengths) + 1,))
    found, expected = Segment(model, rule, start), Reference(model, rule, start)
    torch.testing.assert_close(
        torch.cat(follow(found, text, lengths)),
        torch.cat(follow(expected, text, lengths)),
        rtol=1e-10,
        atol=1e-12,
    )
    assert difference(found, expected, start) < 1e-9


STEPS = st.one_of(
    st.tuples(st.just("predict"), st.integers(1, 4)),
    st.tuples(st.just("learn"), st.integers(0, 6)),
    st.tuples(st.just("reset"), st.sampled_from([(True, True), (True, False), (False, True)])),
    st.tuples(st.just("drop"), st.none()),
    st.tuples(st.just("resume"), st.booleans()),
    st.tuples(st.just("weights"), st.none()),
)


@pytest.mark.parametrize("name", ["lstm", "mlstm, tied"])
@settings(deadline=None, max_examples=30)
@given(steps=st.lists(STEPS, max_size=25), rule=st.sampled_from(RULES), kind=st.integers(0, 1))
def test_any_order_of_calls_is_right(name, steps, rule, kind):
    """Token by token or not, learning from all or some or none, resetting and resuming between."""
    model = tiny(name)
    start = priors(model)
    found, expected = ENGINES[kind](model, rule, start), Reference(model, rule, start)
    generator = torch.Generator().manual_seed(6)
    tokens = torch.randint(VOCABULARY, (1, 500), generator=generator)
    position = length = 0
    for action, argument in steps:
        if action == "predict":
            inputs = tokens[:, position : position + argument]
            ours, theirs = found.predict(inputs), expected.predict(inputs)
            torch.testing.assert_close(ours.log_probs, theirs.log_probs, **CLOSE)
            torch.testing.assert_close(ours.hidden, theirs.hidden, **CLOSE)
            position, length = position + argument, length + argument
        elif action == "weights":
            assert difference(found, expected, start) < 1e-9
        elif action == "learn" and length:
            count = min(argument, length)
            targets = tokens[:, position - length + 1 :][:, :count]
            found.learn(targets)
            expected.learn(targets)
            length = 0
        elif action in ("reset", "drop"):
            weights, state = argument or (False, False)
            found.reset(weights=weights, state=state)
            expected.reset(weights=weights, state=state)
            length = 0
        elif action == "resume" and not length:
            stored, theirs = found.state_dict(), expected.state_dict()
            assert stored.keys() == theirs.keys()
            for key, value in stored.items():
                torch.testing.assert_close(value, theirs[key], rtol=1e-9, atol=1e-12)
            if argument:  # from the other engine
                stored = theirs
            found = ENGINES[kind](model, rule, start)
            found.load_state_dict(stored)
    assert difference(found, expected, start) < 1e-9


@pytest.mark.parametrize("kind", [LSTM, MLSTM])
def test_threads_share_the_work(kind, text, engine, many_threads):
    model = wide(kind)
    start = priors(model)
    expected = Reference(model, RULE, start)
    follow(expected, text, [5] * 4)
    found = [engine(model, RULE, start) for _ in range(2)]
    for each in found:
        follow(each, text, [5] * 4)
        assert difference(each, expected, start) < 1e-10
    # and always in the same way
    assert difference(*found, start) == 0


def test_threads_of_our_own_serve_as_well(text, many_threads, monkeypatch):
    """Where torch is linked with an OpenMP library that we cannot start."""
    monkeypatch.setattr(threads, "_torch_threads", lambda count: None)
    model = wide()
    start = priors(model)
    found, expected = Segment(model, RULE, start), Reference(model, RULE, start)
    for each in (found, expected):
        follow(each, text, [5] * 2)
    assert difference(found, expected, start) < 1e-10


def test_the_number_of_threads_may_change_within_a_segment(text, monkeypatch):
    monkeypatch.setattr(recurrent, "_WORTH", 1)
    model = wide()
    start = priors(model)
    found, expected = Segment(model, RULE, start), Reference(model, RULE, start)
    before = torch.get_num_threads()
    for count in (1, 2, 1):
        torch.set_num_threads(count)
        for each in (found, expected):
            each.predict(text[None, :3])
    for each in (found, expected):
        each.learn(text[None, 1:10])
    torch.set_num_threads(before)
    assert difference(found, expected, start) < 1e-10


def test_token_by_token_is_a_segment_in_single_precision(text):
    model = wide().float()
    start = priors(model)
    whole, single = Segment(model, RULE, start), Segment(model, RULE, start)
    for begin in range(0, 60, 20):
        whole.predict(text[None, begin : begin + 20])
        for k in range(begin, begin + 20):
            single.predict(text[None, k : k + 1])
        for each in (whole, single):
            each.learn(text[None, begin + 1 : begin + 21])
    assert difference(single, whole, start) < 1e-4  # of a sum of changes that partly cancel


def test_token_by_token_gives_the_same_bits_every_time(text, engine, many_threads):
    model = wide().float()
    start = priors(model)
    log_probs, engines = [], [engine(model, RULE, start) for _ in range(2)]
    for each in engines:
        parts = []
        for begin in range(0, 60, 20):
            for k in range(begin, begin + 20):
                parts.append(each.predict(text[None, k : k + 1]).log_probs)
            each.learn(text[None, begin + 1 : begin + 21])
        log_probs.append(torch.cat(parts, 1))
    assert torch.equal(*log_probs)
    assert difference(*engines, start) == 0


@pytest.mark.parametrize("rule", [RULES[1], RULES[3], Sgd(0.1) + RmsDecay(3)], ids=str)
def test_rows_that_did_not_occur_catch_up_exactly(rule, lstm):
    """Their pulls are made up for in one go, from wherever they started."""
    start = priors(lstm)
    found, expected = Segment(lstm, rule, start), Reference(lstm, rule, start)
    moved = {name: value + 0.3 for name, value in expected.state_dict().items()}
    for each in (found, expected):
        each.load_state_dict(moved)
        for k in range(40):
            token = torch.tensor([[3 if k == 30 else 1]])  # 3 waits for 30 segments
            each.predict(token)
            each.learn(token)
    assert difference(found, expected, start) < 1e-12
    for each in (found, expected):
        each.predict(torch.tensor([[2, 3, 2]]))
        each.learn(torch.tensor([[2, 3, 2]]))
    assert difference(found, expected, start) < 1e-12


@pytest.mark.parametrize(("rule", "unread"), [(Sgd(0.3), "theta"), (RULES[1], "rms")], ids=str)
def test_what_a_rule_does_not_need_is_not_read(rule, unread, text, engine, lstm):
    start = priors(lstm)
    nothing = {
        name: replace(prior, **{unread: torch.full_like(prior.rms, torch.nan)})
        for name, prior in start.items()
    }
    found, expected = engine(lstm, rule, nothing), engine(lstm, rule, start)
    for each in (found, expected):
        follow(each, text, [5, 7])
    assert difference(found, expected, start) < 1e-13


@pytest.mark.parametrize("rule", RULES[1:4], ids=str)
def test_looking_at_the_weights_changes_nothing_to_the_bit(rule, text, engine, lstm):
    """Nor does resuming: rows catch up as if they had never been left behind."""
    start = priors(lstm)
    engines = [engine(lstm, rule, start) for _ in range(2)]
    for begin in range(0, 120, 3):
        segment = text[begin : begin + 4]
        first, second = (torch.cat(follow(each, segment, [3])) for each in engines)
        assert torch.equal(first, second)
        if begin % 4 == 0:
            engines[1].weights()
        if begin % 7 == 0:
            stored, engines[1] = engines[1].state_dict(), engine(lstm, rule, start)
            engines[1].load_state_dict(stored)
    assert difference(*engines, start) == 0


def test_the_model_and_its_priors_are_never_written_to(text, engine, lstm):
    start = priors(lstm)
    before = {name: (prior.theta.clone(), prior.rms.clone()) for name, prior in start.items()}
    found = engine(lstm, RULE, start)
    follow(found, text, [5] * 3)
    found.reset(weights=True, state=True)
    follow(found, text, [5] * 3)
    for name, theta in lstm.named_parameters():
        assert torch.equal(theta, before[name][0])
        assert torch.equal(start[name].rms, before[name][1])


def test_a_reset_engine_is_as_new_to_the_bit(text, engine, lstm):
    start = priors(lstm)
    found = engine(lstm, RULE, start)
    first = torch.cat(follow(found, text, [5] * 6))
    found.predict(text[None, :2])
    found.reset(weights=True, state=True)
    assert torch.equal(torch.cat(follow(found, text, [5] * 6)), first)


def test_a_stored_state_and_a_prediction_stand(text, engine, lstm):
    found = engine(lstm, RULE, priors(lstm))
    follow(found, text, [5])
    stored = found.state_dict()
    before = {name: value.clone() for name, value in stored.items()}
    prediction = found.predict(text[None, :4])
    log_probs, hidden = prediction.log_probs.clone(), prediction.hidden.clone()
    assert not prediction.log_probs.requires_grad
    found.learn(text[None, 1:5])
    follow(found, text, [5])
    assert all(torch.equal(stored[name], value) for name, value in before.items())
    assert torch.equal(prediction.log_probs, log_probs)
    assert torch.equal(prediction.hidden, hidden)


def test_a_token_that_the_model_does_not_know_is_refused(lstm):
    found = Segment(lstm, RULE, priors(lstm))
    for tokens in ([[0, VOCABULARY]], [[-1, 0]]):
        with pytest.raises(ValueError, match="the model knows 0 to 6"):
            found.predict(torch.tensor(tokens))


@pytest.mark.parametrize("name", MODELS)
def test_dynamic_scores_the_same_with_either(name, text, engine):
    """The engine within the predictor and the loop."""
    model = tiny(name)
    start = priors(model)
    found, expected = Dynamic(model, RULE, start), Dynamic(model, RULE, start)
    found._make = lambda count: Rows(lambda: engine(model, RULE, start), count)
    streams = text[:60].view(2, 30)
    for ours, theirs in zip(
        evaluate(found, streams, 4), evaluate(expected, streams, 4), strict=True
    ):
        torch.testing.assert_close(ours, theirs, **CLOSE)
