"""Many streams at once: sparse dynamic evaluation of B streams, beside reading them, and one.

The mLSTM of 1024 units with a hidden matrix of 256, n = 20. All take turns in one process; figures
are medians over the segments of all rounds, and only ratios within one run mean much.
"""

import argparse
import json
import platform
import resource
import time
from pathlib import Path
from statistics import median, quantiles

import baselines
import torch

from dyneval import devices, targets
from dyneval.gradient_stats import Prior
from dyneval.models.mlstm import MLSTM
from dyneval.predictors import Dynamic, Static
from dyneval.rules import Rms, RmsDecay

SYMBOLS, UNITS, EMBEDDING, MATRIX, LENGTH = 205, 1024, 64, 256, 20
FLOORS = {
    "sparse_over_torch_static": 8.0,
    "part_of_matmul_rate": 0.4,
    "sparse_time_over_static": 2.5,
}


def model_of(device):
    torch.manual_seed(1)
    model = MLSTM(SYMBOLS, embedding_size=EMBEDDING, units=UNITS).eval()
    return model.to(device)


def sparse(model):
    own = targets.HiddenMatrix(MATRIX).of(model)
    priors = {
        name: Prior(weight.detach(), torch.full_like(weight, 1e-3), 1e-3)
        for name, weight in own.named_parameters()
    }
    return Dynamic(own, Rms(1e-5) + RmsDecay(1e-3), priors)


def operations():
    """Return the operations of a token: forwards, and of its hidden states' gradients backwards."""
    recurrent = 5 * UNITS * UNITS + SYMBOLS * UNITS + 2 * MATRIX * MATRIX
    forward = 2 * (recurrent + 5 * UNITS * EMBEDDING)
    return forward, forward + 2 * recurrent


def matmul_rate(device):
    """Return operations a second of a product of large float32 matrices."""
    a, b = torch.randn(2048, 2048, device=device), torch.randn(2048, 2048, device=device)
    best = float("inf")
    for _ in range(5):
        began = now(device)
        a @ b
        best = min(best, now(device) - began)
    return 2 * 2048**3 / best


def now(device):
    if device != "cpu":
        torch.cuda.synchronize()
    return time.perf_counter()


class Torch:
    """The layers of torch that the same model would be made of, one stream, scoring only."""

    def __init__(self, device):
        self.loop = baselines.TorchStatic(baselines.MLSTM(SYMBOLS, EMBEDDING, UNITS).to(device))

    def segment(self, tokens):
        self.loop.segment(tokens[:, :-1], tokens[:, 1:], lambda: None)


class Reading:
    """A predictor of the package."""

    def __init__(self, predictor):
        self.predictor = predictor

    def segment(self, tokens):
        self.predictor.predict(tokens[:, :-1]).nats(tokens[:, 1:])
        self.predictor.learn(tokens[:, 1:])


def timed(reader, rows, segments, generator, device):
    """Return the seconds of each of some segments, after one that warms up."""
    seconds = []
    for _ in range(segments + 1):
        tokens = torch.randint(SYMBOLS, (rows, LENGTH + 1), generator=generator)
        began = now(device)
        reader.segment(tokens)
        seconds.append(now(device) - began)
    return seconds[1:]


def adapted_bytes(rows):
    """Return how much more memory a sparse predictor of so many streams keeps than of one."""

    def resident():
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

    model, sizes = model_of("cpu"), []
    kept = []
    for count in (1, rows):
        before = resident()
        predictor = sparse(model)
        predictor.weights(count - 1)
        kept.append(predictor)
        sizes.append(resident() - before)
    return sizes[1] - sizes[0]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--segments", type=int, default=2, help="of a reader in each round")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", help="a file for all figures")
    options = parser.parse_args()
    device, rows = options.device, options.streams
    grown = adapted_bytes(rows) if device == "cpu" else None
    model = model_of(device)
    readers = {
        "torch static": (Torch(device), 1),
        "static": (Reading(Static(model, "reference")), rows),
        "sparse": (Reading(sparse(model)), rows),
    }
    generator = torch.Generator().manual_seed(1)
    seconds, rates = {name: [] for name in readers}, []
    for _ in range(options.rounds):
        rates.append(matmul_rate(device))
        for name, (reader, count) in readers.items():
            seconds[name] += timed(reader, count, options.segments, generator, device)
    pace = {
        name: [count * LENGTH / q for q in reversed(quantiles(seconds[name], n=4))]
        for name, (_, count) in readers.items()
    }
    rate, middle = median(rates), {name: each[1] for name, each in pace.items()}
    figures = {
        "tokens_per_second": pace,
        "matmul_operations_per_second": rate,
        "sparse_over_torch_static": middle["sparse"] / middle["torch static"],
        "part_of_matmul_rate": middle["sparse"] * operations()[1] / rate,
        "sparse_time_over_static": middle["static"] / middle["sparse"],
        "adapted_bytes_a_stream": None if grown is None else grown / (rows - 1),
        "matrix_bytes": 4 * MATRIX**2,
    }
    about = {
        "machine": f"{platform.system()} {platform.machine()}",
        "device": devices.describe(torch.device(device)),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "streams": rows,
    }
    show(figures, about)
    if options.json:
        Path(options.json).write_text(json.dumps({"about": about, "figures": figures}, indent=1))


def show(figures, about):
    print(f"\nmLSTM {UNITS}, hidden matrix of {MATRIX}, n = {LENGTH}, {about['streams']} streams")
    for name, (low, middle, high) in figures["tokens_per_second"].items():
        print(f"    {name:14}{middle:10,.0f} tokens/s  ({low:,.0f} to {high:,.0f})")
    print(f"    float32 products: {figures['matmul_operations_per_second'] / 1e9:,.0f} GFLOP/s")
    for key, floor in FLOORS.items():
        most = "time" in key
        fine = figures[key] <= floor if most else figures[key] >= floor
        sign, missed = "≤" if most else "≥", "" if fine else "   MISSED"
        print(f"    {key.replace('_', ' '):28}{figures[key]:7.2f}   {sign} {floor:g}{missed}")
    if figures["adapted_bytes_a_stream"] is not None:
        print(
            f"    memory grows by {figures['adapted_bytes_a_stream']:,.0f} bytes a stream, "
            f"whose matrix has {figures['matrix_bytes']:,}"
        )


if __name__ == "__main__":
    main()
