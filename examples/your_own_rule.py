"""Your own rule: a term gives a gain, a pull, or both, from what training left behind.

The paper scales each weight's step by its gradients on the training data. This one needs no
statistics: a weight tensor moves in proportion to its own size. It adds up with any other term.
"""

from dataclasses import dataclass

from torch import Tensor
from your_own_model import bits_per_byte, trained

from dyneval import Decay, Dynamic, Prior, Static, Term


@dataclass(frozen=True)
class Proportional(Term):
    """gain = η · √mean(θ_g²), one number for each tensor."""

    learning_rate: float  # η

    def gain(self, prior: Prior) -> Tensor:
        return self.learning_rate * prior.theta.square().mean().sqrt()


if __name__ == "__main__":
    model = trained()
    rule = Proportional(learning_rate=1.0) + Decay(rate=1e-3)
    print(f"static   {bits_per_byte(Static(model)):.3f} bits a byte")
    print(f"dynamic  {bits_per_byte(Dynamic(model, rule)):.3f} bits a byte with {rule}")
