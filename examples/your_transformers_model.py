"""Your model of transformers: it learns as it reads, in the calls that you know.

`python examples/your_transformers_model.py MODEL` reads with a folder, a name on the hub, a GGUF
file or `smollm2`. Without one, a tiny Llama of bytes is trained on a manual for some seconds, so
that nothing needs to be loaded. Either reads a program, which is new to it.
"""

import inspect
import math
import pydoc_data.topics
import sys
import tempfile
import textwrap
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

import dyneval
from dyneval import models

PROGRAM = inspect.getsource(textwrap)[:8_000]


def trained() -> LlamaForCausalLM:
    torch.manual_seed(1)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=256, num_hidden_layers=2, **sizes))
    manual = torch.tensor(list("\n".join(pydoc_data.topics.topics.values()).encode()))
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    for _ in range(150):
        starts = torch.randint(len(manual) - 128, (16, 1))
        ids = manual[starts + torch.arange(128)]
        model(ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.eval()


def bits_per_byte(nats: Tensor) -> float:
    return nats.double().sum().item() / math.log(2) / len(PROGRAM.encode())


def main(model: Any, tokenizer: Any, rule: dyneval.Rule | None) -> None:
    text = PROGRAM if tokenizer else torch.tensor([list(PROGRAM.encode())])
    with dyneval.adapt(model, tokenizer, rule=rule) as session:
        static = session.read(text, learn=False)  # the weights stay
        session.reset()
        dynamic = session.read(text)

        # the model itself reads with what was learned, and learns nothing by itself
        ids = dynamic.tokens[None, -256:]
        inside = model(ids, labels=ids).loss.item()
        written = model.generate(ids[:, :64], max_new_tokens=40, do_sample=False)[0, 64:]

        with tempfile.TemporaryDirectory() as folder:  # as one saves an adapter
            session.save(folder)
            session.reset()
            session.load(folder)
            print("saved:", *sorted(path.name for path in Path(folder).iterdir()))
    outside = model(ids, labels=ids).loss.item()  # the weights are as they were

    text = tokenizer.decode(written) if tokenizer else bytes(written.tolist()).decode("latin-1")
    print("goes on with:", repr(text))
    print(f"loss of the end: {inside:.3f} inside, {outside:.3f} outside")
    print(f"static   {bits_per_byte(static.nats):.3f} bits a byte")
    print(f"dynamic  {bits_per_byte(dynamic.nats):.3f} bits a byte")


if __name__ == "__main__":
    if sys.argv[1:]:
        checkpoint = models.load(sys.argv[1])  # or from_pretrained, twice
        main(checkpoint.model.model, checkpoint.vocabulary.tokenizer, None)
    else:
        main(trained(), None, dyneval.Sgd(learning_rate=0.2))
