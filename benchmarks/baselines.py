"""What the engines are compared with: PyTorch's own layers, and the update as one would write it.

Each model here takes a segment and a state and returns logits and a state, by torch's fastest own
means. `AuthorsLoop` is the method's plain loop: forward, backward, then eq. 8 for each parameter,
every intermediate result a fresh tensor.
"""

import torch
from torch import nn
from torch.nn import functional as F

from dyneval.reading import evaluating


class LSTM(nn.Module):
    """An embedding, `nn.LSTM` layers of the given widths, a softmax."""

    def __init__(self, symbols, embedding_size, widths, tied=False):
        super().__init__()
        self.embedding = nn.Embedding(symbols, embedding_size)
        inputs = [embedding_size, *widths]
        self.layers = nn.ModuleList(
            nn.LSTM(i, u, batch_first=True) for i, u in zip(inputs, widths, strict=False)
        )
        self.output = nn.Linear(widths[-1], symbols)
        if tied:
            self.output.weight = self.embedding.weight

    def forward(self, tokens, state=None):
        x, after = self.embedding(tokens), []
        for k, layer in enumerate(self.layers):
            x, last = layer(x, state and state[k])
            after.append(last)
        return self.output(x), after


class MLSTM(nn.Module):
    """A multiplicative LSTM: a segment's inputs are projected in one product."""

    def __init__(self, symbols, embedding_size, units):
        super().__init__()
        self.units = units
        self.embedding = nn.Embedding(symbols, embedding_size)
        self.inputs = nn.Linear(embedding_size, 5 * units)  # W_mx and W_ih
        self.multiply = nn.Linear(units, units, bias=False)
        self.recurrent = nn.Linear(units, 4 * units, bias=False)
        self.output = nn.Linear(units, symbols)

    def forward(self, tokens, state=None):
        x = self.embedding(tokens)
        h, c = state or [x.new_zeros(len(tokens), self.units)] * 2
        outputs = []
        for projected in self.inputs(x).unbind(1):
            factor, gates = projected.split([self.units, 4 * self.units], 1)
            i, f, g, o = (gates + self.recurrent(factor * self.multiply(h))).chunk(4, 1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
            outputs.append(h)
        return self.output(torch.stack(outputs, 1)), [h, c]


class Block(nn.Module):
    """Attention over what is remembered and the segment, then two linear maps."""

    def __init__(self, width, heads, wide):
        super().__init__()
        self.heads = heads
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, wide), nn.Linear(wide, width)

    def forward(self, x, memory, context):
        batch, length, width = x.shape
        shape = (batch, length, self.heads, width // self.heads)
        q, k, v = (p.view(shape).transpose(1, 2) for p in self.qkv(self.before(x)).chunk(3, -1))
        if memory is not None:
            k, v = torch.cat([memory[0], k], 2), torch.cat([memory[1], v], 2)
        mask = torch.ones(length, k.shape[2], dtype=torch.bool, device=x.device)
        mask = mask.tril(k.shape[2] - length)
        attended = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + self.out(attended.transpose(1, 2).reshape(x.shape))
        x = x + self.narrow(F.gelu(self.wide(self.after(x))))
        kept = max(0, k.shape[2] - context)
        return x, (k[:, :, kept:], v[:, :, kept:])


class Transformer(nn.Module):
    """A Transformer that remembers keys and values of its last `context` tokens.

    It has dyneval's two methods as well; order is told by the causal mask alone.
    """

    def __init__(self, symbols, width, wide, depth, context, heads=8):
        super().__init__()
        self.context = context
        self.embedding = nn.Embedding(symbols, width)
        self.blocks = nn.ModuleList(Block(width, heads, wide) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.output = nn.Linear(width, symbols)

    def hidden(self, tokens, state=None):
        x, after = self.embedding(tokens), []
        kept = max(0, self.context - tokens.shape[1])  # with the segment: the context
        for k, block in enumerate(self.blocks):
            x, memory = block(x, state and state[k], kept)
            after.append(memory)
        return self.norm(x), tuple(after)

    def logits(self, h):
        return self.output(h)

    def forward(self, tokens, state=None):
        h, state = self.hidden(tokens, state)
        return self.logits(h), state


def _cut(state):
    return [s.detach() if torch.is_tensor(s) else tuple(t.detach() for t in s) for s in state]


def to_model(model, *tokens):
    """Return tokens where a model is."""
    device = next(model.parameters()).device
    return [each.to(device) for each in tokens]


class AuthorsLoop:
    """Dynamic evaluation as the method is told, parameter by parameter."""

    def __init__(self, model, learning_rate, decay_rate, epsilon):
        self.model, self.state = evaluating(model), None
        self.rates = learning_rate, decay_rate, epsilon
        self.priors = [
            (p.detach().clone(), torch.full_like(p, 1e-3), torch.ones_like(p))
            for p in model.parameters()
        ]  # θ_g, √MS_g, RMS_norm

    def segment(self, inputs, targets, lap):
        """Score a segment and learn from it; `lap` is called after each of the three parts."""
        rate, decay, epsilon = self.rates
        inputs, targets = to_model(self.model, inputs, targets)
        self.model.zero_grad()
        logits, state = self.model(inputs, self.state)
        loss = F.cross_entropy(logits[0], targets[0])
        self.state = _cut(state)
        lap()
        loss.backward()
        lap()
        for p, (trained, rms, norm) in zip(self.model.parameters(), self.priors, strict=True):
            pull = decay * norm.clamp(max=1 / decay)
            p.data = p.data - rate * p.grad / (rms + epsilon) + pull * (trained - p.data)
        lap()


class TorchStatic:
    """Scoring alone."""

    def __init__(self, model):
        self.model, self.state = model.eval(), None

    @torch.no_grad()
    def segment(self, inputs, targets, lap):
        inputs, targets = to_model(self.model, inputs, targets)
        logits, self.state = self.model(inputs, self.state)
        F.cross_entropy(logits[0], targets[0])
        lap()
