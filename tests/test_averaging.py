import pytest
import torch
from torch import nn

from dyneval.averaging import Average, stuck


def walk(model, steps, generator):
    """Move the weights at random, so many times."""
    for _ in range(steps):
        with torch.no_grad():
            for weight in model.parameters():
                weight.add_(torch.randn(weight.shape, generator=generator, dtype=weight.dtype))
        yield [weight.detach().clone() for weight in model.parameters()]


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Linear(3, 2).double()


def test_the_mean_of_the_steps_since_it_began(model):
    generator, average = torch.Generator().manual_seed(1), Average(model)
    seen = []
    for k, weights in enumerate(walk(model, 9, generator)):
        average.step()
        seen.append(weights)
        if k == 3:
            average.begin()
            seen = []
    assert average.count == 5
    before = [weight.clone() for weight in model.parameters()]
    with average.in_place():
        for weight, values in zip(model.parameters(), zip(*seen, strict=True), strict=True):
            torch.testing.assert_close(weight.detach(), torch.stack(values).mean(0))
    assert all(map(torch.equal, before, model.parameters()))


def test_as_torch_s_asgd():
    """With its λ of 0; its mean leaves the first step out."""
    torch.manual_seed(2)
    ours, theirs = nn.Linear(4, 1), nn.Linear(4, 1)
    theirs.load_state_dict(ours.state_dict())
    average = Average(ours)
    optimizers = [
        torch.optim.SGD(ours.parameters(), lr=0.1, weight_decay=1e-2),
        torch.optim.ASGD(theirs.parameters(), lr=0.1, lambd=0, t0=0, weight_decay=1e-2),
    ]
    for k, x in enumerate(torch.randn(7, 5, 4)):
        if k == 1:
            average.begin()
        for model, optimizer in zip((ours, theirs), optimizers, strict=True):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
        average.step()
    means = [optimizers[1].state[weight]["ax"] for weight in theirs.parameters()]
    for mean, weight in zip(means, ours.parameters(), strict=True):
        with average.in_place():
            torch.testing.assert_close(weight.detach(), mean)


def test_without_an_average_the_weights_stay(model):
    average = Average(model)
    average.step()
    assert not average.on
    assert average.state_dict() == {}
    before = [weight.clone() for weight in model.parameters()]
    with average.in_place():
        assert all(map(torch.equal, before, model.parameters()))


def test_goes_on_from_its_state(model):
    generator, average = torch.Generator().manual_seed(1), Average(model)
    average.begin()
    for _ in walk(model, 3, generator):
        average.step()
    other = Average(model)
    other.load_state_dict(average.state_dict(), average.count)
    for _ in walk(model, 2, generator):
        average.step()
        other.step()
    assert other.count == 5
    for name, mean in average.state_dict().items():
        assert torch.equal(mean, other.state_dict()[name])


@pytest.mark.parametrize(
    ("losses", "expected"),
    [
        ([], False),
        ([3.0], False),
        ([3.0, 9.0, 9.0], False),  # nothing lies more than two back
        ([3.0, 9.0, 9.0, 4.0], True),
        ([3.0, 9.0, 9.0, 3.0], False),  # no worse
        ([4.0, 3.0, 2.0, 2.5, 2.9], False),  # better than both that count
        ([4.0, 3.0, 2.0, 2.5, 3.1], True),
    ],
)
def test_when_the_loss_is_stuck(losses, expected):
    assert stuck(losses, 2) is expected
