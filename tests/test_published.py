import pytest

from dyneval import corpora, published
from dyneval.models import ARCHITECTURES
from dyneval.results import FIGURES, QUOTED


def test_a_row_is_of_a_corpus_a_model_and_a_figure_that_exist():
    for corpus, rows in published.FIGURES.items():
        for row in rows:
            assert row.figure == QUOTED[corpora.SOURCES[corpus].kind]
            assert row.figure in FIGURES
            assert row.architecture in {kind.__name__ for kind in ARCHITECTURES.values()}
            assert row.values["dynamic"] < row.values["static"]


@pytest.mark.parametrize(
    ("run", "models"),
    [
        ({"corpus": "ptb", "architecture": "LSTM"}, ["LSTM, 20M weights"]),
        ({"corpus": "ptb", "architecture": "Mine"}, ["LSTM, 20M weights", "AWD-LSTM, 24M"]),
        ({"corpus": "ptb"}, ["LSTM, 20M weights", "AWD-LSTM, 24M"]),
        ({"corpus": "notes.txt", "architecture": "LSTM"}, []),
    ],
)
def test_models_built_alike_stand_beside_a_result(run, models):
    assert [row.model for row in published.beside(run)] == models


def test_another_text_is_called_one():
    (row,) = published.beside({"corpus": "sample", "architecture": "MLSTM"})
    assert "another text" in row.note
    assert not any(row.note for row in published.beside({"corpus": "enwik8"}))
