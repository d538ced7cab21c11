import pytest
from written import experiment_of

from dyneval import corpora, published
from dyneval.models import ARCHITECTURES


def test_a_row_is_of_a_corpus_and_a_model_that_exist():
    for corpus in published.TABLES:
        assert corpus in corpora.SOURCES
        others = published.beside({"corpus": corpus})
        assert others
        for other in others:
            assert other.architecture in {kind.__name__ for kind in ARCHITECTURES.values()}
            assert other.values["dynamic"] < other.values["static"]


def test_figures_of_a_model_are_of_that_model_alone():
    """Not of others that use the same rule, or have the same role."""
    (lstm,) = published.beside({"corpus": "ptb", "architecture": "LSTM"})
    assert lstm.values == {
        "static": 85.6,
        "sgd-n1": 76.2,
        "sgd": 75.6,
        "sgd+decay": 74.8,
        "rms+decay": 72.2,
        "rms+rms-decay": 71.7,
        "dynamic": 71.7,
    }
    (mlstm,) = published.beside({"corpus": "enwik8"})
    assert mlstm.values == dict(
        zip(("static", "sparse", "rms+rms-decay", "dynamic"), (1.24, 1.13, 1.08, 1.08), strict=True)
    )


@pytest.mark.parametrize(
    ("run", "models"),
    [
        ({"corpus": "ptb", "architecture": "LSTM"}, ["LSTM, 20M weights"]),
        ({"corpus": "ptb", "architecture": "Mine"}, ["LSTM, 20M weights", "AWD-LSTM, 24M weights"]),
        ({"corpus": "ptb"}, ["LSTM, 20M weights", "AWD-LSTM, 24M weights"]),
        ({"corpus": "notes.txt", "architecture": "LSTM"}, []),
    ],
)
def test_models_built_alike_stand_beside_a_result(run, models):
    assert [row.model for row in published.beside(run)] == models


def test_another_text_is_called_one():
    (row,) = published.beside({"corpus": "sample", "architecture": "MLSTM"})
    assert "another text" in row.note
    assert not any(row.note for row in published.beside({"corpus": "enwik8"}))


def test_ours_stand_below_what_they_answer():
    found = experiment_of()
    lines = list(published.lines(found))
    assert [(line.name, line.ours) for line in lines] == [
        ("theirs", False),
        ("LSTM", False),
        *[("small", True), ("other", True)],
        ("LSTM + dynamic eval", False),
        ("small", True),
        ("LSTM + sparse", False),
        (published.NOT_RUN, True),
    ]
    for line in lines:
        value = found
        for key in line.place:
            value = value[int(key)] if isinstance(value, list) else value[key]
        if line.place:
            assert all(value.get(key) == line.figures[key] for key in ("valid", "test"))
    gains = [line.gain["relative"] for line in lines if line.gain]
    ours = found["studies"][0]["rows"]["dynamic"]["gain"]["relative"]
    assert gains == [pytest.approx(0.1), ours, pytest.approx(0.05)]
    assert published.facts(found) == {"Figure 9": "it grows"}


def test_old_results_have_no_published_rows():
    found = experiment_of()
    del found["published"]
    names = ["small: static", "small: dynamic", "other: static", "other: lost"]
    assert [line.name for line in published.lines(found)] == names
    assert published.facts(found) == {}


def test_a_title_names_its_figure_once():
    found = {"title": "Table 4: text8, bits per character", "figure": "bits per character"}
    assert published.heading(found) == found["title"]
    assert published.heading(found | {"title": "Table 3"}) == "Table 3 (bits per character)"
