"""Variational dropout: the noise drowns what the data do not need, and alpha stays bounded."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import bayesify as bf
from bayesify.conversion.posterior import posteriors


def loader() -> DataLoader[tuple[torch.Tensor, ...]]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(400, 6, generator=generator)
    y = x[:, :2] @ torch.tensor([[2.0], [-1.5]]) + 0.1 * torch.randn(400, 1, generator=generator)
    return DataLoader(TensorDataset(x, y), 100, shuffle=True)


def trained(noise: str) -> nn.Module:
    torch.manual_seed(0)
    model = bf.convert(nn.Linear(6, 1), bf.VariationalDropout(noise=noise))
    bf.fit(
        model,
        loader(),
        epochs=150,
        learning_rate=0.02,
        scale_learning_rate=0.05,
        likelihood=bf.GaussianRegression(0.1),
        seed=0,
        progress=False,
    )
    return model


def test_additive_noise_drowns_the_inputs_that_say_nothing() -> None:
    site = trained("additive").weight_posterior
    ratio = (site.mean.abs() / site.dense_variance().sqrt()).detach()[0]
    # Molchanov's rule prunes below |mean|/std = 0.223; the two real weights are far above it.
    assert (ratio[:2] > 50).all()
    assert (ratio[2:] < 0.83).float().mean() >= 0.75
    assert site.mean[0, 0].item() == pytest.approx(2.0, abs=0.03)


def test_multiplicative_alpha_stays_below_one_and_converges() -> None:
    model = trained("multiplicative")
    site = model.weight_posterior
    alpha = torch.sigmoid(site.logit_alpha).detach()[0]
    assert (alpha < 1).all()
    assert (alpha[:2] < 1e-2).all()
    assert site.mean[0, 1].item() == pytest.approx(-1.5, abs=0.03)


@pytest.mark.parametrize("noise", ["additive", "multiplicative"])
def test_sampled_weights_have_the_stated_moments(noise: str) -> None:
    torch.manual_seed(0)
    model = bf.convert(nn.Linear(6, 3), bf.VariationalDropout(noise=noise, initial_std=0.05))
    site = model.weight_posterior
    draws = torch.stack([site.sample() for _ in range(4000)]).detach()
    variance = site.dense_variance().detach()
    assert ((draws.mean(0) - site.dense_mean()).abs() < 4.5 * (variance / 4000).sqrt()).all()
    assert ((draws.var(0) / variance - 1).abs() < 4.5 * (2 / 3999) ** 0.5).all()


@pytest.mark.parametrize("scale", ["weight", "out"])
def test_multiplicative_noise_trains_through_every_stage(scale: str) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv1d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 1))
    method = bf.VariationalDropout(noise="multiplicative", scale=scale)
    model = bf.convert(nn.Sequential(nn.Unflatten(1, (1, 6)), net), method)
    history = bf.fit(model, loader(), epochs=10, learning_rate=0.02, progress=False)
    assert history.last["nll"] < history.rows[0]["nll"]
    assert bf.kl(model).item() > 0


def test_kl_is_a_function_of_alpha_alone() -> None:
    model = bf.convert(nn.Linear(6, 3), bf.VariationalDropout(noise="multiplicative"))
    before = bf.kl(model).item()
    model.weight_posterior.mean.data *= 7
    assert bf.kl(model).item() == before


def test_wrong_noise_is_named() -> None:
    with pytest.raises(ValueError, match="noise must be 'additive' or 'multiplicative', got 'x'"):
        bf.VariationalDropout(noise="x")


@pytest.mark.parametrize(("noise", "kl"), [("additive", "molchanov"), ("multiplicative", "kingma")])
def test_published_fits_train_to_the_exact_answer(noise: str, kl: str) -> None:
    torch.manual_seed(0)
    model = bf.convert(nn.Linear(6, 1), bf.VariationalDropout(noise=noise, kl=kl))
    options = {"learning_rate": 0.02, "scale_learning_rate": 0.05, "seed": 0, "progress": False}
    likelihood = bf.GaussianRegression(0.1)
    bf.fit(model, loader(), epochs=150, likelihood=likelihood, **options)
    exact = trained(noise).weight_posterior
    torch.testing.assert_close(
        model.weight_posterior.mean[0, :2], exact.mean[0, :2], rtol=0.01, atol=0
    )


def test_kingma_fit_of_additive_noise_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="needs noise='multiplicative', got noise='additive'"):
        bf.VariationalDropout(kl="kingma")
    with pytest.raises(ValueError, match="kl must be 'exact', 'molchanov' or 'kingma', got 'x'"):
        bf.VariationalDropout(kl="x")


@pytest.mark.parametrize("noise", ["additive", "multiplicative"])
@pytest.mark.parametrize("how", ["sample", "local"])
@pytest.mark.parametrize(
    ("layer", "inputs"),
    [
        (nn.Linear(4, 3), torch.randn(2, 4)),
        (nn.Conv2d(2, 3, 3, padding=1), torch.randn(1, 2, 5, 5)),
        (nn.ConvTranspose1d(2, 3, 3), torch.randn(1, 2, 5)),
        (nn.Embedding(6, 3), torch.tensor([[0, 5]])),
        (nn.Embedding(6, 3, padding_idx=0), torch.tensor([[0, 5]])),
        (nn.LSTM(4, 3), torch.randn(5, 2, 4)),
        (nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0), torch.randn(5, 2, 4)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_every_layer_type_takes_the_noise_trains_and_is_itself_without_it(
    noise: str, how: str, layer: nn.Module, inputs: torch.Tensor
) -> None:
    model = bf.convert(layer, bf.VariationalDropout(noise=noise, how=how))
    first = lambda output: output[0] if isinstance(output, tuple) else output  # noqa: E731
    with bf.mean_weights(model):
        torch.testing.assert_close(first(model(inputs)), first(layer(inputs)), rtol=0, atol=1e-6)
    torch.manual_seed(0)
    one, other = first(model(inputs)), first(model(inputs))
    assert not torch.equal(one, other)
    (one.square().sum() + bf.kl(model)).backward()
    scales = [entry for site in posteriors(model) for entry in site.scale_parameters()]
    assert scales
    assert all(torch.isfinite(entry.grad).all() and entry.grad.any() for entry in scales)
