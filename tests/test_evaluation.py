import pytest
import torch

from dyneval.evaluation import evaluate
from dyneval.predictors import Dynamic, Static
from dyneval.rules import Sgd
from dyneval.streams import PAD


def test_the_loop_predicts_then_learns_then_tells(lstm, text):
    """A caller that stops has an evaluation of all that it was told of, and no more."""
    dynamic, expected = Dynamic(lstm, Sgd(0.3)), Dynamic(lstm, Sgd(0.3))
    loop = evaluate(dynamic, text[None], 4)
    assert len(dynamic.position) == 0  # nothing is read before it is asked for
    first = next(loop)
    assert first.shape == (1, 4)
    assert dynamic.position.tolist() == [4]
    found = expected.predict(text[None, :4]).nats(text[None, 1:5])
    expected.learn(text[None, 1:5])
    assert torch.equal(first, found)
    for name, weight in expected.weights().items():
        assert torch.equal(dynamic.weights()[name], weight)


def test_every_token_but_the_first_of_each_row_is_scored_once(lstm, streams):
    nats = torch.cat(list(evaluate(Static(lstm), streams, 7)), 1)
    assert nats.shape == (4, 150)
    assert torch.equal(nats.isnan(), streams[:, 1:] == PAD)


@pytest.mark.parametrize("segment_length", [1, 7, 150, 1000])
def test_how_a_text_is_cut_changes_nothing_for_a_static_model(lstm, text, segment_length):
    found = torch.cat(list(evaluate(Static(lstm), text[None], segment_length)), 1)
    h, _ = lstm.hidden(text[None, :-1])
    expected = torch.nn.functional.cross_entropy(lstm.logits(h)[0], text[1:], reduction="none")
    torch.testing.assert_close(found[0], expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("length", [0, 1])
def test_a_stream_without_a_second_token_has_no_scores(lstm, text, length):
    assert list(evaluate(Static(lstm), text[None, :length], 5)) == []


def test_a_segment_needs_a_token(lstm, text):
    with pytest.raises(ValueError, match="segment of 0 tokens"):
        next(evaluate(Static(lstm), text[None], 0))
