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
import subprocess
import sys
import time
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
            answer = {"weights": case.touched(), "engines": case.engines(device)}
        elif asked["do"] == "bandwidth":
            answer = bandwidth(torch, device)
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
    theta, x = torch.zeros(LARGE, device=device), torch.zeros(LARGE, device=device)
    best = float("inf")
    for _ in range(5):
        began = now(torch, device)
        theta.add_(x)
        best = min(best, now(torch, device) - began)
    return 3 * theta.numel() * theta.element_size() / best


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
    return about["weights"], median(rates), times


def median(values):
    """Return the middle one."""
    return quartiles(values)[1]


def quartiles(values):
    """Return the quartiles."""
    return quantiles(values, n=4) if len(values) > 1 else [values[0]] * 3


def summary(case, weights, rate, times):
    """Return the figures of a case."""
    n = case.segment_length
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
    bound = 6 * 4 * weights / rate

    def ratio(engine, other, of):
        return median([sum(p) for p in of[other]]) / median([sum(p) for p in of[engine]])

    figures = {
        "title": case.title,
        "segment_length": n,
        "weights_touched": weights,
        "bytes_at_least": 24 * weights,
        "in_place_gigabytes_per_second": rate / 1e9,
        "tokens_per_second": {
            malloc: {engine: [n / q for q in reversed(each)] for engine, each in all_.items()}
            for malloc, all_ in seconds.items()
        },
        "milliseconds": parts,
        "bound_over_fused": bound / middle[best],
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
        f"{figures['bytes_at_least'] / 1e6:,.0f} MB a segment, "
        f"{1e3 * figures['bytes_at_least'] / 1e9 / rate:.2f} ms at {rate:.1f} GB/s in place"
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

    import numba
    import torch
    from cases import CASES

    from dyneval import devices

    threads = options.threads or torch.get_num_threads()
    about = {
        "machine": f"{platform.system()} {platform.machine()}",
        "threads": threads,
        "device": devices.describe(torch.device(options.device)),
        "versions": {"torch": torch.__version__, "numba": numba.__version__},
        "python": platform.python_version(),
    }
    print(
        f"torch {torch.__version__}, numba {numba.__version__}, {threads} threads, "
        f"{about['device']}, float32"
    )
    found = {}
    for name in options.cases:
        workers = {"default": Worker({}, threads)}
        if options.device == "cpu":
            workers["tuned"] = Worker(TUNED, threads)
        case = CASES[name]
        measured = measure(name, workers, options.rounds, options.segments, options.device)
        found[name] = summary(case, *measured)
        for worker in workers.values():
            worker.process.stdin.close()
            worker.process.wait()
        show(name, case, found[name])
        if options.json:
            with open(options.json, "w") as file:
                json.dump({"about": about, "cases": found}, file, indent=1)


if __name__ == "__main__":
    main()
