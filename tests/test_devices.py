import pytest
import torch

from dyneval import devices
from dyneval.engines import Reference
from dyneval.gradient_stats import without_statistics
from dyneval.reading import Reader
from dyneval.rules import Sgd

TOKENS = torch.tensor([[3, 1, 4, 1, 5]])


def test_a_device_by_its_name():
    assert devices.find("auto") == devices.find("cpu") == torch.device("cpu")
    assert devices.describe(torch.device("cpu")) == "cpu"


@pytest.mark.parametrize("name", ["gpu", "cuda:1000", "meta", ""])
def test_a_device_that_is_not_here_is_a_mistake(name):
    with pytest.raises(ValueError, match=f"there is no device '{name}' here .*give auto, cpu"):
        devices.find(name)


class Elsewhere(torch.nn.Module):
    """A model that looks at where its tokens and its state are."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(7, 7, device="meta"))
        self.seen = []

    def hidden(self, tokens, state=None):
        self.seen += [tokens.device.type] + ([] if state is None else [state[0].device.type])
        h = self.weight[tokens]
        return h, (h[:, -1],)

    def logits(self, h):
        return h


def test_what_is_read_and_a_state_that_is_loaded_come_to_the_model():
    """A device without numbers shows where things are, on every machine."""
    model = Elsewhere()
    reader = Reader(model, torch.device("meta"))
    reader.load_state_dict({"state.0.0": torch.zeros(1, 7)}, 1)
    read = reader.read(TOKENS)
    assert model.seen == ["meta", "meta"]
    assert read.nats(TOKENS).device.type == "meta"
    engine = Reference(model, Sgd(0.1), without_statistics(model))
    engine.load_state_dict({"weights.weight": torch.ones(7, 7), "state.0": torch.zeros(1, 7)})
    engine.predict(TOKENS)
    engine.learn(TOKENS)
    assert engine._theta["weight"].device.type == "meta"
