"""The command line."""

from __future__ import annotations
from typing import Annotated
import typer

app = typer.Typer()


@app.callback()
def main() -> None: ...


@app.command()
def train(
    corpus: str,
    folder: str,
    preset: str = "lstm-desk",
    resume: bool = False,
    threads: int = 0,
    epochs: int | None = None,
    seed: int | None = None,
) -> None:
    import torch, sys
    from dyneval import corpora, training

    if threads:
        torch.set_num_threads(threads)
    recipe = training.changed(training.PRESETS[preset], epochs=epochs, seed=seed)
    run = training.start(recipe, corpora.load(corpus), folder, resume=resume)
    for p in run.run():
        if p.step % 100 == 0 or p.validation_nats is not None:
            print(p, flush=True)


if __name__ == "__main__":
    app()
