"""Your own model: any `nn.Module` with `hidden` and `logits` learns as it reads.

A small GRU is trained on a manual for a few seconds; then it reads a program, new to it.
"""

import inspect
import math
import pydoc_data.topics
import textwrap

import torch
from torch import Tensor, nn

from dyneval import Dynamic, Sgd, Static, evaluate, segments
from dyneval.streams import parallel

MANUAL = torch.tensor(list("\n".join(pydoc_data.topics.topics.values()).encode())[:200_000])
PROGRAM = torch.tensor([list(inspect.getsource(textwrap).encode())[:6_000]])  # (1, T)


class GRU(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, 32)
        self.gru = nn.GRU(32, 128, batch_first=True)
        self.output = nn.Linear(128, 256)

    def hidden(self, tokens: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        h, last = self.gru(self.embedding(tokens), None if state is None else state[None])
        return h, last[0]  # (B, T, H), and a state with the streams first: (B, H)

    def logits(self, h: Tensor) -> Tensor:
        return self.output(h)


def trained() -> GRU:
    torch.manual_seed(1)
    model = GRU()
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)
    for inputs, targets in segments(parallel(MANUAL, 32), 50):
        logits = model.logits(model.hidden(inputs)[0])  # from the zero state, for simplicity
        optimizer.zero_grad()
        nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten()).backward()
        optimizer.step()
    return model


def bits_per_byte(predictor: Static | Dynamic) -> float:
    nats = torch.cat(list(evaluate(predictor, PROGRAM, segment_length=20)), 1)  # (1, T - 1)
    return nats.mean().item() / math.log(2)


if __name__ == "__main__":
    model = trained()
    print(f"static   {bits_per_byte(Static(model)):.3f} bits a byte")
    print(f"dynamic  {bits_per_byte(Dynamic(model, Sgd(learning_rate=0.2))):.3f} bits a byte")
