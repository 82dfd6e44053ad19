"""One step of both optimisers: clipped apart, unscaled alike."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import bayesify as bf
from training.small_problem import data, network


def run(method: bf.Method, **options: Any) -> None:
    model = bf.convert(network(), method)
    bf.fit(model, DataLoader(data(), 32), seed=0, progress=False, **options)


def test_clipping_bounds_the_gradient_of_means_and_of_scales(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    norms = []
    step = torch.optim.Adam.step

    def watched(self: torch.optim.Adam, *args: Any, **kwargs: Any) -> Any:
        parameters = [p for group in self.param_groups for p in group["params"]]
        norms.append(torch.cat([p.grad.flatten() for p in parameters]).norm().item())
        return step(self, *args, **kwargs)

    monkeypatch.setattr(torch.optim.Adam, "step", watched)
    run(bf.MeanField(initial_std=0.5), epochs=1, clip_norm=1e-3)
    assert len(norms) == 6
    assert norms == pytest.approx([1e-3] * 6, rel=1e-3)


def test_scaled_gradients_of_both_optimisers_are_unscaled_alike() -> None:
    from lightning_fabric import Fabric
    from lightning_fabric.plugins.precision.amp import MixedPrecision

    from bayesify.training.engine import step_optimizers

    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=1)
    fabric = Fabric(accelerator="cpu", plugins=[MixedPrecision("16-mixed", "cpu", scaler)])
    weights = [nn.Parameter(torch.zeros(())) for _ in range(2)]
    made = fabric.setup_optimizers(*(torch.optim.SGD([weight], lr=1.0) for weight in weights))
    fabric.backward(weights[0] + weights[1])
    step_optimizers(fabric, nn.Module(), made, clip_norm=None)
    assert [weight.item() for weight in weights] == [-1.0, -1.0]
    assert scaler.get_scale() == 8.0
