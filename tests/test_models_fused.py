"""On a GPU, training uses torch's own kernels for the cells; they compute the same."""

import copy

import pytest
import torch
from conftest import MODELS, VOCABULARY, tiny

from dyneval.models import lstm, mlstm

LAYERS = {"lstm": (lstm.Layer, (20, 5)), "mlstm": (mlstm.Layer, (4, 5))}  # a mask's shape


@pytest.mark.parametrize("masked", [False, True], ids=["plain", "masked"])
@pytest.mark.parametrize("name", LAYERS)
def test_outputs_states_and_gradients_of_a_layer(name, masked):
    torch.manual_seed(0)
    build, shape = LAYERS[name]
    layer = build(6, 5).double()
    mask = torch.bernoulli(torch.full(shape, 0.5)).double() if masked else 1.0
    drawn = layer.weight_hh * mask if name == "lstm" else mask  # what training drops out
    x = torch.randn(4, 7, 6, dtype=torch.double, requires_grad=True)
    h, c = torch.randn(2, 4, 5, dtype=torch.double)
    values = []
    for y, after in (layer(x, (h, c), None, drawn), layer.fused(x, h, c, drawn)):
        total = y.square().sum() + after[0].sum() + after[1].sin().sum()
        gradients = torch.autograd.grad(total, [x, *layer.parameters()], retain_graph=True)
        values.append([y, *after, *gradients])
    for ours, theirs in zip(*values, strict=True):
        torch.testing.assert_close(theirs, ours, rtol=1e-10, atol=1e-10)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
@pytest.mark.parametrize("low", [False, True], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("name", [name for name in MODELS if name != "small"])
def test_a_step_of_training_on_a_gpu(name, low):
    """Two segments, the state carried: the loss and its gradients are those of the CPU."""
    model = tiny(name).float()
    for key in model.settings:
        if key.endswith("dropout"):
            model.settings[key] = 0.0
    tokens = torch.randint(VOCABULARY, (4, 9), generator=torch.Generator().manual_seed(5))
    values = []
    for device in ("cpu", "cuda"):
        own, read = copy.deepcopy(model).to(device).train(), tokens.to(device)
        with torch.autocast(device, torch.bfloat16, enabled=low and device == "cuda"):
            _, state = own.hidden(read)
            logits = own.logits(own.hidden(read, state)[0])
        loss = torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), read.flatten())
        values.append([loss, *torch.autograd.grad(loss, list(own.parameters()))])
    for ours, theirs in zip(*values, strict=True):
        near = (0.1 if low else 0.01) * ours.abs().max().item()  # TF32 at best
        torch.testing.assert_close(theirs.cpu(), ours, rtol=0, atol=near)
