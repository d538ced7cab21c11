"""The generic route: what a model may do with its parameters, and models never seen before."""

import pytest
import torch
from kernel_checks import RULES, difference, follow, priors
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from dyneval import kernels
from dyneval.engines import Reference
from dyneval.kernels.generic import Generic

VOCABULARY = 7


class Embedded(nn.Module):
    """An embedding, something between, a softmax; the context is a segment's own tokens."""

    def __init__(self, between, width=6):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.between = between
        self.output = nn.Linear(width, VOCABULARY)

    def hidden(self, tokens, state=None):
        return self.between(self.embedding(tokens)), None

    def logits(self, h):
        return self.output(h)


class Twice(nn.Module):
    """One linear map called twice."""

    def __init__(self):
        super().__init__()
        self.map = nn.Linear(6, 6)

    def forward(self, x):
        return self.map(torch.tanh(self.map(x)))


class InPlace(nn.Module):
    """Outputs and residuals that are written over."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6, bias=False)

    def forward(self, x):
        h = self.first(x).relu_()
        h = h * 1.0
        h += self.second(h * 0.5).tanh_()
        return h


class Odd(nn.Module):
    """Transposed, as a plain product, as a number, not at all; and where nothing may flow."""

    def __init__(self):
        super().__init__()
        self.square = nn.Parameter(torch.randn(6, 6) / 4)
        self.unused = nn.Parameter(torch.randn(3, 4, 2))
        self.scale = nn.Parameter(torch.tensor(0.5))

    def forward(self, x):
        h = torch.tanh(x @ self.square) + x.matmul(self.square.t()) * self.scale
        h = h + x[0, 0] @ self.square  # a vector
        h = h + (self.square * self.square).mean()
        return h + F.linear(x, self.square.detach())


class Block(nn.Module):
    """A Transformer block, written out."""

    def __init__(self, width=6, heads=2):
        super().__init__()
        self.heads = heads
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        shape = (batch, length, self.heads, width // self.heads)
        q, k, v = (p.view(shape).transpose(1, 2) for p in self.qkv(self.before(x)).chunk(3, -1))
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(x.shape))
        return x + self.narrow(F.gelu(self.wide(self.after(x))))


class Transformer(nn.Module):
    """Two blocks over what was read so far, the last 12 tokens; learned positions, tied softmax."""

    def __init__(self, width=6):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.positions = nn.Parameter(torch.randn(64, width) / 4)
        self.blocks = nn.Sequential(Block(), Block())
        self.norm = nn.LayerNorm(width)

    def hidden(self, tokens, state=None):
        seen = tokens if state is None else torch.cat([state["seen"], tokens], 1)
        x = self.embedding(seen) + self.positions[: seen.shape[1]]
        h = self.norm(self.blocks(x))
        return h[:, -tokens.shape[1] :], {"seen": seen[:, -12:]}

    def logits(self, h):
        return F.linear(h, self.embedding.weight)


class Gru(nn.Module):
    """A GRU of torch's, whose weights never pass through a linear map that Python sees."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 5)
        self.rnn = nn.GRU(5, 6, batch_first=True)
        self.output = nn.Linear(6, VOCABULARY)

    def hidden(self, tokens, state=None):
        state = None if state is None else state[0][None]
        h, state = self.rnn(self.embedding(tokens), state)
        return h, (state[0],)

    def logits(self, h):
        return self.output(h)


class Convolution(nn.Module):
    """Causal convolutions over the segment."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv1d(6, 8, 3), nn.Conv1d(8, 6, 2, bias=False)

    def forward(self, x):
        h = torch.relu(self.first(F.pad(x.transpose(1, 2), (2, 0))))
        return self.second(F.pad(h, (1, 0))).transpose(1, 2)


class Attention(nn.Module):
    """torch's own attention."""

    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(6, 2, 12, batch_first=True)

    def forward(self, x):
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1]).to(x)
        return self.layer(x, mask, is_causal=True)


class Sometimes(nn.Module):
    """An expert that gets some tokens of a long segment, and none of a short one."""

    def __init__(self):
        super().__init__()
        self.expert, self.table = nn.Linear(6, 6, bias=False), nn.Embedding(3, 6)

    def forward(self, x):
        some = x[:, : x.shape[1] // 4]
        numbers = torch.zeros(some.shape[1], dtype=torch.long, device=x.device)
        return x + self.expert(some).sum(1, keepdim=True) + self.table(numbers).sum(0)


class Slowed(nn.Module):
    """A weight that learns a tenth as fast: a view with a gradient of its own."""

    class View(torch.autograd.Function):
        @staticmethod
        def forward(ctx, weight):
            return weight.view_as(weight)

        @staticmethod
        def backward(ctx, gradient):
            return gradient * 0.1

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 6) / 3)

    def forward(self, x):
        return torch.tanh(F.linear(x, self.View.apply(self.weight)))


class Views(nn.Module):
    """A weight as views of it: all of its rows, and turned twice."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 6) / 3)

    def forward(self, x):
        return torch.tanh(F.linear(x, self.weight[:]) + x @ self.weight.t().t())


class Descending(nn.Module):
    """A step against a gradient is a part of the model, and learned through."""

    def __init__(self):
        super().__init__()
        self.energy, self.map = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x):
        with torch.enable_grad():
            y = x.detach().requires_grad_()
            energy = torch.tanh(self.energy(y)).sum()
            (gradient,) = torch.autograd.grad(energy, y, create_graph=True)
        return self.map(x - gradient)


class Recomputed(nn.Module):
    """Read once more on the way back, to save memory."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x):
        return checkpoint(lambda x: self.second(torch.tanh(self.first(x))), x, use_reentrant=False)


class Mapped(nn.Module):
    """One token at a time, as torch.vmap has it."""

    def __init__(self):
        super().__init__()
        self.map, self.table = nn.Linear(6, 6), nn.Embedding(3, 6)

    def forward(self, x):
        numbers = torch.arange(x.shape[1], device=x.device) % 3
        return torch.vmap(self.map)(x) + torch.vmap(self.table)(numbers)


def tied():
    model = Embedded(nn.Tanh())
    model.output.weight = model.embedding.weight
    return model


CASES = {
    "bias": lambda: Embedded(nn.Linear(6, 6)),
    "called twice": lambda: Embedded(Twice()),
    "shared": tied,
    "in place": lambda: Embedded(InPlace()),
    "odd uses": lambda: Embedded(Odd()),
    "convolution": lambda: Embedded(Convolution()),
    "sometimes no inputs": lambda: Embedded(Sometimes()),
    "views": lambda: Embedded(Views()),
    "a gradient of its own": lambda: Embedded(Slowed()),
    "gradients within": lambda: Embedded(Descending()),
    "activation checkpoint": lambda: Embedded(Recomputed()),
    "vmap": lambda: Embedded(Mapped()),
    "padded and sparse embedding": lambda: Embedded(nn.Identity()),
    "GRU": Gru,
    "torch's attention": lambda: Embedded(Attention()),
    "Transformer": Transformer,
}


def make(name):
    torch.manual_seed(7)
    model = CASES[name]().double().eval()
    if name.startswith("padded"):
        model.embedding = nn.Embedding(VOCABULARY, 6, padding_idx=2, sparse=True).double()
    return model


@pytest.mark.parametrize("rule", [RULES[0], RULES[3]], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_any_model_is_the_references(name, rule, text):
    model = make(name)
    if name.startswith("padded"):  # the reference is for gradients that are not sparse
        model.embedding.sparse = False
    start = priors(model)
    expected = Reference(model, rule, start)
    if name.startswith("padded"):
        model.embedding.sparse = True
    found = Generic(model, rule, start)
    lengths = [5, 1, 3, 2, 9] * 3
    for ours, theirs in zip(
        follow(found, text, lengths), follow(expected, text, lengths), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)
    assert difference(found, expected, start) < 1e-9


@pytest.mark.parametrize("name", ["gradients within", "activation checkpoint", "vmap"])
def test_reading_only_keeps_nothing(name, text):
    """Static reads a model that takes gradients itself, and remembers none of them."""
    model = make(name)
    forward, how = kernels.fast_forward(model)
    assert how.startswith("generic")
    expected, _ = model.hidden(text[None, :5])
    for _ in range(2):
        torch.testing.assert_close(forward.hidden(text[None, :5])[0], expected.detach())
    assert not any(
        weight.maps or weight.lookups for weight, _ in forward._capture._matrices.values()
    )


def test_many_inputs_at_once_go_through_torch(text):
    model = make("Transformer")
    start = priors(model)
    found, expected = Generic(model, RULES[3], start), Reference(model, RULES[3], start)
    for each in (found, expected):
        follow(each, text, [50, 50])
    assert difference(found, expected, start) < 1e-9


@pytest.mark.parametrize(
    ("name", "whole"),
    [
        ("bias", {"between.bias", "output.bias"}),
        ("shared", {"output.bias"}),
        ("odd uses", {"between.square", "between.scale", "output.bias"}),
    ],
)
def test_no_gradient_of_a_captured_matrix_is_formed(name, whole, text, monkeypatch):
    """Only what is used in another way gets one from autograd."""
    formed = set()
    jobs = Generic._jobs

    def spy(self, record, weight, gradient, kept):
        formed.update({weight.name} if gradient is not None else ())
        return jobs(self, record, weight, gradient, kept)

    monkeypatch.setattr(Generic, "_jobs", spy)
    model = make(name)
    follow(Generic(model, RULES[3], priors(model)), text, [5])
    assert formed == whole


@pytest.mark.parametrize("name", ["lstm", "awd-lstm, tied", "mlstm"])
def test_the_projects_own_models_are_captured_as_well(name, text, monkeypatch):
    from conftest import tiny

    formed = set()
    jobs = Generic._jobs

    def spy(self, record, weight, gradient, kept):
        formed.update({weight.name} if gradient is not None else ())
        return jobs(self, record, weight, gradient, kept)

    monkeypatch.setattr(Generic, "_jobs", spy)
    model = tiny(name)
    follow(Generic(model, RULES[3], priors(model)), text, [5])
    assert all("bias" in weight for weight in formed)


def test_a_change_in_place_of_what_a_map_was_given_is_an_error():
    """As in autograd: the gradient would be another one's."""

    class Overwriting(nn.Module):
        def __init__(self):
            super().__init__()
            self.map = nn.Linear(6, 6)

        def forward(self, x):
            h = torch.tanh(x) * 1
            y = self.map(h)
            h.mul_(2)
            return y

    model = Embedded(Overwriting()).double()
    found = Generic(model, RULES[0], priors(model))
    found.predict(torch.tensor([[1, 2]]))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        found.learn(torch.tensor([[2, 3]]))
