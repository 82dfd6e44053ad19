"""Training on inputs with a variance: the known posterior, other methods' draws, and precision."""

from typing import Any

import pytest
import torch
from torch import nn

import bayesify as bf
from bayesify.data import TensorData, loader, uncertain

NOISE_STD, PRIOR_STD, NUM_DATA = 0.5, 1.5, 64


def problem() -> tuple[bf.Moments, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    mean = torch.randn(NUM_DATA, 3, generator=generator)
    variance = torch.rand(NUM_DATA, 3, generator=generator) * torch.tensor([0.1, 1.0, 2.0])
    noise = NOISE_STD * torch.randn(NUM_DATA, 1, generator=generator)
    return bf.Moments(mean, variance), mean @ torch.tensor([[0.8], [-1.2], [0.3]]) + noise


def known_posterior() -> tuple[torch.Tensor, torch.Tensor]:
    """Return mean and variance of the optimum under the expected squared error.

    E (y - w'x)^2 = (y - w'm)^2 + sum_j w_j^2 v_j: noise at the input is a ridge on the weights.
    """
    x, y = problem()
    m, v = (each.double() for each in x.pair())
    ridge = torch.diag(v.sum(0))
    precision = (m.T @ m + ridge) / NOISE_STD**2 + torch.eye(3, dtype=torch.float64) / PRIOR_STD**2
    mean = torch.linalg.solve(precision, m.T @ y.double() / NOISE_STD**2).T
    return mean, 1 / precision.diagonal().unsqueeze(0)


@pytest.mark.parametrize(
    "method", [bf.MomentPropagation(prior_std=PRIOR_STD), bf.FullCovariance(prior_std=PRIOR_STD)]
)
def test_fit_finds_the_posterior_that_a_ridge_of_the_noise_gives(method: bf.Method) -> None:
    torch.manual_seed(0)
    mean, variance = known_posterior()
    model = bf.convert(nn.Linear(3, 1, bias=False), method)
    bf.fit(
        model,
        [problem()],
        epochs=800,
        num_data=NUM_DATA,
        likelihood=bf.GaussianRegression(NOISE_STD),
        learning_rate=4e-2,
        scale_learning_rate=4e-2,
        progress=False,
    )
    posterior: Any = model.weight_posterior
    distance = (posterior.mean.detach() - mean).abs() / variance.sqrt()
    assert distance.max() < 0.02
    ratio = posterior.dense_variance().detach() / variance
    assert (ratio - 1).abs().max() < 0.02
    # The ridge is no trifle: without it the posterior lies elsewhere.
    certain = torch.linalg.lstsq(problem()[0].expected, problem()[1]).solution.T
    assert ((certain - mean).abs() / variance.sqrt()).max() > 1.0


@pytest.mark.parametrize(
    "method",
    [
        bf.Deterministic(),
        bf.MeanField(prior_std=PRIOR_STD),
        bf.FullCovariance(prior_std=PRIOR_STD, through="mean"),
    ],
)
def test_methods_that_draw_draw_the_inputs_too(method: bf.Method) -> None:
    torch.manual_seed(0)
    mean, variance = known_posterior()
    model = bf.convert(nn.Linear(3, 1, bias=False), method)
    bf.fit(
        model,
        [problem()] * 20,
        epochs=60,
        num_data=NUM_DATA,
        likelihood=bf.GaussianRegression(NOISE_STD),
        learning_rate=1e-2,
        schedule="cosine",
        seed=0,
        progress=False,
    )
    is_random = isinstance(method, (bf.MeanField, bf.FullCovariance))
    found = (model.weight_posterior.mean if is_random else model.weight).detach()
    # A step sees one draw: the weights move about the optimum, by less than half a deviation.
    assert ((found - mean).abs() / variance.sqrt()).max() < 0.5
    if isinstance(method, bf.FullCovariance):
        x = problem()[0]
        spread = model.weight_posterior.dense_variance().detach()
        known = x.expected.square() @ spread.T + x.variance @ found.square().T
        torch.testing.assert_close(bf.predict(model, x).epistemic, known)


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "bf16-true"])
@pytest.mark.parametrize("method", [bf.MomentPropagation(), bf.MeanField()])
def test_every_precision_trains_refreshes_and_predicts(method: bf.Method, precision: str) -> None:
    torch.manual_seed(0)
    x = bf.Moments(torch.randn(12, 1, 6, 6), 0.1)
    y = torch.arange(12) % 3
    net = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3)
    )
    model = bf.convert(net, method)
    batches = [(x, y)]
    history = bf.fit(
        model, batches, batches, epochs=2, num_data=12, precision=precision, progress=False
    )
    assert history.last["val_nll"] < 10.0
    assert bf.refresh_norms(model, batches) == 1
    found = bf.predict(model, x, num_samples=3)
    torch.testing.assert_close(found.probs.sum(1), torch.ones(12), atol=1e-2, rtol=0.0)
    assert bf.evaluate(model, batches, num_samples=3).to_dict()["metrics"]["nll"] < 10.0


def test_a_loader_gives_uncertain_inputs_channels_last_and_in_groups() -> None:
    torch.manual_seed(0)
    data = TensorData(torch.randn(20, 1, 6, 6), torch.arange(20) % 3)
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3))
    model = bf.convert(net, bf.MomentPropagation(prior_std=0.1))
    batches = loader(uncertain(data, (-3.0, 10.0)), 8, shuffle=True)
    history = bf.fit(
        model, batches, epochs=2, channels_last=True, accumulate=2, seed=0, progress=False
    )
    assert history.last["nll"] < 3.0


@pytest.mark.parametrize("method", [bf.MomentPropagation(), bf.Deterministic()])
def test_a_variance_that_is_none_is_refused(method: bf.Method) -> None:
    model = bf.convert(nn.Linear(3, 1), method)
    inputs = bf.Moments(torch.zeros(2, 3), torch.tensor([1.0, float("nan"), 1.0]))
    with pytest.raises(ValueError, match="variance of the input must be at least 0, got nan"):
        bf.fit(model, [(inputs, torch.zeros(2, 1))], epochs=1, num_data=2, progress=False)


@pytest.mark.parametrize("method", [bf.MeanField(), bf.MomentPropagation()])
def test_every_pass_of_a_method_that_draws_has_an_input_of_its_own(method: bf.Method) -> None:
    torch.manual_seed(0)
    model = bf.convert(nn.Linear(3, 2), method)
    seen: list[Any] = []
    model.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    x = bf.Moments(torch.zeros(4, 3), 1.0)
    batch = [(x, torch.zeros(4, dtype=torch.long))]
    bf.fit(model, batch, batch, epochs=1, num_samples=2, val_samples=2, num_data=4, progress=False)
    if isinstance(method, bf.MeanField):
        assert len(seen) == 4
        assert len({float(each.sum()) for each in seen}) == 4
    else:
        assert all(isinstance(each, bf.Moments) for each in seen)


def test_double_precision_carries_inputs_of_its_own_type() -> None:
    model = bf.convert(nn.Linear(3, 2), bf.MomentPropagation())
    batch = [(bf.Moments(torch.randn(4, 3), 1.0), torch.zeros(4, dtype=torch.long))]
    bf.fit(model, batch, epochs=1, num_data=4, precision="64-true", progress=False)
    assert model.weight_posterior.mean.dtype == torch.float64


def test_what_a_conversion_looks_at_is_drawn() -> None:
    """At inputs of mean 0 no weight matters, and none is learned about; under noise they do."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(1, 1, bias=False))
    batches = [(bf.Moments(torch.zeros(10, 1), 0.04), torch.zeros(10, 1))] * 400
    score = bf.sensitivity(net, batches, score="jacobian")["0.weight"]
    # A batch gives the square of one number of standard deviation 0.2 for each example.
    assert float(score) == pytest.approx(0.04, rel=4 * (2 / 400) ** 0.5)
    method = bf.Laplace(data=batches, prior_precision=1.0, noise_std=1.0)
    laplace = bf.convert(net, method)
    found = bf.predict(
        laplace, torch.ones(1, 1), likelihood=bf.GaussianRegression(1.0), num_samples=4000, seed=0
    )
    # The precision is 1 of the prior and about 4000 * 0.04 of the data.
    assert float(found.epistemic) == pytest.approx(1 / 161, rel=0.15)
