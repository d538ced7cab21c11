"""How long a segment takes: dyneval's engines beside the authors' loop and torch's own layers.

Two processes, one with the default malloc and one with a tuned malloc, take turns: in each round
each of them times a few segments of every engine, so that what else the machine does falls on all
alike. Figures are medians with quartiles over all rounds; only ratios within one run mean much.
With `--device cuda` there is one process: malloc has no part in it.
"""

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import time
from dataclasses import replace
from importlib.metadata import distributions
from pathlib import Path
from statistics import quantiles

# temporaries come from memory that is kept, not from pages that are new each time
TUNED = {"MALLOC_MMAP_THRESHOLD_": "4294967296", "MALLOC_TRIM_THRESHOLD_": "4294967296"}
WARM_UP = 1  # segments at each turn: another engine has had the caches
LARGE = 64 << 20  # numbers, more than any cache


def work():
    """Time what the lines on standard input name, and answer each with a line."""
    import torch
    from cases import CASES

    threads = os.environ.get("DYNEVAL_BENCHMARK_THREADS")
    if threads:
        torch.set_num_threads(int(threads))
    generator = torch.Generator().manual_seed(1)
    engines, case, device = {}, None, None
    for line in sys.stdin:
        asked = json.loads(line)
        if asked["do"] == "case":
            engines, case, device = {}, CASES[asked["case"]], asked["device"]
            touched, recurrent = case.touched()
            answer = {"touched": touched, "recurrent": recurrent, "engines": case.engines(device)}
        elif asked["do"] == "bandwidth":
            answer = bandwidth(torch, device)
        elif asked["do"] == "memory":
            answer = memory(torch, case, generator)
        else:
            name = asked["engine"]
            if name not in engines:
                engines[name] = case.build(name, device)
                first = 3 + 1024 // case.segment_length % 16
                read(torch, case, engines[name], first, generator, device)
            answer = read(
                torch, case, engines[name], WARM_UP + asked["segments"], generator, device
            )
            answer = answer[WARM_UP:]
        print(json.dumps(answer), flush=True)


def now(torch, device):
    """Return the time when all that was begun is done."""
    if device != "cpu":
        torch.cuda.synchronize()
    return time.perf_counter()


def read(torch, case, engine, segments, generator, device):
    """Return the seconds of each part of each segment."""
    every = []
    for _ in range(segments):
        text = torch.randint(case.symbols, (1, case.segment_length + 1), generator=generator)
        laps = [now(torch, device)]
        engine.segment(text[:, :-1], text[:, 1:], lambda laps=laps: laps.append(now(torch, device)))
        every.append([b - a for a, b in zip(laps, laps[1:], strict=False)])
    return every


def bandwidth(torch, device):
    """Return bytes a second of θ ← θ + x, in place, in all threads: two reads and a write."""
    # written before they are read: pages of nothing but zeros are all one, and not in memory
    theta, x = torch.ones(LARGE, device=device), torch.ones(LARGE, device=device)
    best = float("inf")
    for _ in range(5):
        began = now(torch, device)
        theta.add_(x)
        best = min(best, now(torch, device) - began)
    return 3 * theta.numel() * theta.element_size() / best


def memory(torch, case, generator):
    """Return bytes that reading and learning take at their peak, and bytes of the weights.

    What is imported and compiled is there before, and no other model.
    """
    small = replace(case, settings=case.settings | {"units": 64, "embedding_size": 64})
    read(torch, small, small.build("fused"), 2, generator, "cpu")
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    before = pages * resource.getpagesize()
    engine = case.build("fused")
    read(torch, case, engine, 3, generator, "cpu")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    weights = sum(weight.nbytes for weight in case.model().parameters())
    return {"grown": peak - before, "weights": weights}


class Worker:
    """A process that times, with a malloc of its own."""

    def __init__(self, environment, threads):
        given = {"DYNEVAL_BENCHMARK_THREADS": str(threads)} if threads else {}
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--work"],
            env=os.environ | environment | given,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, **question):
        """Return the answer to one question."""
        print(json.dumps(question), file=self.process.stdin, flush=True)
        line = self.process.stdout.readline()
        if not line:
            sys.exit("a process that timed has ended early; see above")
        return json.loads(line)


def measure(name, workers, rounds, segments, device):
    """Return the seconds of every part of every segment of a case, by malloc and engine."""
    about = [worker.ask(do="case", case=name, device=device) for worker in workers.values()][0]
    times = {malloc: {engine: [] for engine in about["engines"]} for malloc in workers}
    rates = []
    for turn in range(rounds):
        print(f"\r({name}) round {turn + 1} of {rounds} ", end="", file=sys.stderr, flush=True)
        for malloc, worker in workers.items():
            rates.append(worker.ask(do="bandwidth"))
            for engine in about["engines"]:
                timed = worker.ask(do="time", engine=engine, segments=segments)
                times[malloc][engine] += timed
    print("\r" + " " * 40 + "\r", end="", file=sys.stderr)
    return about, median(rates), times


def median(values):
    """Return the middle one."""
    return quartiles(values)[1]


def quartiles(values):
    """Return the quartiles."""
    return quantiles(values, n=4) if len(values) > 1 else [values[0]] * 3


def summary(case, about, rate, times):
    """Return the figures of a case.

    The lower bound is that of bytes: each weight read once forwards and once backwards, and
    three reads and a write for the update. `bound_by_token` counts the recurrent matrices once for
    each token, as they have to be read where no cache holds them.
    """
    n, touched = case.segment_length, about["touched"]
    bytes_once = 4 * 6 * touched
    bytes_by_token = bytes_once + 4 * (2 * n - 3) * about["recurrent"]
    default, tuned = times["default"], times.get("tuned")
    seconds = {
        malloc: {engine: quartiles([sum(parts) for parts in each]) for engine, each in all_.items()}
        for malloc, all_ in times.items()
    }
    parts = {
        engine: [1e3 * median(list(column)) for column in zip(*each, strict=True)]
        for engine, each in default.items()
    }
    best = "fused" if "fused" in default else "generic"
    middle = {engine: quartile[1] for engine, quartile in seconds["default"].items()}

    def ratio(engine, other, of):
        return median([sum(p) for p in of[other]]) / median([sum(p) for p in of[engine]])

    figures = {
        "title": case.title,
        "segment_length": n,
        "weights_touched": touched,
        "recurrent_weights": about["recurrent"],
        "bytes_once": bytes_once,
        "bytes_by_token": bytes_by_token,
        "in_place_gigabytes_per_second": rate / 1e9,
        "tokens_per_second": {
            malloc: {engine: [n / q for q in reversed(each)] for engine, each in all_.items()}
            for malloc, all_ in seconds.items()
        },
        "milliseconds": parts,
        "bound_over_fused": bytes_once / rate / middle[best],
        "bound_by_token_over_fused": bytes_by_token / rate / middle[best],
        "fused_over_authors": ratio(best, "authors", default),
        "fused_time_over_torch_static": 1 / ratio(best, "torch static", default),
        "generic_over_authors": ratio("generic", "authors", default),
        "generic_over_reference": ratio("generic", "reference", default),
    }
    if tuned:
        figures["fused_over_authors_tuned"] = ratio(best, "authors", tuned)
    return figures


RATIOS = {
    "bound_over_fused": "lower bound's time / fused time",
    "bound_by_token_over_fused": "the same, by token",
    "fused_over_authors": "fused / authors' loop",
    "fused_over_authors_tuned": "the same, tuned malloc",
    "fused_time_over_torch_static": "fused time / torch static time",
    "generic_over_authors": "generic route / authors' loop",
}
GPU_RATIOS = {
    "bound_over_fused": "lower bound's time / generic time",
    "generic_over_authors": "generic route / authors' loop",
    "generic_over_reference": "generic route / reference",
    "fused_time_over_torch_static": "generic time / torch static time",
}
PARTS = {
    "authors": ("forward", "backward", "update"),
    "torch static": ("forward",),
    "static fused": ("forward",),
}


def show(name, case, figures):
    """Print a case; what it has to reach is for the CPU."""
    n, rate = figures["segment_length"], figures["in_place_gigabytes_per_second"]
    print(f"\n({name}) {figures['title']}, n = {n}")
    print(
        f"    {figures['weights_touched'] / 1e6:.1f}M weights touched: at least "
        f"{figures['bytes_once'] / 1e6:,.0f} MB a segment, "
        f"{figures['bytes_once'] / 1e6 / rate:.2f} ms at {rate:.1f} GB/s in place; with the "
        f"recurrent ones by token {figures['bytes_by_token'] / 1e6:,.0f} MB, "
        f"{figures['bytes_by_token'] / 1e6 / rate:.2f} ms"
    )
    tuned = figures["tokens_per_second"].get("tuned")
    second = f"{'tuned malloc':>13}" if tuned else ""
    print(f"    {'':14}{'tokens/s':>10}  {'(quartiles)':19}{second}   ms a segment")
    for engine, (low, middle, high) in figures["tokens_per_second"]["default"].items():
        names = PARTS.get(engine, ("forward", "backward and update"))
        parts = ", ".join(
            f"{part} {ms:.2f}"
            for part, ms in zip(names, figures["milliseconds"][engine], strict=False)
        )
        spread = f"({low:,.0f} to {high:,.0f})"
        second = f"{tuned[engine][1]:13,.0f}" if tuned else ""
        print(f"    {engine:14}{middle:10,.0f}  {spread:19}{second}   {parts}")
    if "memory" in figures:
        grown, weights = figures["memory"]["grown"], figures["memory"]["weights"]
        print(
            f"    memory: {grown / weights:.2f} times the weights' {weights / 1e6:,.0f} MB   ≤ 3.3"
        )
    if not tuned:
        for key, what in GPU_RATIOS.items():
            print(f"    {what:32}{figures[key]:7.2f}")
        return
    for (key, what), floor in zip(RATIOS.items(), case.floor, strict=True):
        if floor is not None:
            fine = figures[key] <= floor if "time_over" in key else figures[key] >= floor
            sign = "≤" if "time_over" in key else "≥"
            print(f"    {what:32}{figures[key]:7.2f}   {sign} {floor}{'' if fine else '   MISSED'}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", default="abcde")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--segments", type=int, default=5, help="of an engine in each round")
    parser.add_argument("--threads", type=int, help="default: all cores")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--json", help="a file for all figures")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work()
        return

    import torch
    from cases import CASES

    from dyneval import devices

    threads = options.threads or torch.get_num_threads()
    numba = next((d.version for d in distributions(name="numba")), None)  # no need of it on a GPU
    about = {
        "machine": f"{platform.system()} {platform.machine()}",
        "threads": threads,
        "device": devices.describe(torch.device(options.device)),
        "versions": {"torch": torch.__version__, "numba": numba},
        "python": platform.python_version(),
    }
    print(
        f"torch {torch.__version__}, numba {numba}, {threads} threads, {about['device']}, float32"
    )
    found = {}
    for name in options.cases:
        workers = {"default": Worker({}, threads)}
        if options.device == "cpu":
            workers["tuned"] = Worker(TUNED, threads)
        case = CASES[name]
        measured = measure(name, workers, options.rounds, options.segments, options.device)
        found[name] = summary(case, *measured)
        if case.weighed and sys.platform == "linux" and options.device == "cpu":
            fresh = Worker({}, threads)
            fresh.ask(do="case", case=name, device="cpu")
            found[name]["memory"] = fresh.ask(do="memory")
            workers["fresh"] = fresh
        for worker in workers.values():
            worker.process.stdin.close()
            worker.process.wait()
        show(name, case, found[name])
        if options.json:
            with open(options.json, "w") as file:
                json.dump({"about": about, "cases": found}, file, indent=1)


if __name__ == "__main__":
    main()
