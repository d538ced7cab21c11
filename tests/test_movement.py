import math

import pytest
import torch
from conftest import MODELS, tiny

from dyneval.evaluation import evaluate
from dyneval.gradient_stats import without_statistics
from dyneval.movement import moved
from dyneval.neural_cache import NeuralCache
from dyneval.predictors import Dynamic, Static
from dyneval.rules import Sgd


def read(predictor, text):
    for _ in evaluate(predictor, text[None], 5):
        pass
    return predictor


@pytest.mark.parametrize("name", MODELS)
def test_how_far_each_weight_moved(name, text):
    """By numpy, from the weights themselves."""
    model = tiny(name)
    predictor = read(Dynamic(model, Sgd(0.05)), text % model.settings.get("vocabulary_size", 3))
    found = moved(predictor)
    assert set(found) == {name for name, _ in model.named_parameters()}
    for name, theta in predictor.weights().items():
        prior = dict(model.named_parameters())[name].detach().numpy()
        distance = math.sqrt(((theta.numpy() - prior) ** 2).sum())
        row = found[name]
        assert row["shape"] == list(prior.shape)
        assert row["rms"] == pytest.approx(distance / math.sqrt(prior.size))
        assert row["relative"] == pytest.approx(distance / math.sqrt((prior**2).sum()))
        assert distance > 0


def test_before_anything_is_read_nothing_has_moved(lstm):
    assert {row["rms"] for row in moved(Dynamic(lstm, Sgd(0.1))).values()} == {0.0}


def test_a_cache_moves_as_what_is_inside_it(lstm, text):
    alone = read(Dynamic(lstm, Sgd(0.05)), text)
    assert moved(read(NeuralCache(Dynamic(lstm, Sgd(0.05))), text)) == moved(alone)


def test_what_does_not_adapt_does_not_move(lstm, text):
    assert moved(read(Static(lstm), text)) == {}
    assert moved(read(NeuralCache(Static(lstm)), text)) == {}


def test_what_is_no_number_is_none(lstm, text):
    with torch.no_grad():
        weight = next(iter(lstm.parameters()))
        weight.zero_()
    priors = without_statistics(lstm)
    found = moved(read(Dynamic(lstm, Sgd(0.05), priors), text))
    first = next(iter(found.values()))
    assert first["relative"] is None
    assert first["rms"] > 0
    found = moved(read(Dynamic(lstm, Sgd(1e300)), text[:7]))
    assert None in {row["rms"] for row in found.values()}
