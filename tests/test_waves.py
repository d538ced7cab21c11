import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dyneval import waves
from dyneval.evaluation import evaluate
from dyneval.neural_cache import NeuralCache
from dyneval.predictors import Dynamic, Static
from dyneval.reading import Categorical
from dyneval.rules import Decay, Sgd
from dyneval.waves import Waves

CARRIES = ("none", "weights", "weights+state")
LENGTHS = (8, 1, 30, 5, 2, 14, 1, 19, 7)  # of documents, 87 tokens in all
BOUNDS = np.cumsum([0, *LENGTHS])
MAKE = {
    "static": Static,
    "dynamic": lambda model: Dynamic(model, Sgd(0.3) + Decay(0.1)),
    "dynamic+cache": lambda model: NeuralCache(Dynamic(model, Sgd(0.3)), 10, 0.3),
}


@pytest.fixture(params=MAKE)
def make(request, lstm):
    """Make a fresh predictor."""
    return lambda: MAKE[request.param](lstm)


def plan_of(text, carry="none", streams=1):
    return Waves(text[: BOUNDS[-1]], BOUNDS, carry, streams)


def scores(plan, predictor, segment_length=3, wave=0, token=0):
    """The nats of each token, NaN where it is not scored."""
    nats = np.full(len(plan.tokens), np.nan)
    for part in plan.read(predictor, segment_length, wave, token):
        real = part.places >= 0
        assert np.isnan(nats[part.places[real]]).all()  # none is scored twice
        nats[part.places[real]] = part.nats[real]
    return nats


def row_of(predictor, tokens, segment_length=3):
    """The nats of a text's tokens; the first is not scored."""
    parts = list(evaluate(predictor, tokens[None], segment_length))
    return [math.nan, *torch.cat([torch.zeros(1, 0), *parts], 1)[0].tolist()]


def same(found, expected):
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


class Counting:
    """Reads, and knows which tokens it was given to read and to learn from."""

    def __init__(self):
        self.inputs, self.targets = [], []

    def predict(self, tokens):
        self.inputs.append(tokens)
        return Categorical(torch.full((*tokens.shape, 100), -1.0), torch.zeros(*tokens.shape, 1))

    def learn(self, targets):
        self.targets.append(targets)

    def reset(self, streams=None, *, weights=True, state=True):
        self.inputs.append(f"{weights}, {state}")


@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=8),
    st.sampled_from(CARRIES),
    st.integers(1, 10),
    st.integers(1, 12),
)
def test_every_token_is_scored_once_but_the_first_ones(lengths, carry, streams, segment_length):
    """In the order of its slot; where the state is carried, only a slot's first is left out."""
    bounds = np.cumsum([0, *lengths])
    counting = Counting()
    plan = Waves(torch.arange(bounds[-1]), bounds, carry, streams)
    scored = ~np.isnan(scores(plan, counting, segment_length))
    left = np.flatnonzero(~scored).tolist()
    slots = min(streams, len(lengths))
    assert left == bounds[: slots if carry == "weights+state" else -1].tolist()
    assert np.array_equal(scored, plan.predicted)
    given = [part for part in counting.inputs if isinstance(part, torch.Tensor)]
    for slot in range(slots):
        numbers = range(slot, len(lengths), slots)
        tokens = [k for number in numbers for k in range(bounds[number], bounds[number + 1])]
        targets = torch.cat([part[slot] for part in counting.targets] or [torch.zeros(0)])
        assert targets[targets >= 0].tolist() == [k for k in tokens if scored[k]]
        inputs = torch.cat([part[slot] for part in given] or [torch.zeros(0)])
        ends = bounds[[number + 1 for number in numbers]] - 1
        unread = ends[-1:] if carry == "weights+state" else ends
        assert inputs[inputs >= 0].tolist() == [k for k in tokens if k not in unread]
    resets = [part for part in counting.inputs if isinstance(part, str)]
    said = {"none": "True, True", "weights": "False, True"}.get(carry)
    assert resets == ([said] if said else []) * (-(-len(lengths) // slots) - 1)


@pytest.mark.parametrize("streams", [1, 2, 4, 9, 100])
def test_a_document_is_read_as_if_it_were_alone(make, text, streams):
    found = scores(plan_of(text, "none", streams), make())
    alone = [row_of(make(), text[start:end]) for start, end in pairwise(BOUNDS.tolist())]
    same(found, np.concatenate(alone))


@pytest.mark.parametrize("streams", [1, 2, 4, 9, 100])
def test_weights_go_on_to_the_next_document_of_a_slot(make, text, streams):
    """The state does not: a document's first token is read from the zero state."""
    found = scores(plan_of(text, "weights", streams), make())
    slots = min(streams, len(LENGTHS))
    for slot in range(slots):
        predictor = make()
        for number in range(slot, len(LENGTHS), slots):
            span = slice(*BOUNDS[number : number + 2])
            same(found[span], row_of(predictor, text[span]))
            predictor.reset(weights=False)


@pytest.mark.parametrize("streams", [1, 2, 3])
def test_with_its_state_a_slot_is_one_text(make, text, streams):
    """Cut into segments anew at each document; here both cuts fall on one place."""
    # a slot's first document has a token more, since that one is not scored
    lengths = [3 * k + (number < streams) for number, k in enumerate((4, 2, 1, 5, 3, 2, 1))]
    bounds = np.cumsum([0, *lengths])
    found = scores(Waves(text[: bounds[-1]], bounds, "weights+state", streams), make())
    for slot in range(streams):
        spans = [slice(*bounds[k : k + 2]) for k in range(slot, len(lengths), streams)]
        alone = row_of(make(), torch.cat([text[span] for span in spans]))
        same(np.concatenate([found[span] for span in spans]), alone)


def test_a_static_model_with_its_state_reads_the_text(lstm, text):
    found = scores(plan_of(text, "weights+state"), Static(lstm))
    same(found, row_of(Static(lstm), text[: BOUNDS[-1]]))


@pytest.mark.parametrize("carry", CARRIES)
@pytest.mark.parametrize("streams", [1, 2])
def test_scores_are_a_probability(small, carry, streams):
    """Over all texts, with a uniform guess where nothing was read, they add up to one."""
    bounds = np.array([0, 2, 3, 5])
    total = 0.0
    for text in torch.cartesian_prod(*[torch.arange(3)] * 5):
        plan = Waves(text, bounds, carry, streams)
        nats = scores(plan, Dynamic(small, Sgd(0.3)), 2)
        total += math.exp(-np.where(plan.predicted, nats, math.log(3)).sum())
    assert total == pytest.approx(1, abs=1e-9)


@pytest.mark.parametrize("carry", CARRIES)
@pytest.mark.parametrize("streams", [1, 4])
def test_reading_goes_on_where_any_part_ended(make, text, carry, streams):
    """To the same digits, also between two waves, in a predictor made anew."""
    plan = plan_of(text, carry, streams)
    whole = scores(plan, make())
    reading = make()
    nats = np.full(len(whole), np.nan)
    for part in plan.read(reading, 3):
        real = part.places >= 0
        nats[part.places[real]] = part.nats[real]
        again = make()
        again.load_state_dict(reading.state_dict())
        rest = scores(plan, again, 3, part.wave, part.token)
        assert np.array_equal(np.where(np.isnan(nats), rest, nats), whole, equal_nan=True)


def test_the_first_tokens_may_end_within_a_document(text):
    plan = plan_of(text, "weights", 2).prefix(12)
    assert plan.bounds.tolist() == [0, 8, 9, 12]
    assert torch.equal(plan.tokens, text[:12])
    assert (plan.carry, plan.streams) == ("weights", 2)
    assert plan_of(text).prefix(500).bounds.tolist() == BOUNDS.tolist()


@pytest.mark.parametrize("carry", CARRIES)
def test_nothing_is_read_of_no_text(lstm, carry):
    plan = Waves(torch.zeros(0, dtype=torch.long), np.array([0]), carry)
    assert plan.predicted.tolist() == []
    assert scores(plan, Static(lstm)).tolist() == []


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("lines", "state", 1), "carry='state' is not known; give one of none, weights, weights"),
        (("lines", "none", 0), "0 streams side by side read nothing"),
        (("pages", "none", 1), "cannot be cut into 'pages'"),
        ((None, "weights", 1), "carry='weights' is for documents, and the text is read as one"),
        ((None, "none", 2), "streams=2 is for documents"),
    ],
)
def test_ways_to_read_that_make_no_sense(arguments, says):
    with pytest.raises(ValueError, match=says.replace("+", r"\+")):
        waves.check(*arguments)
