import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dyneval.streams import PAD, padded, parallel, segments

lengths = st.lists(st.integers(1, 12), min_size=1, max_size=4)


@given(lengths, st.integers(1, 14))
def test_every_token_but_the_first_is_a_target_once(lengths, segment_length):
    rows = [torch.arange(length) + 100 * k for k, length in enumerate(lengths)]
    read = list(segments(padded(rows), segment_length))
    for k, row in enumerate(rows):
        inputs = [token for part in read for token in part.inputs[k].tolist() if token != PAD]
        targets = [token for part in read for token in part.targets[k].tolist() if token != PAD]
        assert targets == row[1:].tolist()
        assert inputs == row[:-1].tolist()  # a last token without a target is not read


@given(lengths, st.integers(1, 14))
def test_segments_are_full_but_for_the_last(lengths, segment_length):
    stream = padded([torch.arange(length) for length in lengths])
    sizes = [part.inputs.shape[1] for part in segments(stream, segment_length)]
    assert sum(sizes) == max(lengths) - 1
    assert all(size == segment_length for size in sizes[:-1])
    assert all(part.inputs.shape == part.targets.shape for part in segments(stream, segment_length))


def test_segments_leave_the_stream_as_it_was():
    stream = padded([torch.arange(5), torch.arange(2)])
    before = stream.clone()
    list(segments(stream, 2))
    assert torch.equal(stream, before)


@pytest.mark.parametrize("length", [0, -3])
def test_a_segment_needs_a_token(length):
    with pytest.raises(ValueError, match=f"segment of {length} tokens"):
        list(segments(torch.arange(5)[None], length))


@pytest.mark.parametrize("tokens", [0, 1])
def test_nothing_can_be_predicted_of_a_stream_without_a_second_token(tokens):
    assert list(segments(torch.zeros((1, tokens), dtype=torch.long), 5)) == []


def test_parallel_streams_are_contiguous():
    assert parallel(torch.arange(11), 3).tolist() == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]


@pytest.mark.parametrize("rows", [6, 0, -1])
def test_more_streams_than_the_text_has_room_for_are_refused(rows):
    with pytest.raises(ValueError, match="streams"):
        parallel(torch.arange(11), rows)
