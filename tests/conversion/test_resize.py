"""resize_: a fresh network takes the sizes of one that has lost units."""

import pytest
import torch
from torch import nn

import bayesify as bf
from bayesify.conversion.resize import resize_, sizes_of, smaller_tensors, take_tensors_


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 6, 3),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.ConvTranspose2d(6, 4, 2),
        nn.Flatten(),
        nn.Linear(4 * 9, 5),
        nn.ReLU(),
        nn.Linear(5, 3, bias=False),
    )


def test_a_network_takes_smaller_sizes() -> None:
    net = network()
    net[5].bias.requires_grad_(False)
    resize_(
        net,
        {
            "0": {"out_channels": 2},
            "1": {"num_features": 2},
            "3": {"in_channels": 2, "out_channels": 3},
            "5": {"in_features": 27, "out_features": 1},
            "7": {"in_features": 1},
        },
    )
    shapes = {key: tuple(value.shape) for key, value in net.state_dict().items()}
    assert shapes == {
        "0.weight": (2, 2, 3, 3),
        "0.bias": (2,),
        "1.weight": (2,),
        "1.bias": (2,),
        "1.running_mean": (2,),
        "1.running_var": (2,),
        "1.num_batches_tracked": (),
        "3.weight": (2, 3, 2, 2),
        "3.bias": (3,),
        "5.weight": (1, 27),
        "5.bias": (1,),
        "7.weight": (3, 1),
    }
    assert net[5].weight.requires_grad
    assert not net[5].bias.requires_grad
    assert (net[5].in_features, net[5].out_features) == (27, 1)
    assert net(torch.randn(2, 2, 4, 4)).shape == (2, 3)


def test_an_embedding_and_a_norm_without_tensors_shrink() -> None:
    net = nn.Sequential(
        nn.Embedding(5, 4), nn.BatchNorm1d(4, affine=False, track_running_stats=False)
    ).double()
    resize_(net, {"0": {"embedding_dim": 3}, "1": {"num_features": 3}})
    out = net(torch.arange(5))
    assert out.shape == (5, 3)
    assert out.dtype == torch.float64


@pytest.mark.parametrize(
    ("resized", "message"),
    [
        ({"9": {"in_features": 2}}, "layer '9', which the network has not"),
        ({"2": {"in_features": 2}}, "'2', which is a ReLU"),
        ({"0": {"in_features": 2}}, "in_features=2 of the layer '0', which is a Conv2d"),
        ({"5": {"in_features": 37}}, "'5' between 1 and 36 in_features, got 37"),
        ({"5": {"in_features": 0}}, "'5' between 1 and 36 in_features, got 0"),
    ],
)
def test_sizes_of_another_architecture_are_refused_and_nothing_changes(
    resized: dict[str, dict[str, int]], message: str
) -> None:
    net = network()
    before = {key: value.shape for key, value in net.state_dict().items()}
    with pytest.raises(ValueError, match=message):
        resize_(net, {"7": {"in_features": 2}, **resized})
    assert {key: value.shape for key, value in net.state_dict().items()} == before
    assert net[7].in_features == 5


def test_grouped_channels_cannot_shrink() -> None:
    assert sizes_of(nn.Conv2d(4, 4, 3, groups=2)) is None
    with pytest.raises(ValueError, match="cannot shrink that way"):
        resize_(nn.Sequential(nn.Conv2d(4, 4, 3, groups=2)), {"0": {"out_channels": 2}})


def test_both_sizes_of_a_posterior_shrink_at_once() -> None:
    model = bf.convert(nn.Linear(4, 6), bf.MeanField(biases=True, scale="out"))
    mean = model.weight_posterior.mean.detach().clone()
    units = {"in_features": torch.tensor([0, 3]), "out_features": torch.tensor([1, 2, 5])}
    tensors = smaller_tensors(model, units)
    assert model.weight_posterior.shape == (6, 4)
    take_tensors_(model, tensors, {"in_features": 2, "out_features": 3})
    assert torch.equal(model.weight_posterior.mean, mean[[1, 2, 5]][:, [0, 3]])
    assert model.weight_posterior.rho.shape == (3, 1)
    assert model.bias_posterior.shape == (3,)
    assert model(torch.randn(0, 2)).shape == (0, 3)


def test_a_resized_network_takes_a_shrunk_networks_weights() -> None:
    small = nn.Sequential(nn.Linear(4, 2), nn.ReLU(), nn.Linear(2, 3))
    net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    resize_(net, {"0": {"out_features": 2}, "2": {"in_features": 2}})
    net.load_state_dict(small.state_dict())
    x = torch.randn(5, 4)
    assert torch.equal(net(x), small(x))
    assert str(net) == str(small)
