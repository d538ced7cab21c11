import re

import pytest

from dyneval import settings, storage
from dyneval.neural_cache import NeuralCache
from dyneval.predictors import Dynamic, Static
from dyneval.settings import Settings, choose, default_length, table_1
from dyneval.vocabularies import EOS, Vocabulary

TUNED = {
    "dynamic": Settings(10, "rms+rms-decay", learning_rate=3e-4, decay_rate=1e-3),
    "sgd": Settings(10, "sgd", learning_rate=0.7),
    "cache": Settings(10, cache_size=2000, cache_weight=0.2, cache_scale=0.3),
}


def test_the_papers_segments():
    assert default_length(Vocabulary("words", (EOS,))) == 5
    assert default_length(Vocabulary("characters", ("a",))) == 20
    assert default_length(Vocabulary("bytes")) == 20


def test_the_rows_of_table_1():
    rows = table_1(5)
    assert {name: (row.segment_length, row.rule) for name, row in rows.items()} == {
        "sgd-n1": (1, "sgd"),
        "sgd": (5, "sgd"),
        "sgd+decay": (5, "sgd+decay"),
        "rms+decay": (5, "rms+decay"),
        "rms+rms-decay": (5, "rms+rms-decay"),
        "cache": (5, None),
        "dynamic+cache": (5, "rms+rms-decay"),
    }
    assert {name for name, row in rows.items() if row.needs_statistics} == {
        "rms+decay",
        "rms+rms-decay",
        "dynamic+cache",
    }
    assert rows["rms+rms-decay"] == Settings(
        5, "rms+rms-decay", learning_rate=5e-5, decay_rate=2e-3, epsilon=2e-5
    )  # the authors' defaults


@pytest.mark.parametrize("row", [Settings(5), *table_1(5).values(), *TUNED.values()], ids=str)
def test_settings_hold_what_matters_and_come_back(row):
    values = row.to_json()
    assert Settings(**values) == row
    assert ("learning_rate" in values) == (row.rule is not None)
    assert ("decay_rate" in values) == ("decay" in (row.rule or ""))
    assert ("epsilon" in values) == ("average" in values) == row.needs_statistics
    assert ("cache_weight" in values) == (row.cache_size > 0)


def test_settings_say_what_they_are():
    assert str(Settings(5)) == "n = 5"
    assert str(TUNED["sgd"]) == "Sgd(learning_rate=0.7), n = 10"
    assert str(TUNED["cache"]) == "cache of 2000, weight 0.2, scale 0.3, n = 10"


def test_settings_make_predictors(lstm, make_stats):
    stats = make_stats(lstm)
    assert isinstance(Settings(5).predictor(lstm), Static)
    assert isinstance(table_1(5)["sgd"].predictor(lstm), Dynamic)
    assert isinstance(table_1(5)["rms+decay"].predictor(lstm, stats), Dynamic)
    for name, base in (("cache", Static), ("dynamic+cache", Dynamic)):
        cache = table_1(5)[name].predictor(lstm, stats)
        assert isinstance(cache, NeuralCache)
        assert isinstance(cache.base, base)
        assert cache.size == 500
    with pytest.raises(ValueError, match="no gradient statistics were given"):
        table_1(5)["rms+decay"].predictor(lstm)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"segment_length": 0}, "segment of 0 tokens"),
        ({"segment_length": 1.5}, "segment of 1.5 tokens"),
        ({"rule": "adam"}, "no rule 'adam'"),
        ({"rule": "sgd", "learning_rate": -1}, "learning_rate -1"),
        ({"rule": "sgd+decay", "decay_rate": 1.5}, "overshoots"),
        ({"rule": "rms+decay", "epsilon": 0}, "epsilon 0"),
        ({"average": "median"}, "give tensors or weights"),
        ({"cache_size": -1}, "cache of size -1"),
        ({"cache_size": 5, "cache_weight": 1.0}, "weight 1.0"),
        ({"cache_size": 5, "cache_scale": float("nan")}, "scale nan"),
        ({"cache_size": 5, "cache_warm_up": "maybe"}, "give none or full_window"),
    ],
    ids=str,
)
def test_settings_that_make_no_sense(values, says):
    with pytest.raises(ValueError, match=re.escape(says)):
        Settings(**{"segment_length": 5} | values)


# What to compare


def test_without_a_word_static_and_the_final_rule_are_compared():
    assert choose({}, 20, {}, None) == {
        "static": Settings(20),
        "dynamic": table_1(20)["rms+rms-decay"],
    }


def test_files_are_read_as_they_stand():
    assert choose(TUNED, 5, {}, None) == {"static": Settings(5)} | TUNED
    assert list(choose(TUNED, 5, {}, None))[0] == "static"


def test_what_is_given_goes_on_top_of_the_file():
    found = choose(TUNED, 5, {"learning_rate": 0.1}, None)
    assert found == {
        "static": Settings(10),
        "dynamic": Settings(10, "rms+rms-decay", learning_rate=0.1, decay_rate=1e-3),
    }


def test_another_rule_has_its_own_row():
    assert choose(TUNED, 5, {"rule": "sgd"}, None)["dynamic"] == TUNED["sgd"]
    assert choose({}, 5, {"rule": "sgd+decay"}, None)["dynamic"] == table_1(5)["sgd+decay"]
    found = choose(TUNED, 5, {"rule": "sgd", "learning_rate": 0.2, "segment_length": 3}, None)
    assert found == {"static": Settings(3), "dynamic": Settings(3, "sgd", learning_rate=0.2)}
    with pytest.raises(ValueError, match="no rule 'adam'"):
        choose(TUNED, 5, {"rule": "adam"}, None)


def test_a_cache_is_run_alone_and_with_the_rule():
    found = choose({}, 5, {}, {})
    assert list(found) == ["static", "dynamic", "cache", "dynamic+cache"]
    assert found["cache"] == Settings(5, cache_size=500)
    assert found["dynamic+cache"] == table_1(5)["dynamic+cache"]
    found = choose(TUNED, 5, {"rule": "sgd"}, {"cache_weight": 0.4})
    assert found["cache"] == Settings(10, cache_size=2000, cache_weight=0.4, cache_scale=0.3)
    assert found["dynamic+cache"] == Settings(
        10, "sgd", learning_rate=0.7, cache_size=500, cache_weight=0.4
    )
    with pytest.raises(ValueError, match="cache of size 0"):
        choose({}, 5, {}, {"cache_size": 0})


# Files


def test_a_file_is_read(tmp_path):
    path = tmp_path / settings.FILE
    rows = {name: row.to_json() for name, row in TUNED.items()}
    storage.write_json(path, {"settings": rows, "tuning": {"anything": 1}})
    assert settings.read(path) == settings.read(str(path)) == TUNED


@pytest.mark.parametrize("value", [5, [], {}, {"settings": []}, {"settings": {"a": {"rate": 1}}}])
def test_a_file_that_holds_no_settings_is_named(tmp_path, value):
    path = tmp_path / "a.json"
    storage.write_json(path, value)
    with pytest.raises(ValueError, match=re.escape(f"{path} is no settings file")):
        settings.read(path)
