"""The generic route on a GPU: autograd runs any model as it is, few launches do the updates.

`Foreach` makes them of torch's own operations on lists of tensors. `Triton` moves the captured
matrices, most of a model, by a kernel that forms the gradient DᵀX as it goes; the rest is as in
`Foreach`. Neither looks at a number on the CPU, so that nothing waits for the GPU, and segments
that look alike are recorded and played (`recording.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from dyneval.gradient_stats import Prior
from dyneval.kernels.capture import Weight, multiply
from dyneval.kernels.rates import Rates
from dyneval.kernels.recording import Recorder, Recording
from dyneval.kernels.route import Route, known
from dyneval.reading import Categorical, State
from dyneval.rules import Amount, Rule


class Foreach(Route):
    """An `engines.Engine` for any model, of torch's operations only."""

    def __init__(self, model: Any, rule: Rule, priors: Mapping[str, Prior]) -> None:
        theta = {name: weight.detach().clone() for name, weight in model.named_parameters()}
        super().__init__(model, theta, priors, multiply)
        self._rule = rule
        self._amounts: dict[str, tuple[Amount, Amount]] = {}
        self._recorder = Recorder(self._record_reading, self._record_learning, self._device)
        self._played: tuple[Recording, Tensor] | None = None  # the open segment's, and its tokens

    def predict(self, tokens: Tensor) -> Categorical:
        """(1, T) tokens -> what follows each, by the weights of this segment."""
        if not self._open and self._played is None:
            state = self._reader.split().get(0)
            recording = self._recorder.find(tokens, state)
            if recording is not None:
                self._played = recording, tokens
                return recording.read(tokens, state)
            super()._cut()  # nothing stays of a recording that failed
        self._read_again()
        return super().predict(tokens)

    def learn(self, targets: Tensor) -> None:
        """(1, n) what followed -> one step of the rule on its mean nats."""
        if self._played is not None and targets.shape == self._played[1].shape:
            recording, _ = self._played
            recording.learn(targets)
            self._reader.states = [([0], recording.state)]
            self._cut()
        else:
            self._read_again()
            super().learn(targets)

    def _read_again(self) -> None:
        """Read an open segment that was played once more, with a graph for what comes now."""
        if self._played is not None:
            (_, tokens), self._played = self._played, None
            super().predict(tokens)

    def _cut(self) -> None:
        """End the segment."""
        self._played = None
        super()._cut()

    @torch.enable_grad()
    def _record_reading(self, tokens: Tensor, state: State) -> tuple[Categorical, State]:
        hidden, after = self._capture.run(self._reader.model.hidden, tokens, state)
        logits = self._capture.run(self._reader.model.logits, hidden)
        return Categorical(torch.log_softmax(logits, -1), hidden), after

    @torch.enable_grad()
    def _record_learning(self, prediction: Categorical, targets: Tensor) -> None:
        self._step(prediction.nats(targets).mean())
        super()._cut()

    def _move(self, gradients: Sequence[Tensor | None]) -> None:
        self._pull_back(self._weights)  # first: it is towards θ_g from where the segment was read
        for weight in self._weights:
            self._use(weight)
        pairs = zip(self._weights, gradients, strict=True)
        self._descend([(weight, gradient) for weight, gradient in pairs if gradient is not None])

    def _of(self, weight: Weight) -> tuple[Amount, Amount]:
        """Return gain and pull of a weight, kept once they were needed."""
        name = weight.name
        if name not in self._amounts:
            prior = self._priors[name]
            self._amounts[name] = self._rule.gain(prior), self._rule.pull(prior)
        return self._amounts[name]

    def _pull_back(self, weights: Sequence[Weight]) -> None:
        """Pull weights towards θ_g, all at once."""
        pulls = [self._of(weight)[1] for weight in weights]
        if not pulls or not (isinstance(pulls[0], Tensor) or pulls[0]):
            return
        # of one kind for all weights: numbers, or tensors
        amounts: Any = pulls if isinstance(pulls[0], Tensor) else pulls[0]
        towards = [self._priors[weight.name].theta for weight in weights]
        torch._foreach_lerp_([weight.parameter for weight in weights], towards, amounts)

    def _descend(self, pairs: Sequence[tuple[Weight, Tensor]]) -> None:
        """Move weights against gradients that autograd has, all at once."""
        if not pairs:
            return
        thetas: list[Tensor] = [weight.parameter for weight, _ in pairs]
        gradients = [gradient.to_dense() for _, gradient in pairs]
        gains: Any = [self._of(weight)[0] for weight, _ in pairs]
        if isinstance(gains[0], Tensor):
            torch._foreach_addcmul_(thetas, gradients, gains, value=-1)
        else:
            torch._foreach_add_(thetas, gradients, alpha=-gains[0])

    def _use(self, weight: Weight) -> None:
        """Move a matrix by what was captured of its uses; the pull has been."""
        theta = weight.parameter
        if weight.maps:
            x, d = joined(weight.maps)
            gain = self._of(weight)[0]
            if isinstance(gain, Tensor):
                theta.addcmul_(d.t() @ x, gain, value=-1)
            else:
                theta.addmm_(d.t(), x, alpha=-gain)
        if weight.lookups:
            tokens, d = joined(weight.lookups)
            gain = self._of(weight)[0]
            rows = gain[tokens] if isinstance(gain, Tensor) else gain
            # sorted by rows, and so the same every time, as index_add_ is not
            theta.index_put_((tokens,), d * -rows, accumulate=True)


class Triton(Foreach):
    """An `engines.Engine` for any model on a GPU; no gradient of a captured matrix is formed."""

    def __init__(self, model: Any, rule: Rule, priors: Mapping[str, Prior]) -> None:
        from dyneval.kernels.triton_updates import Update

        numbers = known(rule)
        super().__init__(model, rule, priors)
        self._updates = {
            weight.name: Update(weight.parameter.detach(), priors[weight.name], numbers)
            for weight in self._weights
            if weight.parameter.dim() == 2
        }

    def _pull_back(self, weights: Sequence[Weight]) -> None:
        """Pull back what was not captured; the kernel does it to the others as it moves them."""
        super()._pull_back([weight for weight in weights if not (weight.maps or weight.lookups)])

    def _use(self, weight: Weight) -> None:
        """Move a matrix by what was captured of its uses, and back."""
        if weight.maps:
            self._updates[weight.name].map(*joined(weight.maps))
        if weight.lookups:
            tokens, d = joined(weight.lookups)
            self._updates[weight.name].look_up(tokens, d, pulled=bool(weight.maps))


def joined(uses: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Return the rows of several uses as those of one."""
    if len(uses) == 1:
        return uses[0]
    first, second = zip(*uses, strict=True)
    return torch.cat(first), torch.cat(second)


@cache
def without_triton(device: torch.device) -> str | None:
    """Say why Triton cannot run on a device, if so: it is tried."""
    try:
        from dyneval.kernels.triton_updates import Update

        theta, ones = torch.zeros(1, 1, device=device), torch.ones(1, 1, device=device)
        Update(theta, Prior(theta), Rates(plain=1.0)).map(ones, ones)
        moved = theta.item()
    except Exception as error:  # whatever it is, torch's own operations can do without
        return f"Triton cannot be used ({' '.join(str(error).split())})"
    return None if moved == -1 else "Triton computes other numbers than it should here"
