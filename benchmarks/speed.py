"""Tokens per second of reading, and of learning as well, side by side in one run.

The models have the sizes of the paper's and random weights: speed does not depend on their
values. Each predictor reads the same text; the best of several parts counts.
"""

import time
from itertools import islice

import torch

from dyneval import Dynamic, Prior, Rms, RmsDecay, Sgd, Static, evaluate
from dyneval.models import ARCHITECTURES

MODELS = {  # name: architecture, symbols, settings, n
    "LSTM 2×650": ("lstm", 10_000, {"embedding_size": 650, "units": 650, "layers": 2}, 5),
    "mLSTM 512": ("mlstm", 256, {"embedding_size": 64, "units": 512}, 20),
}
SECONDS = 5.0  # of reading, for each predictor
PARTS = 5


def tokens_per_second(predictor, symbols, segment_length):
    """Return the speed over the best part of `SECONDS`, once the first segments are read."""
    generator = torch.Generator().manual_seed(1)
    stream = torch.randint(symbols, (1, 1_000_000), generator=generator)
    segments = evaluate(predictor, stream, segment_length)
    for _ in islice(segments, 3):
        pass
    best = 0.0
    for _ in range(PARTS):
        began, tokens = time.perf_counter(), 0
        for nats in segments:
            tokens += nats.numel()
            if (seconds := time.perf_counter() - began) > SECONDS / PARTS:
                break
        best = max(best, tokens / seconds)
    return best


if __name__ == "__main__":
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, tokens per second\n")
    print(f"{'':12}{'n':>4}{'static':>10}{'Sgd':>10}{'Rms + RmsDecay':>18}{'of static':>12}")
    for name, (architecture, symbols, settings, length) in MODELS.items():
        torch.manual_seed(1)
        model = ARCHITECTURES[architecture](symbols, **settings)
        priors = {
            name: Prior(theta.detach(), rms=torch.full_like(theta, 1e-3), mean_rms=1e-3)
            for name, theta in model.named_parameters()
        }
        static, sgd, rms = (
            tokens_per_second(predictor, symbols, length)
            for predictor in (
                Static(model),
                Dynamic(model, Sgd(1e-3), priors),
                Dynamic(model, Rms(1e-6) + RmsDecay(1e-3), priors),
            )
        )
        print(f"{name:12}{length:4}{static:10,.0f}{sgd:10,.0f}{rms:18,.0f}{rms / static:12.0%}")
