import io
import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import numpy as np
import pytest
from matplotlib import image
from matplotlib import pyplot as plt
from rich.console import Console

from dyneval import report
from dyneval.results import ByDocument, Result, Score, Scored
from dyneval.results import compare as compare_results
from dyneval.significance import compare

SIZES = {"words": (1, 6, 7), "characters": (0, 1, 2), "bytes": (0, 1, 1)}


def result_of(kind, rule="n = 5", note="", **nats):
    """A result whose tokens all stand for as much."""
    count = max(len(values) for values in nats.values())
    scored = Scored(*(np.full(count, size, np.int32) for size in (9, *SIZES[kind])))
    run = {
        "model": "models/a",
        "corpus": "some $1 text [of $2]",
        "split": "valid",
        "note": note,
        "vocabulary": {"kind": kind, "size": 50},
        "rule": dict.fromkeys(nats, rule),
        "engines": dict.fromkeys(nats, "fused: in tests"),
    }
    scores = {name: Score(np.array(values), 0.5) for name, values in nats.items()}
    return Result(run, scored, scores)


def printed(result, width=80):
    console = Console(width=width, file=io.StringIO())
    console.print(report.table(result))
    return console.file.getvalue()


def cells(text, name):
    """The cells of a predictor's row."""
    (row,) = [line for line in text.splitlines() if re.match(rf"\W*{re.escape(name)} ", line)]
    return re.findall(r"[^│|\s]+", row)


@pytest.mark.parametrize(
    ("kind", "figures"),
    [
        ("words", [["8.00", "3.0000"], ["4.00", "2.0000", "+50.0%", "(50.0..50.0)"]]),
        ("characters", [["3.0000", "3.0000"], ["2.0000", "2.0000", "+33.3%", "(33.3..33.3)"]]),
        ("bytes", [["3.0000", "3.0000"], ["2.0000", "2.0000", "+33.3%", "(33.3..33.3)"]]),
    ],
)
def test_the_table_shows_the_figure_people_quote(kind, figures):
    eight, four = np.full(2000, np.log(8)), np.full(2000, np.log(4))
    text = printed(result_of(kind, static=eight, dynamic=four, note="a piece"), 100)
    assert cells(text, "static") == ["static", "2,000", *figures[0], "4,000"]
    assert cells(text, "dynamic") == ["dynamic", "2,000", *figures[1], "4,000"]
    assert {"words": "perplexity", "characters": "bits/character", "bytes": "bits/byte"}[
        kind
    ] in text
    assert "models/a on some $1 text [of $2] (valid)" in " ".join(text.split())
    assert "dynamic: n = 5" in text
    assert "a piece" in text


def test_a_gain_has_an_interval():
    """That of the figure people quote: of perplexity for words, and of bits elsewhere."""
    static, dynamic = np.random.default_rng(2).exponential((3.0, 2.5), (2000, 2)).T
    gain = compare(static, dynamic)
    for kind, expected in {"words": gain.perplexity, "bytes": gain.bits}.items():
        result = result_of(kind, static=static, dynamic=dynamic)
        value, low, high = (100 * number for number in expected)
        text = printed(result, 100)
        assert f"{value:+.1f}% ({low:.1f}..{high:.1f})" in text
        assert "gain: over static, with its interval of 95%" in text
        assert result.to_json()["dynamic"]["gain"]["low"] == expected.low


def test_documents_have_a_line():
    result = result_of("words", static=np.full(60, 3.0), dynamic=np.repeat([2.0, 2.0, 4.0], 20))
    numbers = np.repeat([1, 2, 3], 20)
    by = ByDocument(numbers, np.array(["a", "b", "c"]))
    text = printed(replace(result, by_document=by), 100)
    assert "dynamic: 3 documents, median gain +63.2%, 66.7% of them gain" in text
    result = replace(result_of("words", static=np.ones(60), dynamic=[]), by_document=by)
    assert "dynamic: no document to compare" in printed(result)


def test_what_is_carried_is_told_where_it_differs():
    result = result_of("bytes", static=np.full(60, 3.0))
    found = compare_results(result, result, ("static", "static"))
    console = Console(width=100, file=io.StringIO())
    carry = {"carry": ["none", "weights (streams: 8)"]}
    console.print(report.pairs([found | carry], ["a.json", "b.json"]))
    assert "what documents carry over: none in A, weights (streams: 8) in B" in (
        console.file.getvalue()
    )


def test_pairs_of_two_results():
    """Also where a gain is no number, and where a file has a name with [] in it."""
    static, dynamic = np.random.default_rng(3).exponential((3.0, 2.5), (2000, 2)).T
    result = result_of("bytes", static=static, dynamic=dynamic, lost=np.full(2000, 1e4))
    lost = compare_results(result, result, ("static", "lost"), figure="perplexity")
    gained = compare_results(result, result, ("static", "dynamic"), figure="perplexity", level=0.9)
    console = Console(width=100, file=io.StringIO())
    console.print(report.pairs([gained, lost], ["[a].json", "[b].json"]))
    text = console.file.getvalue()
    assert "gain (90%)" in text
    (row,) = [line for line in text.splitlines() if "dynamic over static" in line]
    low, high = (100 * gained["gain"][name] for name in ("low", "high"))
    assert f"({low:.1f}..{high:.1f})" in row
    assert "yes, p 0.001" in row
    assert re.search(r"lost over static .* – .* – .* yes, p 0.001", text)
    assert "A: [a].json" in text
    assert "B: [b].json" in text
    console.print(report.pairs([lost], ["a.json", "a.json"]))
    assert "A, B: a.json" in console.file.getvalue()


def test_the_engine_is_named_once_where_all_had_the_same():
    result = result_of("words", static=[1.0], dynamic=[1.0])
    assert printed(result).count("engine: fused: in tests") == 1
    result.run["engines"]["dynamic"] = "reference: asked for"
    assert "engine of static: fused: in tests" in printed(result)
    assert "engine of dynamic: reference: asked for" in printed(result)


def test_a_loss_is_a_negative_gain():
    text = printed(result_of("words", static=np.full(9, np.log(8)), worse=np.full(9, np.log(10))))
    assert "-25.0%" in text


def test_no_gain_is_shown_where_the_tokens_differ():
    text = printed(result_of("words", static=np.ones(10), dynamic=np.ones(4)))
    assert "%" not in text
    assert cells(text, "dynamic")[1] == "4"


def test_nothing_scored_is_shown_as_nothing():
    text = printed(result_of("bytes", static=np.ones(10), dynamic=np.ones(0)))
    assert cells(text, "dynamic") == ["dynamic", "0", "–", "–", "0"]


def test_large_figures_are_shown_whole():
    """Also where the terminal is as narrow as a pipe is taken to be."""
    nats = {"static": np.full(1, 20.0), "dynamic+cache": np.full(1, 22.0)}
    text = printed(result_of("words", **nats))
    assert cells(text, "static")[2] == "485,165,195.41"
    assert cells(text, "dynamic+cache")[2] == "3,584,912,846.13"
    assert "…" not in text


def test_what_is_shown_on_the_way():
    assert report.running(np.log(100), "words") == "perplexity 100.00"
    assert report.running(np.log(4), "characters") == "2.000 bits/character"
    assert report.running(np.log(4), "bytes") == "2.000 bits/byte"
    assert "perplexity" in report.running(1e6, "words")  # no OverflowError


def test_the_table_goes_to_standard_output(capsys):
    report.show(result_of("bytes", static=np.ones(10)))
    out, err = capsys.readouterr()
    assert "bits/byte" in out
    assert err == ""


# Figures


@pytest.fixture
def falling():
    random = np.random.default_rng(1)
    nats = random.exponential(2.0, 5000)
    return {"static": nats, "dynamic": nats * np.linspace(1, 0.5, 5000)}


@pytest.mark.parametrize("kind", ["words", "characters", "bytes"])
def test_a_figure_is_a_picture(falling, tmp_path, kind):
    path = tmp_path / "below" / "curve.png"
    report.figure(result_of(kind, **falling), path)
    pixels = image.imread(path)
    assert pixels.shape[:2] == (640, 1120)
    colours = {tuple(colour) for colour in pixels.reshape(-1, pixels.shape[2])[:, :3].round(2)}
    for colour in report.COLOURS[:2]:
        rgb = tuple(np.float32(int(colour[k : k + 2], 16) / 255).round(2) for k in (1, 3, 5))
        assert rgb in colours, colour
    assert not plt.get_fignums()


def test_a_figure_is_a_drawing(falling, tmp_path):
    for ending, start in ((".svg", b"<?xml"), (".pdf", b"%PDF")):
        path = tmp_path / f"curve{ending}"
        report.figure(result_of("bytes", **falling), path)
        assert path.read_bytes().startswith(start)
    ElementTree.parse(tmp_path / "curve.svg")


@pytest.mark.parametrize("count", [0, 1, 2, 60])
def test_a_short_text_is_drawn_too(tmp_path, count):
    """Nothing at all, where every predictor diverged at once."""
    path = tmp_path / "curve.png"
    report.figure(result_of("words", static=np.ones(count), dynamic=np.ones(count)), path)
    assert path.stat().st_size > 1000


def test_a_predictor_that_stopped_early_is_drawn_as_far_as_it_came(falling, tmp_path):
    falling["dynamic"] = falling["dynamic"][:3]
    report.figure(result_of("bytes", **falling), tmp_path / "curve.png")
    assert (tmp_path / "curve.png").exists()


@pytest.mark.parametrize("name", ["curve", "curve.xyz", "curve.json"])
def test_a_figure_of_no_known_kind_is_refused(falling, tmp_path, name):
    with pytest.raises(ValueError, match=re.escape(f"{tmp_path / name} has another ending")):
        report.figure(result_of("bytes", **falling), tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_a_figure_is_never_left_half_written(falling, tmp_path, monkeypatch):
    """What was there stays, and nothing lies beside it."""
    path = tmp_path / "curve.png"
    path.write_text("the old one")

    def full_disk(figure, file, **options):
        file.write_text("half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("matplotlib.figure.Figure.savefig", full_disk)
    with pytest.raises(OSError, match="No space left"):
        report.figure(result_of("bytes", **falling), path)
    assert path.read_text() == "the old one"
    assert [file.name for file in tmp_path.iterdir()] == ["curve.png"]
    assert not plt.get_fignums()
