"""A layer with few output units left gives what the dense layer gives, faster."""

import pytest
import torch
from torch import Tensor, nn

import bayesify as bf
from bayesify.conversion import live_rows as module
from bayesify.conversion.live_rows import live_rows

LAYERS = {
    "linear": (lambda bias: nn.Linear(7, 12, bias=bias), (3, 7)),
    "tokens": (lambda bias: nn.Linear(7, 12, bias=bias), (2, 5, 7)),
    "conv1d": (lambda bias: nn.Conv1d(3, 12, 3, bias=bias), (2, 3, 9)),
    "conv2d": (
        lambda bias: nn.Conv2d(3, 12, 3, 2, padding=1, padding_mode="circular", bias=bias),
        (2, 3, 9, 8),
    ),
    "unbatched": (lambda bias: nn.Conv2d(3, 12, 3, bias=bias), (3, 9, 8)),
    "conv3d": (lambda bias: nn.Conv3d(2, 12, 2, dilation=2, bias=bias), (2, 2, 5, 5, 5)),
}


@pytest.fixture(autouse=True)
def every_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LEAST_WEIGHTS", 0)


def sparse(name: str, *, bias: bool = True, how: str = "sample", **options: object) -> nn.Module:
    torch.manual_seed(0)
    layer = LAYERS[name][0](bias)
    choices = {"pattern": "filter", "first_dense": False, "initial_std": 0.1, **options}
    return bf.convert(layer, bf.SparseSubspace(0.25, how=how, **choices))


def dense_output(model: nn.Module, x: Tensor, monkeypatch: pytest.MonkeyPatch) -> Tensor:
    with monkeypatch.context() as patched:
        patched.setattr(module, "LARGEST_DENSITY", -1.0)
        torch.manual_seed(3)
        return model(x)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("name", LAYERS)
def test_drawn_weights_give_the_same_outputs_and_gradients(
    name: str, bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x = sparse(name, bias=bias), torch.randn(LAYERS[name][1], requires_grad=True)
    rows = live_rows(model, model.weight_posterior, x.detach())
    assert rows is not None
    assert len(rows) == 3
    torch.manual_seed(3)
    results = []
    for output in (model(x), dense_output(model, x, monkeypatch)):
        parameters = [x, *model.parameters()]
        results.append((output, *torch.autograd.grad(output.square().sum(), parameters)))
    for fast, slow in zip(*results, strict=True):
        torch.testing.assert_close(fast, slow)


@pytest.mark.parametrize("name", ["linear", "conv2d"])
def test_drawn_outputs_have_the_same_law(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = sparse(name, how="local"), torch.randn(LAYERS[name][1])
    number = 1500
    fast = torch.stack([model(x) for _ in range(number)])
    slow = torch.stack([dense_output(model, x, monkeypatch) for _ in range(1)])[0]
    with bf.mean_weights(model):
        mean = model(x)
    std = fast.std(0)
    assert ((fast.mean(0) - mean).abs() <= 5 * std / number**0.5 + 1e-6).all()
    squares = x.square()
    variance = model.weight_posterior.dense_variance().detach()
    layer = nn.Linear(7, 12, bias=False) if name == "linear" else LAYERS[name][0](False)
    layer.weight.data = variance
    expected = layer(squares).sqrt()
    torch.testing.assert_close(std, expected.detach(), rtol=5 * (2 * number) ** -0.5, atol=1e-6)
    assert slow.shape == fast[0].shape


def test_it_follows_the_rows_when_they_move_or_are_read_from_a_state() -> None:
    model, x = sparse("linear"), torch.randn(4, 7)
    other = sparse("linear", seed=5)
    first = live_rows(model, model.weight_posterior, x)
    model.load_state_dict(other.state_dict())
    now = live_rows(model, model.weight_posterior, x)
    assert first is not None
    assert now is not None
    assert first.tolist() != now.tolist()
    with bf.mean_weights(model), bf.mean_weights(other):
        torch.testing.assert_close(model(x), other(x))


def test_rows_that_exist_in_part_are_not_taken_for_whole_ones() -> None:
    for pattern in ("free", "4x1"):
        model = sparse("linear", pattern=pattern)
        assert live_rows(model, model.weight_posterior, torch.randn(2, 7)) is None
    model = sparse("linear")
    site = model.weight_posterior
    site.index = site.index.clone()
    site.index[0] = 83 if 83 not in site.index.tolist() else 0
    assert live_rows(model, site, torch.randn(2, 7)) is None


def test_a_step_that_grows_sees_the_gradient_of_the_whole_tensor() -> None:
    model = sparse("linear")
    site = model.weight_posterior
    site.keeps_gradient = True
    model(torch.randn(5, 7)).sum().backward()
    assert site.gradient is not None
    assert bool((site.gradient != 0).all())


def test_it_works_under_autocast_and_with_an_empty_batch() -> None:
    model = sparse("linear")
    with torch.autocast("cpu", torch.bfloat16), bf.mean_weights(model):
        half = model(torch.ones(2, 7))
    with bf.mean_weights(model):
        torch.testing.assert_close(half.float(), model(torch.ones(2, 7)), rtol=2e-2, atol=2e-2)
        assert model(torch.ones(0, 7)).shape == (0, 12)
