"""Models that were trained with torch's own layers, read as checkpoints."""

import json
import math
import re

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from dyneval import Static, corpora, evaluate, models
from dyneval.models.torch_lstm import import_lstm
from dyneval.vocabularies import Vocabulary

SYMBOLS = ["<eos>", "<unk>", "a", "b", "c"]


class Torch(nn.Module):
    """A language model as one writes it with torch alone."""

    def __init__(self, layers=2, tied=False):
        super().__init__()
        self.encoder = nn.Embedding(len(SYMBOLS), 4)
        self.rnn = nn.LSTM(4, 4 if tied else 3, layers, batch_first=True)
        self.decoder = nn.Linear(self.rnn.hidden_size, len(SYMBOLS))
        if tied:
            self.decoder.weight = self.encoder.weight

    def forward(self, tokens):
        return self.decoder(self.rnn(self.encoder(tokens))[0])


def write(folder, weights, symbols=SYMBOLS):
    folder.mkdir()
    (folder / "vocab.json").write_text(json.dumps(symbols))
    save_file(
        {name: weight.clone() for name, weight in weights.items()}, folder / "model.safetensors"
    )
    return folder


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("tied", [False, True])
def test_it_computes_what_torch_does(tmp_path, layers, tied):
    torch.manual_seed(1)
    theirs = Torch(layers, tied)
    source = write(tmp_path / "source", theirs.state_dict())
    import_lstm(source, tmp_path / "model")
    checkpoint = models.load(tmp_path / "model")
    assert checkpoint.vocabulary == Vocabulary("words", tuple(SYMBOLS))
    assert checkpoint.model.settings["tied"] == tied
    tokens = torch.randint(len(SYMBOLS), (2, 7))
    ours = checkpoint.model.logits(checkpoint.model.hidden(tokens)[0])
    torch.testing.assert_close(ours, theirs(tokens), rtol=1e-5, atol=1e-6)


def without(weights, *names):
    return {name: weight for name, weight in weights.items() if name not in names}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda w: without(w, "rnn.weight_ih_l1"), "layers.1.weight_ih would be missing"),
        (lambda w: w | {"rnn.bias_hh_l0": torch.zeros(3)}, "layers.0.bias_hh would be (3,)"),
        (lambda w: without(w, "encoder.weight"), "it has 0 embeddings"),
        (lambda w: without(w, "decoder.bias"), "it has 0 biases outside of the LSTM"),
        (lambda w: {n: v for n, v in w.items() if "rnn" not in n}, "it has no LSTM"),
        (lambda w: w | {"encoder.weight": torch.zeros(4, 4)}, "embedding.weight would be (4, 4)"),
    ],
)
def test_what_does_not_fit_is_named(tmp_path, change, says):
    source = write(tmp_path / "source", change(Torch().state_dict()))
    with pytest.raises(ValueError, match=re.escape(says)) as caught:
        import_lstm(source, tmp_path / "model")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "model").exists()


def test_a_vocabulary_that_is_none(tmp_path):
    source = write(tmp_path / "source", Torch().state_dict(), ["a", "a"])
    with pytest.raises(ValueError, match="no list of words"):
        import_lstm(source, tmp_path / "model")


@pytest.mark.corpora
def test_a_model_of_penn_treebank_reproduces_its_score(corpora_folder, tmp_path):
    source = corpora_folder.parent / "models" / "ptb-lstm-650"
    if not source.exists():
        pytest.skip(f"there is no {source.name} beside the corpora")
    import_lstm(source, tmp_path)
    checkpoint = models.load(tmp_path)
    text = corpora.load("ptb", checkpoint.vocabulary).read("valid")[:5_001]
    nats = torch.cat([*evaluate(Static(checkpoint.model), text.stream, 100)], 1)
    # as its training script measured it
    assert math.exp(nats.double().mean().item()) == pytest.approx(111.95, abs=0.01)
