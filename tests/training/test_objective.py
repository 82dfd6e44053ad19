import pytest
import torch
from torch import nn

import bayesify as bf


def test_elbo_loss_is_nll_plus_weighted_kl() -> None:
    model = bf.convert(nn.Linear(4, 3), bf.MeanField())
    nll = torch.tensor(2.0, requires_grad=True)
    loss = bf.elbo_loss(nll, model, num_data=50, beta=0.3)
    expected = 2.0 + 0.3 * bf.kl(model).item() / 50
    assert loss.total.item() == pytest.approx(expected, rel=1e-6)
    assert loss.nll is nll
    assert loss.kl.item() == pytest.approx(bf.kl(model).item())


def test_elbo_loss_sums_over_an_epoch_to_the_whole_kl() -> None:
    model = bf.convert(nn.Linear(4, 3), bf.MeanField())
    sizes = [20, 20, 10]
    weighted = [
        size * (bf.elbo_loss(torch.tensor(0.0), model, num_data=50).total) for size in sizes
    ]
    assert sum(weighted).item() == pytest.approx(bf.kl(model).item(), rel=1e-6)


def test_beta_zero_switches_an_infinite_kl_off() -> None:
    model = bf.convert(nn.Linear(4, 3), bf.MeanField())
    model.weight_posterior.rho.data.fill_(-torch.inf)
    assert bf.elbo_loss(torch.tensor(1.0), model, num_data=5, beta=0.0).total.item() == 1.0


def test_plain_model_has_no_kl() -> None:
    assert bf.elbo_loss(torch.tensor(1.0), nn.Linear(2, 2), num_data=5).total.item() == 1.0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"nll": torch.zeros(3), "num_data": 5}, "nll must be a scalar"),
        ({"nll": 1.0, "num_data": 5}, "nll must be a scalar"),
        ({"nll": torch.tensor(1.0), "num_data": 0}, "num_data must be the number"),
        ({"nll": torch.tensor(1.0), "num_data": float("nan")}, "num_data must be the number"),
        ({"nll": torch.tensor(1.0), "num_data": 5, "beta": -1.0}, "beta must be a finite number"),
    ],
)
def test_wrong_arguments_are_named(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        bf.elbo_loss(model=nn.Linear(1, 1), **arguments)


def test_num_data_has_no_default() -> None:
    with pytest.raises(TypeError, match="num_data"):
        bf.elbo_loss(torch.tensor(1.0), nn.Linear(1, 1))  # type: ignore[call-arg]
