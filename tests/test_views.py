import math

import numpy as np
import pytest
from written import bits, result_of

from dyneval import significance, spelling, views

TEXT = "the cat saw the dog.\nthe cat saw the sun; the cat saw the moon.\n"


def pieces_of(result, gains=None):
    gains = views.gains(result, "static", "dynamic") if gains is None else gains
    found = spelling.cells(result.scored.tokens, result.vocabulary)
    return views.Pieces(found, gains, result.run["vocabulary"]["kind"])


def test_the_two_that_a_report_is_about():
    one = np.ones(3)
    assert views.pair(result_of(b"abc", nats={"static": one})) is None
    assert views.pair(result_of(b"abc", nats={"static": one[:0], "dynamic": one})) is None
    assert views.pair(result_of(b"abc", nats={"a": one, "b": one})) == ("a", "b")
    three = {"static": one, "dynamic": one, "cache": one}
    assert views.pair(result_of(b"abc", nats=three)) == ("static", "dynamic")


def test_a_gain_is_the_bits_that_were_saved():
    result = result_of(TEXT.encode())
    expected = bits(result, "static") - bits(result, "dynamic")
    assert views.gains(result, "static", "dynamic") == pytest.approx(expected)


def test_sums_so_far():
    result = result_of(TEXT.encode())
    found = views.cumulative(result, points=7)["dynamic"]
    assert (found["tokens"][0], found["tokens"][-1]) == (1, len(TEXT))
    for place, total, mean in zip(found["tokens"], found["bits"], found["mean"], strict=True):
        assert total == pytest.approx(bits(result, "dynamic")[:place].sum())
        assert mean == pytest.approx(total / place)


def test_sums_so_far_of_nothing():
    found = views.cumulative(result_of(b"abc", nats={"static": np.ones(3), "dynamic": []}))
    assert found["dynamic"] == {"tokens": [], "bits": [], "mean": []}


def test_sums_of_one_that_stopped_are_at_the_tokens_of_the_others():
    result = result_of(TEXT.encode(), nats={"static": np.ones(len(TEXT)), "dynamic": np.ones(30)})
    found = views.cumulative(result, points=7)
    stopped = found["dynamic"]["tokens"]
    assert 1 < len(stopped) < 7
    assert stopped == found["static"]["tokens"][: len(stopped)]
    assert stopped[-1] <= 30


def test_stretches_of_a_text_have_the_interval_of_a_comparison():
    result = result_of((TEXT * 5).encode())
    rows = views.by_position(result, "static", "dynamic")
    assert [row["from"] for row in rows] == [1, *(row["to"] + 1 for row in rows[:-1])]
    assert rows[-1]["to"] == 5 * len(TEXT)
    before, after = (result.scores[name].nats for name in ("static", "dynamic"))
    for row in rows:
        span = slice(row["from"] - 1, row["to"])
        expected = significance.compare(before[span], after[span]).nats
        found = [row[name] * math.log(2) for name in ("gain", "low", "high")]
        assert found == pytest.approx(list(expected))


def test_a_stretch_of_one_token_has_no_interval():
    result = result_of(b"a", nats={"static": [2.0], "dynamic": [1.0]})
    (row,) = views.by_position(result, "static", "dynamic")
    assert row == {
        "from": 1,
        "to": 1,
        "gain": pytest.approx(1 / math.log(2)),
        "low": None,
        "high": None,
    }
    nothing = result_of(b"a", nats={"static": [2.0], "dynamic": []})
    assert views.by_position(nothing, "static", "dynamic") == []


@pytest.mark.parametrize("kind", ["bytes", "characters", "words"])
def test_pieces_hold_all_that_was_gained(kind):
    result = result_of(TEXT.encode() if kind == "bytes" else TEXT, kind)
    found = pieces_of(result)
    assert "".join(found.texts) == TEXT
    assert found.bits.sum() == pytest.approx(views.gains(result, "static", "dynamic").sum())


def test_words_with_what_they_gained_at_first_and_later():
    """By hand: of `cat`, one bit at first, then 2 and 4."""
    gains = np.zeros(len(TEXT))
    places = [k for k in range(len(TEXT)) if TEXT.startswith("cat", k)]
    gains[places[0]], gains[places[1] + 2], gains[places[2] + 1] = 1, 2, 4
    gains[TEXT.index("dog")] = -3
    words = pieces_of(result_of(TEXT.encode()), gains).words()
    assert words[0] == views.Recurring("cat", 3, 7.0, 1.0, 3.0)
    assert words[-1] == views.Recurring("dog", 1, -3.0, -3.0, None)
    assert {word.text for word in words} == set(TEXT.replace(".", "").replace(";", "").split())


def test_words_of_a_vocabulary_of_words_stay_whole():
    text = "the <unk> isn't 3.5\n"
    found = {word.text for word in pieces_of(result_of(text, "words")).words()}
    assert found == {"the", "<unk>", "isn't", "3.5"}


def test_patterns_are_the_longest_that_recur_and_count_nothing_twice():
    text = b"a {{cite web|url=x}} b {{cite web|url=y}} c {{cite web|url=z}} d cite web e"
    gains = np.zeros(len(text))
    for place in (k for k in range(len(text)) if text.startswith(b"{{cite web|url=", k)):
        gains[place : place + 15] = 1
    patterns = pieces_of(result_of(text), gains).patterns()
    assert patterns[0] == views.Recurring("{{cite web|url=", 3, 45.0, 15.0, 15.0)
    assert sum(pattern.gain for pattern in patterns) <= gains.sum()


@pytest.mark.parametrize("text", [b"a", b" \n ", b"", b"ab cd"])
def test_there_may_be_no_word_and_no_pattern(text):
    result = result_of(text)
    found = pieces_of(result)
    assert found.patterns() == []
    assert len(found.words()) == len(text.split())


def test_what_was_not_scored_gained_nothing():
    result = result_of(b"one two", nats={"static": np.ones(7), "dynamic": np.zeros(3)})
    words = {word.text: word.gain for word in pieces_of(result).words()}
    assert words == {"one": pytest.approx(3 / math.log(2)), "two": 0}
