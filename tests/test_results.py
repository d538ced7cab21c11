import math
import re
from dataclasses import replace

import numpy as np
import pytest

from dyneval import results, significance, storage
from dyneval.results import ByDocument, Result, Score, Scored

RUN = {"model": "a", "corpus": "größe", "threads": 1}


def counts(*rows):
    """Tokens, words, characters and bytes, a row each."""
    return Scored(*(np.array(row, np.int32) for row in rows))


SCORED = counts([7, 8, 7, 9], [1, 0, 1, 0], [3, 1, 2, 4], [4, 1, 3, 5])


@pytest.fixture
def result():
    nats = np.array([1.5, 0.25, 2.0, 0.1 + 0.2])
    scores = {
        "static": Score(nats, 1.25),
        "rms+decay": Score(nats[:2], 0.5, "rms+decay diverged at token 3"),
    }
    return Result(RUN, SCORED, scores)


def test_totals_are_divided_once_by_what_was_scored():
    figures = Score(np.array([1.0, 2.0, 3.0, 4.0]), 2.0).figures(SCORED)
    assert figures == {
        "tokens": 4,
        "nats": 10.0,
        "bits_per_token": pytest.approx(2.5 / math.log(2)),
        "perplexity": pytest.approx(math.exp(2.5)),
        "bits_per_character": pytest.approx(1 / math.log(2)),
        "bits_per_byte": pytest.approx(10 / 13 / math.log(2)),
        "word_perplexity": pytest.approx(math.exp(5)),
        "byte_perplexity": pytest.approx(math.exp(10 / 13)),
        "words": 2,
        "characters": 10,
        "bytes": 13,
        "seconds": 2.0,
    }


def test_the_figures_of_a_part_count_that_part_only():
    figures = Score(np.array([1.0, 2.0]), 2.0, "it diverged").figures(SCORED)
    assert (figures["words"], figures["characters"], figures["bytes"]) == (1, 4, 5)
    assert figures["bits_per_byte"] == pytest.approx(3 / 5 / math.log(2))
    assert figures["diverged"] == "it diverged"


def test_sums_of_many_small_nats_are_exact():
    nats = np.full(100_000, 0.1)
    ones = np.ones(100_000, np.int32)
    assert Score(nats, 1.0).figures(Scored(ones, ones, ones, ones))["nats"] == math.fsum(nats)


def test_where_nothing_was_scored_there_is_no_figure():
    figures = Score(np.array([]), 0.0).figures(SCORED)
    assert (figures["tokens"], figures["nats"]) == (0, 0)
    for name in ("bits_per_token", "perplexity", "bits_per_byte", "word_perplexity"):
        assert figures[name] is None
    no_words = counts([7], [0], [1], [1])
    figures = Score(np.array([2.0]), 1.0).figures(no_words)
    assert figures["word_perplexity"] is None
    assert figures["perplexity"] == pytest.approx(math.exp(2))


def test_a_perplexity_beyond_all_numbers_is_none():
    figures = Score(np.array([1e4, 1e4, 1e4, 1e4]), 1.0).figures(SCORED)
    assert figures["perplexity"] is None
    assert figures["bits_per_token"] == pytest.approx(1e4 / math.log(2))


def test_a_result_is_saved_and_loaded(result, tmp_path):
    path = tmp_path / "below" / "result.json"
    result.save(path)
    assert sorted(file.name for file in path.parent.iterdir()) == ["result.json", "result.npz"]
    found = results.load(path)
    assert found.run == RUN
    for name, values in vars(SCORED).items():
        assert np.array_equal(getattr(found.scored, name), values)
    assert list(found.scores) == list(result.scores)
    for name, score in found.scores.items():
        expected = result.scores[name]
        assert np.array_equal(score.nats, expected.nats)
        assert score.nats.dtype == expected.nats.dtype
        assert (score.seconds, score.diverged) == (expected.seconds, expected.diverged)
    assert found.to_json() == result.to_json() == storage.read_json(path)
    result.save(path)  # over what is there
    assert results.load(str(path)).to_json() == result.to_json()


# Documents

# the last has no scored token
BY = ByDocument(np.array([1, 1, 2, 2], np.int32), np.array(["größe", "b", "c"]))


@pytest.fixture
def of_documents(result):
    return replace(result, run=RUN | {"vocabulary": {"kind": "words"}}, by_document=BY)


def test_each_document_has_a_row(of_documents):
    rows = of_documents.documents()
    assert [list(row.values()) for row in rows] == [
        [1, "größe", 2, 1.75, 1.75],
        [2, "b", 2, 2.0 + (0.1 + 0.2), None],  # where it diverged
        [3, "c", 0, 0.0, None],
    ]
    assert list(rows[0]) == ["document", "label", "tokens", "nats.static", "nats.rms+decay"]


def test_what_documents_gain():
    """By what part their perplexity, or their bits per byte, is lower."""
    scores = {
        "static": Score(np.array([2.0, 2.0, 3.0, 1.0]), 1.0),
        "dynamic": Score(np.array([1.0, 1.0, 3.5, 1.5]), 1.0),
        "half": Score(np.array([1.0, 1.0]), 1.0, "half diverged"),
    }
    for kind, first, second in (("words", 1 - np.exp(-1), 1 - np.exp(0.5)), ("bytes", 0.5, -0.25)):
        run = RUN | {"vocabulary": {"kind": kind}}
        found = Result(run, SCORED, scores, BY).to_json()
        assert "documents" not in found["static"]
        median = pytest.approx((first + second) / 2)
        assert found["dynamic"]["documents"] == {
            "count": 2,
            "median_gain": median,
            "share_with_gain": 0.5,
        }
        # of the one document that it has read whole
        assert found["half"]["documents"]["count"] == 1
        assert found["half"]["documents"]["median_gain"] == pytest.approx(first)


def test_documents_are_saved_and_loaded(of_documents, tmp_path, monkeypatch):
    """The JSON file lists them unless there are very many; the arrays always do."""
    path = tmp_path / "result.json"
    for most in (3, 2):
        monkeypatch.setattr(results, "MOST_ROWS", most)
        of_documents.save(path)
        loaded = results.load(path)
        assert loaded.documents() == of_documents.documents()
        assert loaded.to_json() == of_documents.to_json()
        written = storage.read_json(path)
        assert written.pop("documents", None) == (loaded.documents() if most == 3 else None)
        assert written == loaded.to_json()


def test_a_result_of_one_text_has_no_documents(result):
    assert result.documents() == []


@pytest.mark.parametrize("lengths", [[1] * 19, [1] * 20, [1] * 18 + [2]])
def test_documents_too_short_to_tell_a_gain_by_are_no_error(lengths):
    count = sum(lengths)
    numbers = np.repeat(np.arange(1, len(lengths) + 1), lengths)
    by = ByDocument(numbers, np.array([""] * len(lengths)))
    nats = np.random.default_rng(1).exponential((3.0, 2.5), (count, 2)).T
    scores = {name: Score(kept, 1.0) for name, kept in zip("ab", nats, strict=True)}
    run = RUN | {"vocabulary": {"kind": "words"}}
    found = Result(run, counts(*np.ones((4, count))), scores, by)
    assert list(found.gains) == ([] if lengths == [1] * 19 else ["b"])
    assert ("gain" in found.to_json()["b"]) == bool(found.gains)


# Gains


def long_result(vocabulary="words", **changes):
    """Two predictors of 400 tokens, each of two bytes and a half of a word."""
    nats = np.random.default_rng(1).exponential((3.0, 2.5), (400, 2)).T
    count, by = changes.pop("count", 400), changes.pop("by", None)
    scored = Scored(np.arange(count) % 50, *(np.full(count, k, np.int32) for k in (1, 2, 2)))
    scored.words[::2] = 0
    run = {"vocabulary": {"kind": vocabulary}, "checksum": "a", "split": "test"} | changes
    scores = {
        name: Score(values[:count], 1.0)
        for name, values in zip(("static", "dynamic"), nats, strict=True)
    }
    return Result(run | {"first_token": "unscored"}, scored, scores, by)


@pytest.mark.parametrize("kind", ["words", "bytes"])
def test_all_but_the_first_have_a_gain(kind, tmp_path):
    result = long_result(kind)
    nats = [score.nats for score in result.scores.values()]
    expected = significance.compare(*nats)
    found = result.to_json()
    assert "gain" not in found["static"]
    relative = expected.perplexity if kind == "words" else expected.bits
    figure = {"words": "perplexity", "bytes": "bits_per_byte"}[kind]
    assert found["dynamic"]["gain"] == {
        "over": "static",
        "figure": figure,
        "relative": relative.value,
        "low": relative.low,
        "high": relative.high,
        "nats_per_token": expected.nats.value,
        "nats_low": expected.nats.low,
        "nats_high": expected.nats.high,
        "standard_error": expected.standard_error,
        "p_value": expected.p_value,
        "significant": expected.significant,
        "level": 0.95,
        "block_length": expected.block_length,
        "documents": 1,
    }
    gained = 1 - found["dynamic"][figure] / found["static"][figure]
    assert found["dynamic"]["gain"]["relative"] == pytest.approx(gained)
    result.save(tmp_path / "result.json")
    loaded = results.load(tmp_path / "result.json")
    assert loaded.to_json() == found == storage.read_json(tmp_path / "result.json")


@pytest.mark.parametrize("figure", results.FIGURES)
def test_every_figure_can_be_compared(figure):
    """The relative gain is by what part the figure itself is lower."""
    result = long_result()
    found = results.compare(result, result, ("static", "dynamic"), figure=figure, block_length=7)
    static, dynamic = (result.to_json()[name][figure] for name in ("static", "dynamic"))
    assert found["figures"] == [static, dynamic]
    assert found["gain"]["relative"] == pytest.approx(1 - dynamic / static)
    assert found["gain"]["low"] < found["gain"]["relative"] < found["gain"]["high"]
    assert (found["gain"]["figure"], found["gain"]["block_length"]) == (figure, 7)


def of_chunks(size, **changes):
    """The two predictors, of documents of so many tokens."""
    numbers = np.arange(400) // size + 1
    labels = np.array([""] * numbers[-1])
    changes = {"documents": f"chunks:{size}"} | changes
    return long_result(by=ByDocument(numbers, labels), **changes)


def test_gains_are_those_of_documents():
    """Where there are 20 or more, whole ones are resampled."""
    result = of_chunks(10)
    static, dynamic = (score.nats for score in result.scores.values())
    expected = significance.compare(static, dynamic, documents=result.by_document.numbers)
    assert result.gains["dynamic"] == expected
    found = results.compare(result, of_chunks(10), ("static", "dynamic"))
    assert found["gain"] == result.to_json()["dynamic"]["gain"]
    assert (found["gain"]["documents"], found["gain"]["block_length"]) == (40, None)
    assert "carry" not in found


def test_a_comparison_says_that_what_is_carried_differs():
    """How many documents were read side by side matters where something is carried."""
    plain, eight = of_chunks(10), of_chunks(10, streams=8)
    assert "carry" not in results.compare(plain, eight, ("static", "static"))
    carried = of_chunks(10, carry="weights", streams=8)
    found = results.compare(plain, carried, ("static", "static"))
    assert found["carry"] == ["none", "weights (streams: 8)"]
    other = of_chunks(10, carry="weights", streams=2)
    assert "carry" in results.compare(carried, other, ("static", "static"))


def test_results_of_other_documents_cannot_be_compared():
    def refused(first, second):
        with pytest.raises(ValueError, match="the results differ in ") as caught:
            results.compare(first, second, ("static", "static"))
        return str(caught.value)

    chunks = of_chunks(10)
    assert "their documents: chunks:10, chunks:20; " in refused(chunks, of_chunks(20))
    assert "their documents: chunks:10, None; " in refused(chunks, long_result())
    carried = long_result(documents="chunks:10", carry="weights+state", streams=1, count=399)
    assert "their carry: none, weights+state (streams: 1); " in refused(chunks, carried)
    files = of_chunks(20, documents="chunks:10")  # as files of other lengths have
    assert "where their documents begin; " in refused(chunks, files)


def test_symbols_may_have_other_numbers():
    """But those that are one for one result, as all that are <unk>, are one for the other."""
    first, second = long_result(), long_result()
    second.scored.tokens[:] = 49 - second.scored.tokens
    assert results.compare(first, second, ("static", "static"))["gain"]["relative"] == 0
    second.scored.tokens[second.scored.tokens < 3] = 0
    with pytest.raises(ValueError, match="the results differ in their vocabularies: "):
        results.compare(first, second, ("static", "static"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"checksum": "b"}, "the results differ in their checksum: a, b; compare results of"),
        ({"split": "valid"}, "the results differ in their split: test, valid; compare"),
        ({"count": 399}, "the results differ in their tokens: 400, 399; compare"),
    ],
)
def test_results_that_cannot_be_compared(changes, message):
    with pytest.raises(ValueError, match=message):
        results.compare(long_result(), long_result(**changes), ("static", "static"))


def test_what_a_result_does_not_have_cannot_be_compared():
    result = long_result()
    with pytest.raises(ValueError, match="no predictor 'fast'; give one of static, dynamic"):
        results.compare(result, result, ("static", "fast"))
    with pytest.raises(ValueError, match="no figure 'speed'; give one of perplexity, word_"):
        results.compare(result, result, ("static", "dynamic"), figure="speed")
    result.scores["dynamic"] = Score(np.ones(20), 1.0, "dynamic diverged at token 21: too fast")
    with pytest.raises(ValueError, match="dynamic diverged at token 21; compare predictors"):
        results.compare(result, result, ("static", "dynamic"))
    assert "gain" not in result.to_json()["dynamic"]


@pytest.mark.parametrize("name", ["result.npz", "result", "result.v2"])
def test_a_name_that_would_hide_the_arrays_is_refused(result, tmp_path, name):
    with pytest.raises(ValueError, match=re.escape(f"{name} has another ending")):
        result.save(tmp_path / name)
    assert not list(tmp_path.iterdir())


def refused(path):
    with pytest.raises(ValueError, match=re.escape(str(path))) as caught:
        results.load(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("part", [0, 0.1, 0.5, 0.99])
def test_arrays_cut_off(result, tmp_path, part):
    path = tmp_path / "result.json"
    result.save(path)
    whole = path.with_suffix(".npz").read_bytes()
    path.with_suffix(".npz").write_bytes(whole[: int(part * len(whole))])
    assert "no whole result" in refused(path)


def test_arrays_damaged_inside(result, tmp_path):
    path = tmp_path / "result.json"
    result.save(path)
    whole = bytearray(path.with_suffix(".npz").read_bytes())
    whole[len(whole) // 3] ^= 0xFF
    path.with_suffix(".npz").write_bytes(whole)
    assert "no whole result" in refused(path)
    whole[len(whole) // 3] ^= 0xFF
    whole[whole.index(b"PK\1\2") + 10] = 99  # a compression that nobody knows
    path.with_suffix(".npz").write_bytes(whole)
    assert "no whole result" in refused(path)


def test_arrays_of_another_result(result, tmp_path):
    path = tmp_path / "result.json"
    result.save(path)
    shorter = Result(RUN, SCORED, {name: Score(np.ones(1), 1.0) for name in result.scores})
    shorter.save(tmp_path / "other.json")
    (tmp_path / "other.npz").replace(tmp_path / "result.npz")
    assert "they differ in the tokens of static" in refused(path)
    Result(RUN, SCORED, {}).save(tmp_path / "other.json")
    (tmp_path / "other.npz").replace(tmp_path / "result.npz")
    assert "nats.static" in refused(path)
    path.with_suffix(".npz").unlink()
    assert "no whole result" in refused(path)


@pytest.mark.parametrize(
    "text",
    ["", "no JSON", "[]", "5", "{}", '{"static": {}}', '{"run": {}, "static": {"tokens": 4}}'],
)
def test_figures_that_are_none(result, tmp_path, text):
    path = tmp_path / "result.json"
    assert "does not exist" in refused(path)
    result.save(path)
    path.write_text(text)
    assert "no whole" in refused(path)
