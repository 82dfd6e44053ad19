"""FLOPs against counting by hand, and against torch's own counter."""

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import bayesify as bf
from bayesify.compression import count_flops


def test_a_linear_layer_takes_two_per_weight() -> None:
    found = count_flops(nn.Linear(30, 20), torch.randn(7, 30))
    assert found.inference == found.dense_inference == 2 * 600
    assert found.training == 3 * 2 * 600


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(4, 6, 3, stride=2, padding=1),
        nn.Conv2d(4, 6, 3, groups=2, dilation=2),
        nn.ConvTranspose2d(4, 6, 3, stride=2),
        nn.Conv1d(4, 6, 5),
    ],
    ids=["strided", "grouped", "transposed", "one axis"],
)
def test_convolutions_agree_with_torch(layer: nn.Module) -> None:
    shape = (3, 4, 12) if isinstance(layer, nn.Conv1d) else (3, 4, 12, 11)
    inputs = torch.randn(shape)
    with FlopCounterMode(display=False) as counter:
        layer(inputs)
    assert count_flops(layer, inputs).inference == pytest.approx(counter.get_total_flops() / 3)


def test_a_whole_network_agrees_with_torch() -> None:
    net = bf.build_model("resnet_20", width=4)
    inputs = torch.randn(2, 3, 32, 32)
    with FlopCounterMode(display=False) as counter:
        net.eval()(inputs)
    found = count_flops(net, inputs)
    assert found.inference == pytest.approx(counter.get_total_flops() / 2)
    assert "FLOPs per example and pass" in str(found)


def test_live_weights_count_and_local_noise_counts_twice() -> None:
    net = nn.Sequential(nn.Linear(10, 10), nn.ReLU(), nn.Linear(10, 10))
    sparse = bf.convert(net, bf.SparseSubspace(0.1, first_dense=False))
    dense = bf.convert(net, bf.MeanField(how="sample"))
    inputs = torch.randn(4, 10)
    found, whole = count_flops(sparse, inputs), count_flops(dense, inputs)
    assert found.inference == pytest.approx(0.1 * whole.inference)
    assert found.training == pytest.approx(0.2 * whole.training)
    assert found.average_training(100) == pytest.approx(found.training + 2 * 2 * 180 / 100)


def test_counting_leaves_no_trace() -> None:
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2))
    model = bf.convert(net, bf.MeanField())
    before = {key: value.clone() for key, value in model.state_dict().items()}
    count_flops(model, torch.randn(4, 1, 8, 8))
    assert model.training
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert not any(module._forward_hooks for module in model.modules())


def test_a_layer_that_is_called_twice_counts_twice() -> None:
    layer = nn.Linear(5, 5)
    found = count_flops(nn.Sequential(layer, nn.ReLU(), layer), torch.randn(2, 5))
    assert found.inference == 2 * 2 * 25


def test_an_empty_batch_takes_nothing() -> None:
    assert count_flops(nn.Linear(3, 2), torch.randn(0, 3)).inference == 0
