"""Train a base model: a recipe, and a loop that can be stopped anywhere and resumed exactly.

The folder of a training holds the best model so far, as any checkpoint, and beside it
`training.safetensors`: weights, optimizer, hidden state and random numbers of the step that it
stands at. Resuming gives the same numbers as a run that was never stopped (bit for bit at the
same number of threads).
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from dyneval import models, storage
from dyneval.corpora import Corpus
from dyneval.evaluation import evaluate
from dyneval.predictors import Static
from dyneval.streams import parallel

STATE = "training.safetensors"


@dataclass(frozen=True)
class Recipe:
    """All that the numbers of a training depend on, besides the text."""

    architecture: str
    model: dict[str, Any]  # settings of the architecture
    optimizer: Literal["sgd", "adam"]
    learning_rate: float
    epochs: int
    batch_size: int = 20
    sequence_length: int = 35
    clip: float = 5.0  # the gradient's largest norm
    decay: float = 1.0  # sgd: the learning rate is divided by this each epoch
    constant_epochs: int = 0  # sgd: after so many epochs
    final_learning_rate: float = 0.0  # adam: where the learning rate falls to, linearly
    weight_normalisation: bool = False  # of the layers' matrices, folded into them at the end
    precision: Literal["float32", "bfloat16"] = "float32"  # of the products, under autocast
    seed: int = 1

    def __post_init__(self) -> None:
        if self.architecture not in models.ARCHITECTURES:
            known = ", ".join(models.ARCHITECTURES)
            raise ValueError(f"there is no model {self.architecture!r}; give one of {known}")
        if self.optimizer not in ("sgd", "adam") or self.precision not in ("float32", "bfloat16"):
            raise ValueError(
                f"optimizer {self.optimizer!r} and precision {self.precision!r} of a training: "
                "give sgd or adam, and float32 or bfloat16"
            )
        for name in ("learning_rate", "epochs", "batch_size", "sequence_length", "clip", "decay"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} {getattr(self, name)} of a training: give more than 0")


# Recipes that reach a usable model on two CPU cores in about an hour.
PRESETS = {
    # Zaremba et al. (2014), "small", with a little dropout and a slower decay
    "lstm-desk": Recipe(
        "lstm",
        {"embedding_size": 200, "units": 200, "layers": 2, "dropout": 0.2},
        "sgd",
        learning_rate=1.0,
        epochs=11,
        decay=1.6,
        constant_epochs=4,
        precision="bfloat16",
    ),
    "mlstm-desk": Recipe(
        "mlstm",
        {"embedding_size": 64, "units": 512},
        "adam",
        learning_rate=2e-3,
        final_learning_rate=7e-5,
        epochs=4,
        batch_size=32,
        sequence_length=100,
        clip=1.0,
        weight_normalisation=True,
        precision="bfloat16",
    ),
}


class Progress(NamedTuple):
    """Where a training stands after a step."""

    epoch: int  # from 0
    step: int  # steps done, of all epochs
    steps: int  # in all
    nats: float  # mean per token since the epoch began
    tokens_per_second: float
    validation_nats: float | None  # after an epoch's last step


class Training:
    """A training in a folder: `run` goes on to its end, from wherever it stands."""

    def __init__(self, recipe: Recipe, corpus: Corpus, folder: Path | str) -> None:
        self.recipe, self.corpus, self.folder = recipe, corpus, Path(folder)
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.train = self._stream("train")
        self.valid = self._stream("valid")
        torch.manual_seed(recipe.seed)
        build = models.ARCHITECTURES[recipe.architecture]
        self.model: Any = build(len(corpus.vocabulary), **recipe.model)
        if recipe.weight_normalisation:
            _normalise(self.model)
        self.model.to(self.device)
        self.optimizer = self._optimizer()
        self.state: Any = None  # the hidden state, carried over
        self.step = 0
        self.nats = 0.0  # summed over the epoch's steps
        self.seconds = 0.0
        self.history: list[dict[str, float]] = []

    def _stream(self, split: str) -> Tensor:
        tokens = self.corpus.read(split).stream[0]
        return parallel(tokens, self.recipe.batch_size).to(self.device)

    def _optimizer(self) -> torch.optim.Optimizer:
        if self.recipe.optimizer == "adam":
            return torch.optim.Adam(self.model.parameters(), self.recipe.learning_rate)
        return torch.optim.SGD(self.model.parameters(), self.recipe.learning_rate)

    @property
    def epoch_steps(self) -> int:
        """Return the number of steps in an epoch."""
        return -(-(self.train.shape[1] - 1) // self.recipe.sequence_length)

    @property
    def steps(self) -> int:
        """Return the number of steps in all."""
        return self.epoch_steps * self.recipe.epochs

    def learning_rate(self, step: int) -> float:
        """Return the learning rate of a step."""
        recipe = self.recipe
        if recipe.optimizer == "adam":
            fallen = step / max(1, self.steps - 1)
            difference = recipe.final_learning_rate - recipe.learning_rate
            return recipe.learning_rate + fallen * difference
        decays = max(0, step // self.epoch_steps + 1 - recipe.constant_epochs)
        return recipe.learning_rate / recipe.decay**decays

    def run(self, save_every: float = 300.0) -> Iterator[Progress]:
        """Train to the end, yielding after each step.

        Stands in the folder after each epoch, every `save_every` seconds, and when interrupted
        (Ctrl-C or a termination signal), which ends it after the step under way.
        """
        began = saved = time.perf_counter()
        already, steps_before = self.seconds, self.step
        with _interruption() as interrupted:
            while self.step < self.steps:
                self._step()
                now = time.perf_counter()
                self.seconds = already + now - began
                epoch, done = divmod(self.step, self.epoch_steps)
                tokens = (self.step - steps_before) * len(self.train) * self.recipe.sequence_length
                speed = tokens / max(1e-9, now - began)
                mean = self.nats / (done or self.epoch_steps)
                last = self._end_epoch(mean, speed) if not done else None
                stop = interrupted()  # asked once: what comes while yielding waits for a step
                if last is not None or stop or now - saved > save_every:
                    self.save()
                    saved = time.perf_counter()
                yield Progress(epoch - (not done), self.step, self.steps, mean, speed, last)
                if stop:
                    raise KeyboardInterrupt

    def _step(self) -> None:
        recipe, length = self.recipe, self.recipe.sequence_length
        start = self.step % self.epoch_steps * length
        if start == 0:
            self.state, self.nats = None, 0.0
        targets = self.train[:, start + 1 : start + 1 + length]
        inputs = self.train[:, start : start + targets.shape[1]]
        self.model.train()
        low = recipe.precision == "bfloat16"
        with torch.autocast(self.device.type, torch.bfloat16, enabled=low):
            hidden, state = self.model.hidden(inputs, self.state)
            logits = self.model.logits(hidden)
        nats = nn.functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten())
        # SGD descends the loss summed over the steps, as in the recipes it comes from
        loss = nats * targets.shape[1] if recipe.optimizer == "sgd" else nats
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate(self.step)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.model.parameters(), recipe.clip)
        self.optimizer.step()
        self.state = tuple(tuple(part.detach() for part in layer) for layer in state)
        if not torch.isfinite(nats):
            raise ValueError(
                f"the loss is no number at step {self.step + 1}: the training diverged; lower the "
                "learning rate or the clip"
            )
        self.nats += nats.item()
        self.step += 1

    def _end_epoch(self, nats: float, speed: float) -> float:
        """Score the validation split; keep the model if it is the best so far."""
        model = folded(self.model)
        summed = sum(part.sum().item() for part in evaluate(Static(model), self.valid, 100))
        validation = summed / (self.valid.numel() - len(self.valid))
        best = min((entry["valid_nats"] for entry in self.history), default=float("inf"))
        self.history.append(
            {
                "epoch": self.step // self.epoch_steps,
                "train_nats": nats,
                "valid_nats": validation,
                "seconds": round(self.seconds, 1),
                "tokens_per_second": round(speed, 1),
            }
        )
        if validation < best:
            models.save(self.folder, models.Checkpoint(model, self.corpus.vocabulary, self.about()))
        return validation

    def about(self) -> dict[str, Any]:
        """Return how the model was made, as JSON values."""
        return {
            "recipe": asdict(self.recipe),
            "corpus": self.corpus.name,
            "checksum": self.corpus.checksum("train"),
            "vocabulary": self.corpus.vocabulary.kind,
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
            "history": self.history,
        }

    def save(self) -> None:
        """Write all that resuming needs."""
        tensors = {f"model.{name}": value for name, value in self.model.state_dict().items()}
        for k, values in self.optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer.{k}.{name}": value for name, value in values.items()}
        for k, layer in enumerate(self.state or ()):
            tensors |= {f"state.{k}.{j}": part for j, part in enumerate(layer)}
        tensors["random"] = torch.get_rng_state()
        if self.device.type == "cuda":
            tensors["random.cuda"] = torch.cuda.get_rng_state()
        # tied weights share memory, which safetensors refuses
        tensors = {name: value.clone() for name, value in tensors.items()}
        numbers = {"step": self.step, "nats": self.nats, "seconds": self.seconds}
        storage.write_tensors(self.folder / STATE, tensors, self.about() | numbers)

    def load(self) -> None:
        """Go on where `save` was called; the recipe and the text must be the same."""
        tensors, about = storage.read_tensors(self.folder / STATE)
        for name, ours in (
            ("recipe", asdict(self.recipe)),
            ("checksum", self.corpus.checksum("train")),
            ("vocabulary", self.corpus.vocabulary.kind),
        ):
            if not isinstance(about, dict) or about.get(name) != ours:
                raise ValueError(
                    f"{self.folder} holds a training with another {name}; "
                    "resume it with the same flags, or give another folder"
                )
        groups: dict[str, dict[str, Tensor]] = {}
        for name, value in tensors.items():
            part, _, rest = name.partition(".")
            groups.setdefault(part, {})[rest] = value
        self.model.load_state_dict(groups["model"])
        optimizer = self.optimizer.state_dict()
        for name, value in groups.get("optimizer", {}).items():
            k, _, key = name.partition(".")
            optimizer["state"].setdefault(int(k), {})[key] = value
        self.optimizer.load_state_dict(optimizer)
        places = groups.get("state", {})
        layers = 1 + max((int(name.split(".")[0]) for name in places), default=-1)
        self.state = tuple(
            tuple(places[f"{k}.{j}"].to(self.device) for j in range(2)) for k in range(layers)
        )
        torch.set_rng_state(groups["random"][""])
        if self.device.type == "cuda" and "cuda" in groups["random"]:
            torch.cuda.set_rng_state(groups["random"]["cuda"])
        self.step, self.nats, self.seconds = about["step"], about["nats"], about["seconds"]
        self.history = about["history"]


def start(recipe: Recipe, corpus: Corpus, folder: Path | str, *, resume: bool = False) -> Training:
    """Return a training in a folder, at its beginning or where it was stopped."""
    training = Training(recipe, corpus, folder)
    exists = (training.folder / STATE).exists()
    if exists and not resume:
        raise ValueError(
            f"{folder} already holds a training; go on with it (--resume) or give another folder"
        )
    if exists:
        training.load()
    return training


def changed(recipe: Recipe, **changes: Any) -> Recipe:
    """Return a recipe with some fields replaced; those of no field of its own are the model's."""
    given = {name: value for name, value in changes.items() if value is not None}
    own = {name: value for name, value in given.items() if name in recipe.__dataclass_fields__}
    rest = {name: value for name, value in given.items() if name not in own}
    return replace(recipe, **own, model=recipe.model | rest)


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
