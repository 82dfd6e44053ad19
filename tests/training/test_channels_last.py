"""Channels last: the same numbers in another order of memory, in training and resumed runs."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import bayesify as bf
from bayesify.conversion.posterior import posteriors
from bayesify.training.channels_last import channels_last, hold_channels_last_
from bayesify.training.settings import FitSettings

FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}


def problem(num_axes: int, dtype: torch.dtype = torch.float32) -> TensorDataset:
    shape = (6,) if num_axes == 4 else (4, 5)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(24, 3, 7, *shape, generator=generator, dtype=dtype)
    return TensorDataset(x, (x.flatten(1).mean(1) > 0).long())


def network(num_axes: int) -> nn.Module:
    torch.manual_seed(0)
    is_image = num_axes == 4
    convolution, norm = (nn.Conv2d, nn.BatchNorm2d) if is_image else (nn.Conv3d, nn.BatchNorm3d)
    pool = nn.AdaptiveAvgPool2d(1) if is_image else nn.AdaptiveAvgPool3d(1)
    layers = (convolution(3, 4, 3), norm(4), nn.ReLU(), convolution(4, 5, 2), pool)
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(5, 2))


def train(method: bf.Method, num_axes: int = 4, **options: Any) -> tuple[nn.Module, bf.History]:
    model = bf.convert(network(num_axes), method)
    dtype = torch.float64 if options.get("precision") == "64-true" else torch.float32
    examples = problem(num_axes, dtype)
    # An order of its own: draws that fall otherwise also leave the global generator otherwise.
    order = torch.Generator().manual_seed(2)
    batches = DataLoader(examples, 8, shuffle=True, generator=order)
    settings = {"epochs": 2, "seed": 1, "progress": False, "accelerator": "cpu", **options}
    return model, bf.fit(model, batches, DataLoader(examples, 12), **settings)


def is_channels_last(tensor: Tensor) -> bool:
    return tensor.is_contiguous(memory_format=FORMATS[tensor.ndim])


def kernels(model: nn.Module) -> list[Tensor]:
    return [entry for entry in model.parameters() if entry.ndim in FORMATS]


@pytest.mark.parametrize("num_axes", [4, 5])
def test_kernels_and_their_draws_lie_channels_last_and_hold_the_same_numbers(num_axes: int) -> None:
    model = bf.convert(network(num_axes), bf.MeanField())
    before = {name: value.clone() for name, value in model.state_dict().items()}
    parameters = list(model.parameters())
    hold_channels_last_(model)
    assert all(a is b for a, b in zip(parameters, model.parameters(), strict=True))
    assert len(kernels(model)) == 4  # a mean and a scale of either convolution
    assert all(is_channels_last(kernel) for kernel in kernels(model))
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    draws = [site.sample() for site in posteriors(model) if len(site.shape) == num_axes]
    assert len(draws) == 2
    assert all(is_channels_last(draw) for draw in draws)


def test_a_model_of_images_and_volumes_is_held_too() -> None:
    model = nn.ModuleList([nn.Conv2d(3, 4, 3), nn.Conv3d(3, 4, 3), nn.Linear(3, 4)])
    hold_channels_last_(model)
    assert all(is_channels_last(kernel) for kernel in kernels(model))


def test_nested_inputs_lie_channels_last_where_they_have_channels() -> None:
    image, volume, row = torch.rand(2, 3, 4, 4), torch.rand(2, 3, 4, 4, 4), torch.rand(2, 3)
    found = channels_last({"image": image, "others": (volume, row)})
    assert is_channels_last(found["image"])
    assert is_channels_last(found["others"][0])
    assert torch.equal(found["image"], image)
    assert found["others"][1] is row
    assert channels_last(torch.rand(0, 3, 4, 4)).shape == (0, 3, 4, 4)


@pytest.mark.parametrize("num_axes", [4, 5])
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize(
    "method",
    # A spread of nothing: draws fall on other entries, which must not be seen here.
    [
        bf.Deterministic(),
        bf.MeanField(prior_std=0.5, initial_std=1e-12),
        bf.MonteCarloKL("radial", estimator="closed", initial_std=1e-12),
    ],
    ids=lambda method: method.name,
)
def test_training_is_the_same_up_to_rounding(
    method: bf.Method, optimizer: str, num_axes: int
) -> None:
    options: dict[str, Any] = {"optimizer": optimizer, "precision": "64-true"}
    plain, history = train(method, num_axes, **options)
    other, other_history = train(method, num_axes, channels_last=True, **options)
    assert all(is_channels_last(kernel) for kernel in kernels(other))
    for (name, a), b in zip(plain.named_parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-9, msg=name)
    for name in ("nll", "kl", "val_nll"):
        assert other_history.last[name] == pytest.approx(history.last[name], rel=1e-8)


@pytest.mark.parametrize("num_axes", [4, 5])
def test_a_resumed_run_ends_with_the_same_bits(num_axes: int, tmp_path: Path) -> None:
    options: dict[str, Any] = {"channels_last": True, "num_axes": num_axes}
    whole, _ = train(bf.MeanField(), epochs=3, schedule="constant", **options)
    train(bf.MeanField(), epochs=1, schedule="constant", run_dir=tmp_path, **options)
    resumed, history = train(
        bf.MeanField(), epochs=3, schedule="constant", run_dir=tmp_path, resume=True, **options
    )
    assert len(history.rows) == 3
    for (name, a), b in zip(whole.named_parameters(), resumed.parameters(), strict=True):
        assert torch.equal(a, b), name


def test_a_model_held_channels_last_is_saved_loaded_and_compressed(tmp_path: Path) -> None:
    model, _ = train(bf.MeanField(), channels_last=True)
    bf.save(model, tmp_path / "model.safetensors")
    again = bf.load(tmp_path / "model.safetensors", network(4))
    x = problem(4).tensors[0]
    with bf.mean_weights(model), bf.mean_weights(again):
        torch.testing.assert_close(model(x), again(x))
    small = bf.compress(model, keep=0.5)
    assert bf.predict(small, x, num_samples=2).probs.shape == (24, 2)


def test_sharded_parameters_are_refused() -> None:
    with pytest.raises(ValueError, match="channels_last=True cannot be combined with strategy"):
        FitSettings(epochs=1, channels_last=True, strategy="fsdp")
