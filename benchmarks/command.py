"""How much of an engine's speed `dyneval evaluate` keeps, progress bar and all.

    python benchmarks/command.py MODEL CORPUS --limit 20001

The command runs as a process of its own in a terminal, and its own seconds are compared with those
of the bare loop of predict and learn on the same tokens, in turns.
"""

import argparse
import json
import os
import pty
import sys
import time
from statistics import median

from dyneval import Dynamic, corpora, evaluate, models
from dyneval.rules import rule

FLAGS = ("--rule", "sgd+decay", "--learning-rate", "0.1", "--decay-rate", "0.002")


def command(model, corpus, limit):
    """Return the seconds of the dynamic predictor, as the command tells them."""
    line = [sys.executable, "-m", "dyneval.cli", "evaluate", model, corpus, "--json", *FLAGS]
    out, inside = os.pipe()
    process, terminal = pty.fork()
    if not process:
        os.dup2(inside, 1)  # the object goes to us, the bar to the terminal
        os.execv(sys.executable, [*line, "--limit", str(limit)])
    os.close(inside)
    drawn = 0
    while True:
        try:
            drawn += len(os.read(terminal, 65536))
        except OSError:  # the command has ended
            break
    with os.fdopen(out) as file:
        found = json.load(file)
    os.waitpid(process, 0)
    if not drawn:
        sys.exit("no progress bar was drawn")
    return found["dynamic"]["seconds"]


def loop(model, corpus, limit):
    """Return the seconds of the bare loop."""
    checkpoint = models.load(model)
    text = corpora.load(corpus, checkpoint.vocabulary).read()[:limit]
    predictor = Dynamic(checkpoint.model, rule("sgd+decay", 0.1, 0.002))
    predictor.weights()  # made before the clock starts
    began = time.perf_counter()
    for _ in evaluate(predictor, text.stream, 5):
        pass
    return time.perf_counter() - began


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("corpus")
    parser.add_argument("--limit", type=int, default=20_001)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    what = options.model, options.corpus, options.limit
    pairs = [(command(*what), loop(*what)) for _ in range(options.rounds)]
    commands, loops = ([*each] for each in zip(*pairs, strict=True))
    tokens = options.limit - 1
    print(f"command: {tokens / median(commands):,.0f} tokens/s")
    print(f"loop:    {tokens / median(loops):,.0f} tokens/s")
    print(f"the command keeps {median(loops) / median(commands):.0%} of the engine's speed")


if __name__ == "__main__":
    main()
