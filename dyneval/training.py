"""Train a base model: a loop that can be stopped anywhere and resumed exactly.

The folder of a training holds the best model so far, as any checkpoint, and beside it
`training.safetensors`: weights, their averages, optimizer, hidden state and random numbers of the
step that it stands at. Resuming gives the same numbers as a run that was never stopped (bit for
bit at the same number of threads). What is trained, and how, is a `recipes.Recipe`. Several
processes share the streams and average their gradients.
"""

from __future__ import annotations

import math
import signal
import threading
import time
from bisect import bisect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from dyneval import devices, models, storage
from dyneval.averaging import Average, stuck
from dyneval.corpora import Corpus
from dyneval.evaluation import evaluate
from dyneval.predictors import Static
from dyneval.processes import ALONE, Group
from dyneval.recipes import Recipe
from dyneval.streams import parallel

STATE = "training.safetensors"
REPORT_EVERY = 0.1  # seconds; asking a GPU for the loss makes it wait


class Progress(NamedTuple):
    """Where a training stands after a step."""

    epoch: int  # from 0
    epoch_step: int  # steps done of this epoch
    epoch_steps: int  # in all
    step: int  # steps done, of all epochs
    steps: int  # in all
    nats: float  # mean per token since the epoch began, as it was when last asked for
    tokens_per_second: float
    validation_nats: float | None  # after an epoch's last step


class Training:
    """A training in a folder: `run` goes on to its end, from wherever it stands."""

    def __init__(
        self,
        recipe: Recipe,
        corpus: Corpus,
        folder: Path | str,
        device: str = "auto",
        group: Group = ALONE,
    ) -> None:
        self.recipe, self.corpus, self.folder, self.group = recipe, corpus, Path(folder), group
        self.device = group.device(device)
        self.train = self._stream("train")
        self.valid = self._stream("valid")
        torch.manual_seed(recipe.seed)
        build = models.ARCHITECTURES[recipe.architecture]
        self.model: Any = build(len(corpus.vocabulary), **recipe.model)
        if recipe.weight_normalisation:
            _normalise(self.model)
        self.model.to(self.device)
        if not group.first:  # the same weights, and other units dropped out
            torch.manual_seed(recipe.seed + 1000 * group.rank)
        self.average = Average(self.model)
        self.optimizer = self._optimizer()
        self.state: Any = None  # the hidden state, carried over
        self.step = 0
        self.nats = torch.zeros((), dtype=torch.float64, device=self.device)  # of the epoch
        self.seconds = 0.0
        self.history: list[dict[str, Any]] = []
        epochs = range(recipe.epochs + recipe.fine_tune_epochs)
        steps = (len(recipe.lengths(self.train.shape[1] - 1, epoch)) for epoch in epochs)
        self.starts = list(accumulate(steps, initial=0))  # the first step of each epoch, the end
        self._lengths: tuple[int, list[int]] = (-1, [])  # of the epoch that is under way

    def _stream(self, split: str) -> Tensor:
        tokens = self.corpus.read(split).stream[0]
        return self.group.rows(parallel(tokens, self.recipe.batch_size)).to(self.device)

    def _optimizer(self) -> torch.optim.Optimizer:
        kind = torch.optim.Adam if self.recipe.optimizer == "adam" else torch.optim.SGD
        weights, recipe = self.model.parameters(), self.recipe
        return kind(weights, lr=recipe.learning_rate, weight_decay=recipe.weight_decay)

    @property
    def steps(self) -> int:
        """Return the number of steps in all."""
        return self.starts[-1]

    def place(self, step: int) -> tuple[int, int, int]:
        """Return the epoch of a step, where it begins in the streams, and its tokens of each."""
        epoch = bisect(self.starts, step) - 1
        if self._lengths[0] != epoch:
            self._lengths = epoch, self.recipe.lengths(self.train.shape[1] - 1, epoch)
        done, lengths = step - self.starts[epoch], self._lengths[1]
        return epoch, sum(lengths[:done]), lengths[done]

    def learning_rate(self, step: int) -> float:
        """Return the learning rate of a step."""
        recipe = self.recipe
        if recipe.optimizer == "adam":
            fallen = step / max(1, self.steps - 1)
            difference = recipe.final_learning_rate - recipe.learning_rate
            return recipe.learning_rate + fallen * difference
        epoch, _, length = self.place(step)
        decays = max(0, epoch + 1 - recipe.constant_epochs)
        scale = length / recipe.sequence_length if recipe.random_lengths else 1.0
        return recipe.learning_rate / recipe.decay**decays * scale

    def run(self, save_every: float = 300.0) -> Iterator[Progress]:
        """Train to the end, yielding after each step.

        Stands in the folder after each epoch, every `save_every` seconds, and when interrupted
        (Ctrl-C or a termination signal), which ends it after the step under way.
        """
        began = saved = time.perf_counter()
        already, tokens = self.seconds, 0
        asked, mean = 0.0, 0.0
        with _interruption() as interrupted:
            while self.step < self.steps:
                tokens += self._step()
                now = time.perf_counter()
                self.seconds = already + now - began
                epoch = bisect(self.starts, self.step - 1) - 1
                done = self.step - self.starts[epoch]
                ended = self.step == self.starts[epoch + 1]
                # asked once: what comes while yielding waits for a step
                stop, due = self.group.any(interrupted(), now - saved > save_every)
                save = ended or stop or due
                if save or now - asked > REPORT_EVERY:
                    mean, asked = self._mean(done), now
                speed = tokens / max(1e-9, now - began)
                last = self._end_epoch(epoch, mean, speed) if ended else None
                if save:
                    self.save()
                    saved = time.perf_counter()
                steps = self.starts[epoch + 1] - self.starts[epoch]
                yield Progress(epoch, done, steps, self.step, self.steps, mean, speed, last)
                if stop:
                    raise KeyboardInterrupt

    def _mean(self, steps: int) -> float:
        """Return the mean nats of an epoch's steps so far; they must be numbers."""
        mean = self.nats.item() / steps
        if not math.isfinite(mean):
            raise ValueError(
                f"the loss is no number at step {self.step}: the training diverged; lower the "
                "learning rate or the clip"
            )
        return mean

    def _step(self) -> int:
        """Take a step -> how many tokens it was on."""
        recipe = self.recipe
        _, start, length = self.place(self.step)
        if start == 0:
            self.state = None
            self.nats.zero_()
        inputs = self.train[:, start : start + length]
        targets = self.train[:, start + 1 : start + 1 + length]
        self.model.train()
        nats, added = self._loss(inputs, targets)
        # SGD descends the loss summed over the steps, as in the recipes it comes from
        loss = (nats + added) * (length if recipe.optimizer == "sgd" else 1)
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate(self.step)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        nats = nats.detach()
        gradients = [weight.grad for weight in self.model.parameters() if weight.grad is not None]
        self.group.average([nats, *gradients])
        nn.utils.clip_grad_norm_(self.model.parameters(), recipe.clip)
        self.optimizer.step()
        self.average.step()
        self.nats += nats
        self.step += 1
        return targets.numel() * self.group.size

    def _loss(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor | float]:
        """Return the mean nats of a step, and what is added to them; the state moves on."""
        recipe = self.recipe
        regular = recipe.activation > 0 or recipe.temporal_activation > 0
        low = recipe.precision == "bfloat16"
        with torch.autocast(self.device.type, torch.bfloat16, enabled=low):
            if regular:
                raw, state = self.model.raw_hidden(inputs, self.state)
                hidden = self.model.dropped(raw)
            else:
                hidden, state = self.model.hidden(inputs, self.state)
            logits = self.model.logits(hidden)
        self.state = tuple(tuple(part.detach() for part in layer) for layer in state)
        nats = nn.functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten())
        if not regular:
            return nats, 0.0
        added = recipe.activation * hidden.float().square().mean()
        if inputs.shape[1] > 1:  # one token alone does not change
            change = raw[:, 1:].float() - raw[:, :-1].float()
            added = added + recipe.temporal_activation * change.square().mean()
        return nats, added

    def _end_epoch(self, epoch: int, nats: float, speed: float) -> float:
        """Score the validation split; keep the model if it is the best so far."""
        with self.average.in_place():
            model = folded(self.model)
        parts = evaluate(Static(model), self.valid, 100)
        summed = torch.tensor(sum(part.sum().item() for part in parts), dtype=torch.float64)
        self.group.average([summed])
        validation = summed.item() / (self.valid.numel() - len(self.valid))
        best = min((entry["valid_nats"] for entry in self.history), default=float("inf"))
        self.history.append(
            {
                "epoch": epoch + 1,
                "train_nats": nats,
                "valid_nats": validation,
                "averaged": self.average.count,
                "seconds": round(self.seconds, 1),
                "tokens_per_second": round(speed, 1),
            }
        )
        if validation < best and self.group.first:
            models.save(self.folder, models.Checkpoint(model, self.corpus.vocabulary, self.about()))
        self._average(epoch)
        return validation

    def _average(self, epoch: int) -> None:
        """Begin to average the weights, where that is due behind an epoch."""
        recipe = self.recipe
        losses = [entry["valid_nats"] for entry in self.history]
        if recipe.optimizer != "nt-asgd":
            return
        if epoch + 1 == recipe.epochs and recipe.fine_tune_epochs:
            self.group.wait()  # the best weights are in the folder then
            best = dict(models.load(self.folder, self.device).model.named_parameters())
            with torch.no_grad():
                for name, weight in self.model.named_parameters():
                    weight.copy_(best[name])
            self.average.begin()
        elif not self.average.on and stuck(losses, recipe.nonmonotone):
            self.average.begin()

    def about(self) -> dict[str, Any]:
        """Return how the model was made, as JSON values."""
        return {
            "recipe": asdict(self.recipe),
            "corpus": self.corpus.name,
            "checksum": self.corpus.checksum("train"),
            "vocabulary": self.corpus.vocabulary.kind,
            "torch": torch.__version__,
            "device": devices.describe(self.device),
            "threads": torch.get_num_threads(),
            "processes": self.group.size,
            "history": self.history,
        }

    def save(self) -> None:
        """Write all that resuming needs."""
        tensors = {f"model.{name}": value for name, value in self.model.state_dict().items()}
        tensors |= {f"average.{k}": value for k, value in self.average.state_dict().items()}
        for k, values in self.optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer.{k}.{name}": value for name, value in values.items()}
        for k, layer in enumerate(self.state or ()):
            tensors |= {f"state.{k}.{j}": self._rows(part) for j, part in enumerate(layer)}
        tensors["nats"] = self.nats
        tensors["random"] = self._rows(torch.get_rng_state()[None])
        if self.device.type == "cuda":
            tensors["random.cuda"] = self._rows(torch.cuda.get_rng_state(self.device)[None])
        # tied weights share memory, which safetensors refuses
        tensors = {name: value.clone() for name, value in tensors.items()}
        numbers = {"step": self.step, "averaged": self.average.count, "seconds": self.seconds}
        if self.group.first:
            storage.write_tensors(self.folder / STATE, tensors, self.about() | numbers)
        self.group.wait()

    def _rows(self, part: Tensor) -> Tensor:
        """Return what the processes have of each stream, one below the other."""
        return torch.cat(self.group.gather(part))

    def load(self) -> None:
        """Go on where `save` was called; the recipe and the text must be the same."""
        tensors, about = storage.read_tensors(self.folder / STATE)
        ours = {"recipe": asdict(self.recipe)} | {
            "checksum": self.corpus.checksum("train"),
            "vocabulary": self.corpus.vocabulary.kind,
            "processes": self.group.size,
        }
        for name, own in ours.items():
            if not isinstance(about, dict) or about.get(name) != own:
                raise ValueError(
                    f"{self.folder} holds a training with another {name}; "
                    "resume it with the same flags, or give another folder"
                )
        groups: dict[str, dict[str, Tensor]] = {}
        for name, value in tensors.items():
            part, _, rest = name.partition(".")
            groups.setdefault(part, {})[rest] = value
        self.model.load_state_dict(groups["model"])
        self.average.load_state_dict(groups.get("average", {}), about["averaged"])
        optimizer = self.optimizer.state_dict()
        for name, value in groups.get("optimizer", {}).items():
            k, _, key = name.partition(".")
            optimizer["state"].setdefault(int(k), {})[key] = value
        self.optimizer.load_state_dict(optimizer)
        places = groups.get("state", {})
        layers = 1 + max((int(name.split(".")[0]) for name in places), default=-1)
        self.state = tuple(
            tuple(self.group.rows(places[f"{k}.{j}"]).to(self.device) for j in range(2))
            for k in range(layers)
        )
        # copied: torch reads a state from the start of its memory
        torch.set_rng_state(self.group.rows(groups["random"][""])[0].clone())
        if self.device.type == "cuda" and "cuda" in groups["random"]:
            drawn = self.group.rows(groups["random"]["cuda"])[0].clone()
            torch.cuda.set_rng_state(drawn, self.device)
        self.nats.copy_(groups["nats"][""])
        self.step, self.seconds = about["step"], about["seconds"]
        self.history = about["history"]


def start(
    recipe: Recipe,
    corpus: Corpus,
    folder: Path | str,
    *,
    resume: bool = False,
    device: str = "auto",
    group: Group = ALONE,
) -> Training:
    """Return a training in a folder, at its beginning or where it was stopped."""
    training = Training(recipe, corpus, folder, device, group)
    exists = (training.folder / STATE).exists()
    if exists and not resume:
        raise ValueError(
            f"{folder} already holds a training; go on with it (--resume) or give another folder"
        )
    if exists:
        training.load()
    return training


def _normalise(model: nn.Module) -> None:
    """Give each matrix of the layers a norm of its own per row (weight normalisation)."""
    for layer in model.get_submodule("layers").children():
        for name, weight in list(layer.named_parameters()):
            if weight.dim() == 2:
                parametrizations.weight_norm(layer, name)


def folded(model: Any) -> Any:
    """Return a copy with plain weights, in eval mode: what is kept, evaluated and adapted."""
    # a copy of the module would share the class through which its weights are normalised
    with torch.random.fork_rng(devices=[]):
        plain = type(model)(**model.settings).to(next(model.parameters()))
    with torch.no_grad():
        for name, weight in plain.named_parameters():
            module, _, leaf = name.rpartition(".")
            weight.copy_(getattr(model.get_submodule(module), leaf))
    return plain.eval()


@contextmanager
def _interruption() -> Iterator[Any]:
    """Give a function that tells whether Ctrl-C or a termination signal came meanwhile."""
    came = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield came.is_set
        return
    before = {
        number: signal.signal(number, lambda *_: came.set())
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield came.is_set
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
