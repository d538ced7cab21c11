import pytest
import torch
from torch import nn

from dyneval.reading import Categorical, Reader, assemble, concatenate, leaves, map_state, tree
from dyneval.streams import PAD, padded


class Attention(nn.Module):
    """A model whose state is a dict and grows with what was read."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(5, 3, dtype=torch.double)

    def hidden(self, tokens, state=None):
        x = self.embedding(tokens)  # (B, T, 3)
        seen = x if state is None else torch.cat([state["seen"], x], 1)
        scores = x @ seen.transpose(1, 2)  # (B, T, past + T)
        past = seen.shape[1] - x.shape[1]
        ahead = torch.ones(scores.shape[1:], dtype=torch.bool).triu(past + 1)
        h = scores.masked_fill(ahead, -torch.inf).softmax(-1) @ seen
        return h, {"seen": seen}

    def logits(self, h):
        return h @ self.embedding.weight.T


@pytest.fixture
def attention():
    torch.manual_seed(0)
    return Attention()


TEXTS = [torch.tensor(row) for row in ([0, 1, 2, 3, 4, 0], [1, 2, 3, 1], [4, 4, 2, 0], [3])]


def test_rows_are_read_as_they_would_be_alone(model, attention):
    for each in (model, attention):
        together, stream = Reader(each), padded(TEXTS)
        found = torch.cat([together.read(stream[:, k : k + 2]).log_probs for k in (0, 2, 4)], 1)
        for row, text in enumerate(TEXTS):
            h, _ = each.hidden(text[None])
            alone = torch.log_softmax(each.logits(h), -1)[0]
            torch.testing.assert_close(found[row, : len(text)], alone, rtol=1e-12, atol=1e-14)
            assert found[row, len(text) :].isnan().all()


def test_rows_that_read_equally_far_go_through_the_model_together(attention, monkeypatch):
    batches = []
    hidden = attention.hidden
    monkeypatch.setattr(
        attention, "hidden", lambda x, state: batches.append(x.tolist()) or hidden(x, state)
    )
    reader, stream = Reader(attention), padded(TEXTS)
    reader.read(stream[:, :3])
    reader.read(stream[:, 3:])
    assert batches == [
        [[0, 1, 2], [1, 2, 3], [4, 4, 2]],
        [[3]],
        [[3, 4, 0]],
        [[1], [0]],
    ]


@pytest.mark.parametrize("earlier", [0, 3])
def test_rows_after_a_reset_are_before_their_first_token(model, earlier):
    stream = torch.stack(TEXTS[1:3])
    fresh = Reader(model).read(stream)
    reader = Reader(model)
    if earlier:
        reader.read(stream[:, :earlier])
    reader.reset([1, 0] if earlier else [])
    assert torch.equal(reader.read(stream).log_probs, fresh.log_probs)

    reader.reset([1])
    again = reader.read(stream).log_probs
    torch.testing.assert_close(again[1], fresh.log_probs[1], rtol=1e-12, atol=1e-14)
    assert not torch.allclose(again[0], fresh.log_probs[0])


def test_a_cut_keeps_the_state_and_not_the_graph(lstm):
    reader, other = Reader(lstm), Reader(lstm)
    tokens = TEXTS[0][None]
    for each in (reader, other):
        each.read(tokens[:, :3])
    reader.cut()
    found, expected = reader.read(tokens[:, 3:]), other.read(tokens[:, 3:])
    assert torch.equal(found.log_probs, expected.log_probs)
    weight = lstm.embedding.weight  # the rows of tokens 0 to 2 were read before the cut
    (cut,) = torch.autograd.grad(found.log_probs[0, 1, 2], weight)
    (whole,) = torch.autograd.grad(expected.log_probs[0, 1, 2], weight)
    assert not cut[:3].any()
    assert whole[:3].all()


def test_stored_states_come_back(model, attention):
    for each in (model, attention):
        reader, other, stream = Reader(each), Reader(each), padded(TEXTS)
        reader.read(stream[:, :3])
        other.load_state_dict(reader.state_dict(), len(TEXTS))
        found, expected = other.read(stream[:, 3:]), reader.read(stream[:, 3:])
        assert torch.equal(found.log_probs.nan_to_num(), expected.log_probs.nan_to_num())


def test_a_state_is_a_tree_of_tensors():
    a, b, c = torch.rand(3, 2)
    for state in (a, (a, b), ((a, b), (c,)), {"h": a, "k": (b, {"v": c})}):
        flat = leaves(state, "state")
        assert all(path.startswith("state") for path in flat)
        assert repr(tree(flat, "state")) == repr(state)
    assert list(leaves({"h": a, "k": (b, c)}, "x")) == ["x.h", "x.k.0", "x.k.1"]
    assert tree(leaves(None, "state"), "state") is None
    many = tuple(torch.tensor([k]) for k in range(12))  # in the order of numbers, not of letters
    assert tree(leaves(many, "state"), "state") == many
    doubled = map_state(lambda leaf: 2 * leaf, {"h": a, "k": [b, None]})
    assert torch.equal(doubled["h"], 2 * a)
    assert torch.equal(doubled["k"][0], 2 * b)
    assert doubled["k"][1] is None


def test_nats_are_of_the_targets():
    log_probs = torch.log(torch.tensor([[[0.5, 0.25, 0.25], [0.1, 0.2, 0.7]]]))
    nats = Categorical(log_probs, torch.zeros(1, 2, 1)).nats(torch.tensor([[1, PAD]]))
    assert nats[0, 0].exp().item() == pytest.approx(4)
    assert nats[0, 1].isnan()


def test_a_missing_target_has_no_gradient():
    scores = torch.zeros(1, 2, 3, requires_grad=True)
    prediction = Categorical(torch.log_softmax(scores, -1), scores)
    prediction.nats(torch.tensor([[1, PAD]])).nansum().backward()
    assert torch.equal(scores.grad[0, 1], torch.zeros(3))
    assert scores.grad[0, 0, 1].item() == pytest.approx(1 / 3 - 1)


def test_assembled_predictions_are_nan_where_nothing_was_read():
    part = Categorical(torch.ones(1, 2, 3), torch.ones(1, 2, 4))
    other = Categorical(torch.zeros(2, 1, 3), torch.zeros(2, 1, 4))
    whole = assemble([part, other], [2, 0, 3], torch.Size([4, 2]))
    for found, width in ((whole.log_probs, 3), (whole.hidden, 4)):
        assert found.shape == (4, 2, width)
        assert found[2].eq(1).all()
        assert found[[0, 3], 0].eq(0).all()
        assert found[1].isnan().all()
        assert found[[0, 3], 1].isnan().all()


def test_consecutive_predictions_are_one():
    parts = [Categorical(torch.rand(2, k, 3), torch.rand(2, k, 4)) for k in (1, 3)]
    whole = concatenate(parts)
    assert torch.equal(whole.log_probs[:, 1:], parts[1].log_probs)
    assert torch.equal(whole.hidden[:, :1], parts[0].hidden)
