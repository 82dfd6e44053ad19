import pytest
import torch
from torch import nn

import bayesify as bf


def test_prior_may_depend_on_the_site() -> None:
    net = nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 2))
    model = bf.convert(
        net,
        bf.MeanField(
            prior_std=lambda path, shape: shape[1] ** -0.5,
            prior_mean=lambda path, shape: 0.1 if path == "0.weight" else 0.0,
        ),
    )
    priors = [site.prior for site in model.bayesify.plan.sites]
    assert [prior.std for prior in priors] == pytest.approx([8**-0.5, 0.5])
    assert [prior.mean for prior in priors] == [0.1, 0.0]


def test_default_start_is_a_tenth_of_each_tensors_size() -> None:
    net = nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 2))
    model = bf.convert(net, bf.MeanField())
    for layer in (0, 1):
        size = net[layer].weight.square().mean().sqrt()
        std = model[layer].weight_posterior.dense_variance().sqrt()
        torch.testing.assert_close(std, (0.1 * size).expand_as(std))


def test_tensor_of_zeros_still_gets_a_positive_scale() -> None:
    net = nn.Linear(3, 2)
    nn.init.zeros_(net.weight)
    model = bf.convert(net, bf.MeanField())
    assert (model.weight_posterior.dense_variance() > 0).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"how": "flipout"}, "how must be 'sample' or 'local', got 'flipout'"),
        ({"scale": "row"}, "scale must be 'weight' or 'out', got 'row'"),
        ({"initial_std": 0.0}, "initial_std must be positive and finite, got 0.0"),
    ],
)
def test_wrong_choices_are_named(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        bf.MeanField(**options)
