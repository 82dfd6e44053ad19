import pytest
import torch
from torch import nn

from bayesify.conversion import convert
from bayesify.conversion.layer_class import (
    bayesian_class,
    is_bayesian,
    plain_class,
    posterior_of,
)
from bayesify.conversion.posterior import Posterior
from bayesify.methods import MeanField
from specimens import Dense


def test_a_class_is_made_once_and_knows_what_it_came_from():
    first, second = (bayesian_class(nn.Linear, ("weight",), False) for _ in range(2))
    assert first is second
    assert issubclass(first, nn.Linear)
    assert plain_class(first) is nn.Linear
    assert plain_class(bayesian_class(nn.Linear, ("weight",), True)) is nn.Linear
    assert plain_class(nn.Linear) is nn.Linear


def test_only_what_was_converted_is_bayesian():
    model = convert(Dense(), MeanField(where="head"))
    assert is_bayesian(model)
    assert is_bayesian(model.head)
    assert not is_bayesian(model.hidden)
    assert type(model.hidden) is nn.Linear
    assert isinstance(posterior_of(model.head, "weight"), Posterior)
    assert posterior_of(model.head, "bias") is None


def test_a_bayesian_tensor_is_read_by_its_own_name():
    model = convert(Dense(), MeanField())
    assert isinstance(model.head.weight, torch.Tensor)
    assert model.head.weight.shape == (3, 5)
    assert "weight" not in dict(model.head.named_parameters(recurse=False))
    assert list(model.state_dict()) == [
        "hidden.bias",
        "hidden.weight_posterior.mean",
        "hidden.weight_posterior.rho",
        "head.bias",
        "head.weight_posterior.mean",
        "head.weight_posterior.rho",
    ]


def test_a_bayesian_tensor_cannot_be_overwritten_by_mistake():
    model = convert(Dense(), MeanField())
    with pytest.raises(AttributeError):
        model.head.weight = torch.zeros(3, 5)
    with pytest.raises(KeyError):
        model.head.weight = nn.Parameter(torch.zeros(3, 5))


def test_the_users_super_calls_and_properties_still_work():
    class Base(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(2, 2)

        def forward(self, x):
            return self.layer(x)

        @property
        def width(self):
            return self.layer.out_features

    class Derived(Base):
        def forward(self, x):
            return super().forward(x) + self.width

    model = convert(Derived(), MeanField())
    assert model(torch.zeros(1, 2)).shape == (1, 2)
    assert isinstance(model, Base)
    assert model.width == 2
