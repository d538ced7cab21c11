"""The paper's loop written plainly, one token and one text at a time.

The rest of the project is compared with this file, so it imports nothing of it, and nothing here
is fast. Weights are a dict of tensors by name, a text is a list of token numbers, equation numbers
are the paper's.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

Weights = dict[str, Tensor]
# (θ_l, θ_g, ∇L, MS_g, avg(√MS_g)) of one tensor -> θ_l
Update = Callable[[Tensor, Tensor, Tensor, Tensor, float], Tensor]


def weights_of(module: torch.nn.Module) -> Weights:
    """Return copies of a module's weights by name, a tied one once."""
    return {name: value.detach().clone() for name, value in module.named_parameters()}


def step(weights: Weights, token: int, state: list | None) -> tuple[Tensor, Tensor, list]:
    """One token read -> (V,) log-probabilities of the next, (H,) hidden state, all h and c."""
    x = weights["embedding.weight"][token]
    after = []
    while f"layers.{len(after)}.weight_hh" in weights:
        layer = f"layers.{len(after)}."
        units = weights[layer + "weight_hh"].shape[0] // 4
        h, c = state[len(after)] if state else (x.new_zeros(units), x.new_zeros(units))
        gates = weights[layer + "weight_ih"] @ x
        if layer + "weight_mh" in weights:  # mLSTM
            m = (weights[layer + "weight_mx"] @ x) * (weights[layer + "weight_mh"] @ h)
            gates = gates + weights[layer + "weight_hh"] @ m + weights[layer + "bias"]
        else:
            gates = gates + weights[layer + "weight_hh"] @ h
            gates = gates + weights[layer + "bias_ih"] + weights[layer + "bias_hh"]
        i, f, g, o = gates.split(units)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        x = torch.sigmoid(o) * torch.tanh(c)
        if layer + "hidden_matrix" in weights:  # sparse: M in its place among all units
            x = x + weights[layer + "hidden_matrix"] @ x
        after.append((x, c))
    tied = weights["embedding.weight"]
    logits = weights.get("output.weight", tied) @ x + weights["output.bias"]
    return logits - torch.logsumexp(logits, 0), x, after


def sgd(learning_rate: float) -> Update:
    """Return θ_l − η∇L."""

    def update(theta, trained, gradient, mean_square, average):
        return theta - learning_rate * gradient

    return update


def sgd_decay(learning_rate: float, decay_rate: float) -> Update:
    """Return eq. 4: θ_l − η∇L + λ(θ_g − θ_l)."""

    def update(theta, trained, gradient, mean_square, average):
        return theta - learning_rate * gradient + decay_rate * (trained - theta)

    return update


def rms_decay(learning_rate: float, decay_rate: float, epsilon: float) -> Update:
    """Return eq. 6: θ_l − η∇L / (√MS_g + ε) + λ(θ_g − θ_l)."""

    def update(theta, trained, gradient, mean_square, average):
        scaled = gradient / (torch.sqrt(mean_square) + epsilon)
        return theta - learning_rate * scaled + decay_rate * (trained - theta)

    return update


def rms_rms_decay(learning_rate: float, decay_rate: float, epsilon: float) -> Update:
    """Return eq. 8: θ_l − η∇L / (√MS_g + ε) + λ(θ_g − θ_l) ⊙ RMS_norm, clipped at 1/λ."""

    def update(theta, trained, gradient, mean_square, average):
        scaled = gradient / (torch.sqrt(mean_square) + epsilon)
        rms_norm = torch.sqrt(mean_square) / average  # eq. 7
        if decay_rate > 0:
            rms_norm = torch.minimum(rms_norm, torch.full_like(rms_norm, 1 / decay_rate))
        return theta - learning_rate * scaled + decay_rate * (trained - theta) * rms_norm

    return update


def average_over_tensors(mean_squares: Weights) -> float:
    """Return avg(√MS_g) as the authors' code has it: the mean of the tensors' means."""
    means = [torch.sqrt(value).mean().item() for value in mean_squares.values()]
    return sum(means) / len(means)


def average_over_weights(mean_squares: Weights) -> float:
    """Return avg(√MS_g) as the text reads: the mean over all weights."""
    every = torch.cat([torch.sqrt(value).flatten() for value in mean_squares.values()])
    return every.mean().item()


class Reading(NamedTuple):
    """What came of reading a text of T tokens."""

    log_probs: Tensor  # (T - 1, V) of the token after each but the last
    hidden: Tensor  # (T - 1, H)
    nats: Tensor  # (T - 1,) of every token but the first
    weights: Weights  # θ_l after the last segment


def read(
    weights: Weights,
    text: list[int],
    n: int,
    update: Update | None = None,
    mean_squares: Weights | None = None,
    average: Callable[[Weights], float] = average_over_tensors,
    whole: Callable[[Weights], Weights] = lambda theta: theta,
) -> Reading:
    """Score a text segment by segment (eq. 2), with one update after each; without one, static.

    Where not all of a model's weights adapt, `weights` are those that do, and `whole` makes all
    of them.
    """
    trained = {name: value.detach() for name, value in weights.items()}
    squares = mean_squares or {name: torch.ones_like(value) for name, value in trained.items()}
    mean = average(squares)
    theta = {name: value.clone() for name, value in trained.items()}
    state, log_probs, hidden = None, [], []
    for start in range(0, len(text) - 1, n):
        theta = {name: value.detach().requires_grad_() for name, value in theta.items()}
        losses = []
        for t in range(start, min(start + n, len(text) - 1)):
            p, h, state = step(whole(theta), text[t], state)
            losses.append(-p[text[t + 1]])
            log_probs.append(p.detach())
            hidden.append(h.detach())
        if update:
            gradients = gradient_of(sum(losses) / len(losses), theta)
            with torch.no_grad():
                theta = {
                    name: update(theta[name], trained[name], gradients[name], squares[name], mean)
                    for name in theta
                }
        state = [(h.detach(), c.detach()) for h, c in state]
    nats = [-p[token] for p, token in zip(log_probs, text[1:], strict=True)]
    last = {name: value.detach() for name, value in theta.items()}
    return Reading(torch.stack(log_probs), torch.stack(hidden), torch.stack(nats), last)


def gradient_of(loss: Tensor, theta: Weights) -> Weights:
    """Return ∇L by name, zero for a weight that the loss does not depend on."""
    gradients = torch.autograd.grad(loss, list(theta.values()), materialize_grads=True)
    return dict(zip(theta, gradients, strict=True))


def mean_squares(weights: Weights, text: list[int], batch: int, n: int) -> tuple[Weights, int]:
    """Return MS_g over a text cut into `batch` contiguous streams (eq. 5), and N_b.

    A mini-batch is n tokens of every stream, its loss the mean over all of them; the last one,
    shorter, counts as any other.
    """
    theta = {name: value.detach().requires_grad_() for name, value in weights.items()}
    length = len(text) // batch
    streams = [text[row * length : (row + 1) * length] for row in range(batch)]
    states = [None] * batch
    sums = {name: torch.zeros_like(value) for name, value in weights.items()}
    batches = 0
    for start in range(0, length - 1, n):
        losses = []
        for row, stream in enumerate(streams):
            for t in range(start, min(start + n, length - 1)):
                p, _, states[row] = step(theta, stream[t], states[row])
                losses.append(-p[stream[t + 1]])
        gradients = gradient_of(sum(losses) / len(losses), theta)
        sums = {name: sums[name] + gradients[name] ** 2 for name in sums}
        states = [[(h.detach(), c.detach()) for h, c in state] for state in states]
        batches += 1
    return {name: value.detach() / batches for name, value in sums.items()}, batches


def cached(
    log_probs: Tensor,
    hidden: Tensor,
    text: list[int],
    size: int,
    weight: float,
    scale: float,
    full_window: bool = False,
) -> Tensor:
    """Return (T - 1, V) log-probabilities of a base mixed with those of the neural cache.

    p = (1 − λ) p_base + λ p_cache and p_cache(x_{t+1}) ∝ Σ_i 1[x_{i+1}] exp(ω h_t · h_i), over the
    last `size` pairs (h_i, x_{i+1}) that had been read when x_{t+1} was still to come.
    """
    mixed = []
    for t in range(len(text) - 1):  # x_t has been read
        votes = torch.zeros_like(log_probs[t])
        pairs = range(max(0, t - size), t)
        for i in pairs:
            votes[text[i + 1]] += math.exp(scale * (hidden[t] @ hidden[i]).item())
        p = torch.exp(log_probs[t])
        if len(pairs) >= (size if full_window else 1):
            p = (1 - weight) * p + weight * votes / votes.sum()
        mixed.append(torch.log(p))
    return torch.stack(mixed)
