import dataclasses
import json
import math

import numpy as np
import pytest
import torch

from dyneval import models, recipes
from dyneval.recipes import Recipe

LSTM = Recipe("lstm", {"units": 16}, "sgd", learning_rate=1.0, epochs=3)
AWD_LSTM = recipes.PAPER["ptb-awd-lstm"]
PUBLISHED = {  # vocabulary, weights
    "ptb-lstm": (10_000, 20e6),
    "ptb-awd-lstm": (10_000, 24e6),
    "wikitext2-lstm": (33_278, 50e6),
    "wikitext2-awd-lstm": (33_278, 33e6),
    "hutter-mlstm": (205, 46e6),
    "text8-mlstm": (27, 45e6),
}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("architecture", "gru"),
        ("optimizer", "adamw"),
        ("precision", "int8"),
        ("learning_rate", -1.0),
        ("learning_rate", math.nan),
        ("epochs", 0),
        ("batch_size", 0),
        ("sequence_length", 0),
        ("clip", 0.0),
        ("decay", 0.0),
        ("weight_decay", -1.0),
        ("activation", math.nan),
        ("nonmonotone", 0),
        ("fine_tune_epochs", -1),
    ],
)
def test_impossible_recipes(field, value):
    with pytest.raises(ValueError, match=f"{value}"):
        dataclasses.replace(LSTM, **{field: value})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"fine_tune_epochs": 1}, "give optimizer nt-asgd"),
        ({"activation": 1.0}, "'lstm' has no AR and TAR; give awd-lstm"),
        ({"temporal_activation": 1.0}, "'lstm' has no AR and TAR; give awd-lstm"),
        (
            {"fine_tune_epochs": 1, "optimizer": "nt-asgd", "weight_normalisation": True},
            "averages plain weights",
        ),
    ],
)
def test_recipes_that_do_not_fit_together(changes, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(LSTM, **changes)


def test_changed_recipes():
    recipe = recipes.changed(LSTM, epochs=7, units=20, seed=None)
    assert recipe == dataclasses.replace(LSTM, epochs=7, model=LSTM.model | {"units": 20})
    assert LSTM.epochs == 3


@pytest.mark.parametrize("name", recipes.PRESETS)
def test_presets_describe_models(name):
    recipe = recipes.find(name)
    with torch.device("meta"):
        model = models.ARCHITECTURES[recipe.architecture](256, **recipe.model)
    assert json.loads(json.dumps(dataclasses.asdict(recipe))) == dataclasses.asdict(recipe)
    assert set(recipe.model) <= set(model.settings)


@pytest.mark.parametrize("name", recipes.PAPER)
def test_the_paper_s_models_have_its_numbers_of_weights(name):
    symbols, weights = PUBLISHED[name]
    recipe = recipes.find(name)
    with torch.device("meta"):
        model = models.ARCHITECTURES[recipe.architecture](symbols, **recipe.model)
    assert sum(weight.numel() for weight in model.parameters()) == pytest.approx(weights, rel=0.02)


def test_a_preset_that_is_not_there():
    with pytest.raises(ValueError, match="no preset 'gpt'; give one of lstm-desk, "):
        recipes.find("gpt")


def test_equal_lengths():
    assert LSTM.lengths(105, 0) == [35, 35, 35]
    assert LSTM.lengths(106, 3) == [35, 35, 35, 1]


def test_random_lengths():
    """As the AWD-LSTM's authors draw them: 70 or, at times, 35, and noise; 5 at least."""
    drawn = [AWD_LSTM.lengths(46_000, epoch) for epoch in range(20)]
    assert all(sum(lengths) == 46_000 for lengths in drawn)
    assert AWD_LSTM.lengths(46_000, 7) == drawn[7] != drawn[8]
    assert dataclasses.replace(AWD_LSTM, seed=2).lengths(46_000, 7) != drawn[7]
    every = np.array([length for lengths in drawn for length in lengths[:-1]])
    halves = every < 52
    assert halves.mean() == pytest.approx(0.05, abs=0.01)
    # a length is cut to a whole number, so half a token is lost
    assert every[~halves].mean() == pytest.approx(69.5, abs=0.3)
    assert every[halves].mean() == pytest.approx(34.5, abs=1.0)
    assert every[~halves].std() == pytest.approx(5.0, abs=0.2)


def test_random_lengths_are_no_shorter_than_five():
    recipe = dataclasses.replace(AWD_LSTM, sequence_length=4)
    lengths = recipe.lengths(1001, 0)
    assert min(lengths[:-1]) == 5
    assert sum(lengths) == 1001
