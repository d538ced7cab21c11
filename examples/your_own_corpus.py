"""Your own corpus: any UTF-8 file, from training to a score, with the paper's final rule.

`python examples/your_own_corpus.py FILE`; without one, a manual of Python's library is read. A
model of its characters is trained on the first 90%, and reads the last 5%.
"""

import math
import pydoc_data.topics
import sys
import tempfile
from pathlib import Path

import torch

from dyneval import Dynamic, Rms, RmsDecay, Static, corpora, evaluate, models, training
from dyneval.collection import collect

RECIPE = training.Recipe(
    "lstm",
    {"embedding_size": 32, "units": 96, "layers": 1},
    optimizer="adam",
    learning_rate=2e-2,
    epochs=1,
    batch_size=16,
    sequence_length=30,
)


def main(folder: Path) -> None:
    file = Path(sys.argv[1]) if sys.argv[1:] else folder / "manual.txt"
    if not sys.argv[1:]:
        file.write_text("\n".join(pydoc_data.topics.topics.values())[:150_000], "utf-8")
    # "drop": characters that the training text does not hold are left out
    corpus = corpora.load(file, "characters", unknown="drop")
    for step in training.start(RECIPE, corpus, folder / "model").run():
        print(f"step {step.step} of {step.steps}", end="\r", flush=True)
    model = models.load(folder / "model").model
    priors = collect(model, corpus, segment_length=20, batch_size=50).priors(model)

    test = corpus.read("test")[:10_000]
    rule = Rms(learning_rate=1e-3, epsilon=1e-4) + RmsDecay(rate=1e-3)
    for name, reader in {"static": Static(model), "dynamic": Dynamic(model, rule, priors)}.items():
        nats = torch.cat(list(evaluate(reader, test.stream, segment_length=20)), 1).sum().item()
        print(f"{name:8} {nats / math.log(2) / test.characters[1:].sum():.3f} bits a character")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        main(Path(temporary))
