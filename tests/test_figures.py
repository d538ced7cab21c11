import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from matplotlib import image
from matplotlib import pyplot as plt
from written import experiment_of, result_of

from dyneval import figures, report

ALL = ["cumulative-bits", "gain-by-position", "mean-so-far", "weights"]


def names(paths):
    return sorted(path.name for path in paths)


@pytest.mark.parametrize("kind", ["bytes", "words"])
def test_each_figure_is_a_picture_and_a_drawing(tmp_path, kind):
    text = "some $1 words, and some $2 more " * 99
    result = result_of(text.encode() if kind == "bytes" else text, kind)
    paths = figures.draw(result, tmp_path / "figures", "a-")
    assert names(paths) == sorted(f"a-{name}{end}" for name in ALL for end in (".png", ".svg"))
    for path in paths:
        if path.suffix == ".svg":
            ElementTree.parse(path)
        else:
            pixels = image.imread(path)
            assert pixels.shape[:2] == (690, 1020)  # 3.4 by 2.3 inches, 300 dots each
            assert pixels[..., :3].std() > 0.02
    assert not plt.get_fignums()


def test_lines_have_the_colours_of_the_other_figures(tmp_path):
    figures.draw(result_of(b"some words " * 99), tmp_path)
    pixels = image.imread(tmp_path / "mean-so-far.png").reshape(-1, 4)[:, :3].round(2)
    for colour in report.COLOURS[:2]:
        rgb = [round(int(colour[k : k + 2], 16) / 255, 2) for k in (1, 3, 5)]
        assert (np.abs(pixels - rgb).max(1) < 0.02).any()


def test_the_same_result_is_the_same_drawing(tmp_path):
    for folder in ("a", "b"):
        figures.draw(result_of(b"some words " * 99), tmp_path / folder)
    for name in ALL:
        assert (tmp_path / f"a/{name}.svg").read_bytes() == (
            tmp_path / f"b/{name}.svg"
        ).read_bytes()


@pytest.mark.parametrize(
    ("nats", "drawn"),
    [
        ({"static": np.ones(3)}, ["cumulative-bits", "mean-so-far"]),
        ({"static": np.ones(3), "dynamic": []}, ["cumulative-bits", "mean-so-far"]),
        ({"static": [], "dynamic": []}, []),
        ({"static": np.ones(3), "dynamic": np.ones(3)}, ALL),
        ({"static": np.ones(1), "dynamic": np.ones(1)}, ALL),
        ({"static": np.full(3, 1e5), "dynamic": np.ones(3)}, ALL),
    ],
)
def test_what_there_is_is_drawn(tmp_path, nats, drawn):
    paths = figures.draw(result_of(b"abc", nats=nats), tmp_path)
    assert names(path for path in paths if path.suffix == ".png") == [f"{n}.png" for n in drawn]
    assert sorted(tmp_path.iterdir()) == sorted(paths)


def test_gains_of_an_experiment_are_drawn_beside_the_paper_s(tmp_path):
    png, svg = figures.draw(experiment_of(), tmp_path, "own-")
    assert names([png, svg]) == ["own-gains.png", "own-gains.svg"]
    ElementTree.parse(svg)
    pixels = image.imread(png)[..., :3].reshape(-1, 3)
    colour = report.COLOURS[1]
    rgb = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    assert (np.abs(pixels - rgb).max(1) < 0.02).sum() > 100
    assert not plt.get_fignums()


def test_a_row_without_a_number_says_what_ours_below_it_is(tmp_path):
    found = experiment_of()
    for row in found["published"]:
        row.pop("test", None)
    (_, svg) = figures.draw(found, tmp_path)
    shown = figures._with_gains(figures.published.lines(found))
    assert [line.name for line in shown] == ["LSTM + dynamic eval", "small"]
    assert "LSTM + dynamic eval" in svg.read_text("utf-8")  # as a comment beside its outlines


def test_an_experiment_without_a_gain_has_no_figure(tmp_path):
    assert figures.draw(experiment_of() | {"studies": []}, tmp_path) == []
