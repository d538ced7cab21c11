"""What every predictor must pass: `check_predictor`, given a way to make one.

`make` returns a fresh predictor, in double precision, over the symbols 0, 1 and 2. Each check
is a function of its own, named after what it asks.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from safetensors.torch import load, save
from torch import Tensor

from dyneval.evaluation import evaluate
from dyneval.predictors import Predictor
from dyneval.streams import PAD, padded

Make = Callable[[], Predictor]

# of unequal length: one ends within a segment of three, one with it, one before the first
TEXTS = [
    torch.tensor([0, 1, 2, 2, 1, 0, 0, 2, 1, 1]),
    torch.tensor([1, 1, 2, 0, 1, 2, 0, 1]),
    torch.tensor([2, 0, 1, 0]),
    torch.tensor([1]),
]


def check_predictor(make: Make) -> None:
    """Ask all there is to ask of a predictor."""
    for check in (
        check_scores_are_a_probability,
        check_tokens_one_by_one_are_a_segment,
        check_a_batch_is_its_rows_alone,
        check_a_pause_changes_nothing,
        check_predictions_stand,
        check_resume_is_exact,
        check_reset_starts_afresh,
        check_mistakes_are_refused_and_forgotten,
    ):
        check(make)


def scores(predictor: Predictor, stream: Tensor, segment_length: int = 3) -> Tensor:
    """Return the (B, T - 1) nats of a (B, T) stream."""
    return torch.cat(list(evaluate(predictor, stream, segment_length)), 1)


def same(found: Tensor, expected: Tensor, rtol: float = 1e-11) -> None:
    """Assert that two arrays of nats are equal, but for the rounding of another order of sums."""
    torch.testing.assert_close(found, expected, rtol=rtol, atol=1e-13, equal_nan=True)


def check_scores_are_a_probability(make: Make) -> None:
    """Over every continuation of two symbols, the probabilities add up to one.

    They add up to more if anything is learned from a token before it is scored.
    """
    symbols = torch.arange(3)
    streams = torch.cartesian_prod(symbols[:1], symbols[2:], *[symbols] * 4)  # (81, 6)
    for segment_length in (2, 3):
        nats = scores(make(), streams, segment_length)[:, 1:]
        assert torch.exp(-nats.sum(1)).sum().item() == pytest.approx(1, abs=1e-9)


def check_tokens_one_by_one_are_a_segment(make: Make) -> None:
    """A segment that is predicted token by token is scored and learned from as in one call."""
    text = TEXTS[0][None]
    whole, single = make(), make()
    for start in (0, 3, 6):
        targets = text[:, start + 1 : start + 4]
        at_once = whole.predict(text[:, start : start + 3]).nats(targets)
        for k in range(3):
            prediction = single.predict(text[:, start + k : start + k + 1])
            same(prediction.nats(targets[:, k : k + 1]), at_once[:, k : k + 1])
        whole.learn(targets)
        single.learn(targets)


def check_a_batch_is_its_rows_alone(make: Make) -> None:
    """Rows side by side score as each does alone, whatever their lengths; NaN behind the end."""
    for segment_length in (1, 3):
        together = scores(make(), padded(TEXTS), segment_length)
        for row, text in zip(together, TEXTS, strict=True):
            assert row[len(text) - 1 :].isnan().all()
            if len(text) > 1:
                same(row[: len(text) - 1], scores(make(), text[None], segment_length)[0])


def check_a_pause_changes_nothing(make: Make) -> None:
    """A row with nothing in a segment is left as it was, and may go on later."""
    first, second = TEXTS[0], TEXTS[1]
    nothing = torch.full((3,), PAD)
    predictor = make()
    found = []
    for start, other in ((0, 0), (3, None), (6, 3)):
        ours = first[start : start + 4]
        theirs = nothing if other is None else second[other : other + 4]
        inputs = torch.stack([ours[:-1], theirs[: 3 if other is None else -1]])
        targets = torch.stack([ours[1:], theirs[-3:]])
        prediction = predictor.predict(inputs)
        predictor.learn(targets)
        found.append(prediction.nats(targets))
    assert found[1][1].isnan().all()
    same(torch.cat([part[0] for part in found]), scores(make(), first[None])[0])
    same(torch.cat([found[0][1], found[2][1]]), scores(make(), second[None, :7])[0])


def check_predictions_stand(make: Make) -> None:
    """What was predicted holds no graph, and does not change by learning or resetting."""
    predictor = make()
    inputs, targets = TEXTS[0][None, :4], TEXTS[0][None, 1:5]
    prediction = predictor.predict(inputs)
    nats = prediction.nats(targets)
    assert nats.shape == targets.shape
    assert not nats.requires_grad
    before = nats.clone()
    predictor.learn(targets)
    assert torch.equal(prediction.nats(targets), before)
    predictor.reset()
    assert torch.equal(prediction.nats(targets), before)


def check_resume_is_exact(make: Make) -> None:
    """Another predictor goes on from a stored state with the same digits, and so does this one."""
    stream = padded(TEXTS)
    predictor, other = make(), make()
    scores(predictor, stream[:, :4])
    state = load(save(predictor.state_dict()))
    expected = scores(predictor, stream[:, 3:])
    for resumed in (other, predictor):  # the other has read nothing, this one has read on
        resumed.load_state_dict(state)
        assert equal(scores(resumed, stream[:, 3:]), expected)
    fresh = make()
    fresh.load_state_dict(load(save(make().state_dict())))  # of one that has read nothing
    assert equal(scores(fresh, stream), scores(make(), stream))


def check_reset_starts_afresh(make: Make) -> None:
    """After a reset all is as at first, for all rows or for some; also in mid-segment for all."""
    stream = padded(TEXTS[:3])
    expected = scores(make(), stream)
    predictor = make()
    predictor.reset()  # before the first token there is nothing to do
    for _ in range(2):
        assert equal(scores(predictor, stream), expected)
        predictor.predict(stream[:, :2])
        predictor.reset()

    going_on, changed = make(), make()
    scores(going_on, stream[:, :4])
    scores(changed, stream[:, :4])
    changed.reset(torch.tensor([1]))
    found, unchanged = (scores(each, stream[:, :4]) for each in (changed, going_on))
    same(found[1], expected[1, :3])
    same(found[[0, 2]], unchanged[[0, 2]])


def check_mistakes_are_refused_and_forgotten(make: Make) -> None:
    """A call against the protocol is a ValueError that says why, and leaves all as it was."""
    inputs, targets = torch.tensor([[0, 1], [2, PAD]]), torch.tensor([[1, 2], [0, PAD]])
    stream = padded(TEXTS[:2])
    expected = make()
    stored = expected.state_dict()
    expected.predict(inputs)
    expected.learn(targets)
    then = scores(expected, stream)

    predictor = make()
    refused("T", predictor.predict, torch.tensor([0, 1]))
    refused("T", predictor.predict, torch.zeros((2, 0), dtype=torch.long))
    refused("PAD", predictor.predict, torch.tensor([[PAD, 1], [0, 1], [0, 1]]))
    refused("PAD", predictor.predict, torch.full((2, 2), PAD))
    refused("learn", predictor.learn, targets)
    predictor.predict(inputs)
    refused("streams", predictor.predict, torch.tensor([[0], [1], [2]]))
    refused("PAD", predictor.predict, torch.tensor([[0], [1]]))  # behind the end of row 1
    refused("PAD", predictor.predict, torch.tensor([[PAD, 1], [PAD, PAD]]))
    refused("targets", predictor.learn, targets[:, :1])
    refused("targets", predictor.learn, targets[:1])
    refused("PAD", predictor.learn, torch.tensor([[PAD, 2], [0, PAD]]))
    refused("PAD", predictor.learn, torch.tensor([[1, 2], [0, 1]]))
    refused("segment", predictor.state_dict)
    refused("segment", predictor.load_state_dict, stored)
    refused("segment", predictor.reset, torch.tensor([0]))
    predictor.learn(targets)
    refused("learn", predictor.learn, targets)
    refused("streams", predictor.reset, torch.tensor([2]))
    refused("streams", predictor.reset, torch.tensor([True, False]))  # a mask, not numbers
    assert equal(scores(predictor, stream), then)


def refused(message: str, action: Callable[..., object], *arguments: object) -> None:
    """Assert that a call raises a ValueError."""
    with pytest.raises(ValueError, match=message):
        action(*arguments)


def equal(found: Tensor, expected: Tensor) -> bool:
    """Return whether two arrays of nats are the same to the bit, NaN at the same places."""
    return torch.equal(found.nan_to_num(-1), expected.nan_to_num(-1))
