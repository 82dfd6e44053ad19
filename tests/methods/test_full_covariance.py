"""Training through the covariance of the outputs: its gradient, the known posterior, the calls."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import bayesify as bf
from bayesify.conversion.posterior import posteriors
from bayesify.prediction.correlated_outputs import CorrelatedOutputs


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 3, 3)
        self.hidden = nn.Linear(12, 5)
        self.head = nn.Linear(5, 3)
        self.register_buffer("gain", torch.tensor([1.0, 0.7, 1.3]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(torch.tanh(self.conv(x)), 2).flatten(1)
        return self.gain * self.head(torch.tanh(self.hidden(x)))


def described(method: bf.FullCovariance, model: nn.Module, x: torch.Tensor) -> CorrelatedOutputs:
    return method._described(model, lambda: model(x), create_graph=True)


@pytest.mark.parametrize("scale", ["weight", "out"])
def test_gradients_at_mean_weights_are_those_of_the_jacobian_written_out(scale: str) -> None:
    torch.manual_seed(0)
    method = bf.FullCovariance(initial_std=0.1, scale=scale, through="mean")
    model = bf.convert(Small().double(), method)
    x = torch.randn(2, 1, 6, 6, dtype=torch.float64)
    weighing = torch.randn(2, 3, 3, dtype=torch.float64)
    weighing = weighing + weighing.mT
    mean, covariance, _ = described(method, model, x)
    total = mean.square().sum() + (weighing * covariance).sum()

    plain = Small().double()
    sites = bf.conversion.sites.named_posteriors(model)
    dense = {path: site.dense_moments() for path, site in sites.items()}
    fixed = {"gain": model.get_buffer("gain")}
    expected = torch.zeros((), dtype=torch.float64)
    for index in range(2):

        def output(*weights: torch.Tensor, index: int = index) -> torch.Tensor:
            given = fixed | dict(zip(dense, weights, strict=True))
            return torch.func.functional_call(plain, given, (x[index : index + 1],))[0]

        means = tuple(mean for mean, _ in dense.values())
        slopes = torch.autograd.functional.jacobian(output, means, create_graph=True)
        own = sum(
            (slope.flatten(1) * variance.flatten()) @ slope.flatten(1).T
            for slope, (_, variance) in zip(slopes, dense.values(), strict=True)
        )
        expected = expected + output(*means).square().sum() + (weighing[index] * own).sum()
    torch.testing.assert_close(total, expected)
    names, parameters = zip(*model.named_parameters(), strict=True)
    found = torch.autograd.grad(total, parameters)
    wanted = torch.autograd.grad(expected, parameters)
    for name, first, second in zip(names, found, wanted, strict=True):
        assert bool((second != 0).any()), name
        torch.testing.assert_close(first, second, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("rules", ["exact", "taylor"])
def test_gradients_through_moments_are_differences(rules: str) -> None:
    torch.manual_seed(0)
    method = bf.FullCovariance(initial_std=0.3, rules=rules)
    model = bf.convert(Small().double(), method)
    x = torch.randn(2, 1, 6, 6, dtype=torch.float64)
    weighing = torch.randn(2, 3, 3, dtype=torch.float64)

    def total() -> torch.Tensor:
        mean, covariance, _ = described(method, model, x)
        return mean.square().sum() + (weighing * covariance).sum()

    parameters = list(model.parameters())
    gradients = torch.autograd.grad(total(), parameters)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        way = torch.randn_like(parameter)
        step = 1e-5
        with torch.no_grad():
            parameter += step * way
            above = total().item()
            parameter -= 2 * step * way
            difference = (above - total().item()) / (2 * step)
            parameter += step * way
        slope = float((gradient * way).sum())
        assert difference == pytest.approx(slope, rel=1e-5, abs=1e-7)
        assert slope != 0


def test_fit_finds_the_mean_field_optimum_of_a_linear_model() -> None:
    """Of a linear model the covariance is exact, and a squared error needs no draw."""
    torch.manual_seed(0)
    noise, prior_std, num_data = 0.5, 1.5, 64
    x = torch.randn(num_data, 3) @ torch.tensor([[1.0, 0.4, 0.0], [0, 1, -0.3], [0, 0, 0.8]])
    y = x @ torch.tensor([[0.8], [-1.2], [0.3]]) + noise * torch.randn(num_data, 1)
    precision = (x.T @ x / noise**2 + torch.eye(3) / prior_std**2).double()
    mean = torch.linalg.solve(precision, (x.T @ y).double() / noise**2).T
    model = bf.convert(nn.Linear(3, 1, bias=False), bf.FullCovariance(prior_std, initial_std=0.05))
    options = {"learning_rate": 0.1, "scale_learning_rate": 0.1, "progress": False}
    loader = DataLoader(TensorDataset(x, y), num_data)
    schedule = {"name": "cosine"}
    likelihood = bf.GaussianRegression(noise)
    bf.fit(model, loader, epochs=250, likelihood=likelihood, schedule=schedule, **options)
    site = model.weight_posterior
    torch.testing.assert_close(site.mean.detach().double(), mean, rtol=2e-3, atol=2e-3)
    ratio = site.dense_variance().detach().double() * precision.diagonal()
    torch.testing.assert_close(ratio, torch.ones_like(ratio), rtol=3e-3, atol=3e-3)


def test_the_nll_of_classes_is_the_average_over_drawn_weights() -> None:
    """Logits that share their noise: their variances alone would give another average."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 1), nn.Tanh(), nn.Linear(1, 3, bias=False)).double()
    net[2].weight.data.fill_(2.0)
    method = bf.FullCovariance(initial_std=0.06, num_logits=64)
    model = bf.convert(net, method)
    model.bayesify.likelihood = likelihood = bf.Classification()
    for site in posteriors(model)[2:]:
        site.rho.data.fill_(-12.0)
    x, y = torch.randn(40, 6, dtype=torch.float64), torch.randint(0, 3, (40,))

    def nll() -> torch.Tensor:
        return method.nll(model, lambda: model(x), lambda out, **_: likelihood.nll(out, y))

    with torch.no_grad():
        found = torch.stack([nll() for _ in range(20)])
        drawn = torch.stack([F.cross_entropy(model(x), y) for _ in range(4000)])
        mean, covariance, _ = described(method, model, x)
        std = covariance.diagonal(dim1=1, dim2=2).sqrt()
        apart = F.cross_entropy(
            (mean + std * torch.randn(4000, *std.shape)).flatten(0, 1), y.repeat(4000)
        )
    error = float((drawn.var() / 4000 + found.var() / 20) ** 0.5)
    assert abs(float(found.mean() - drawn.mean())) < 4 * error + 5e-4
    assert float((apart - drawn.mean()).abs()) > 5e-3, "the correlation must count"


@pytest.mark.parametrize("through", ["moments", "mean"])
def test_norms_and_dropout_are_left_as_they_were(through: str) -> None:
    net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3))
    method = bf.FullCovariance(through=through)
    model = bf.convert(net, method).train()
    model[2].eval()
    before = model[1].running_mean.clone()
    mean, covariance, _ = described(method, model, torch.randn(6, 4))
    assert mean.shape == (6, 3)
    assert covariance.shape == (6, 3, 3)
    assert torch.equal(model[1].running_mean, before)
    assert [module.training for module in model] == [True, True, False, True]


def test_weights_that_no_layer_reads_are_refused_by_name() -> None:
    class Shifted(nn.Linear):
        def __init__(self) -> None:
            super().__init__(2, 2)
            self.gain = nn.Parameter(torch.randn(2, 2))

        def forward(self, input: torch.Tensor) -> torch.Tensor:
            return super().forward(input @ self.gain)

    method = bf.FullCovariance()
    model = bf.convert(Shifted(), method)
    with pytest.raises(ValueError, match=r"padded with zeros, got .*gain"):
        described(method, model, torch.randn(3, 2))


def test_it_is_read_by_the_covariance_and_validated_by_draws_of_it() -> None:
    torch.manual_seed(0)
    x = torch.randn(90, 4)
    loader = DataLoader(TensorDataset(x, x[:, :3].argmax(1)), 30)
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    net[2].weight.data *= 6
    model = bf.convert(net, bf.FullCovariance(initial_std=0.6))
    history = bf.fit(
        model, loader, loader, epochs=2, val_samples=2000, learning_rate=1e-6, progress=False
    )
    found = bf.predict(model, x)
    assert found.made_by == "one pass of means and variances, and its derivatives"
    y = x[:, :3].argmax(1)
    nll = -found.probs[torch.arange(90), y].log().mean()
    assert history.last["val_nll"] == pytest.approx(float(nll), rel=0.02)
    with torch.no_grad(), bf.mean_weights(model):
        assert abs(float(F.cross_entropy(model(x), y)) / float(nll) - 1) > 0.04


def test_compiling_is_refused_before_anything_is_built() -> None:
    model = bf.convert(nn.Linear(2, 2), bf.FullCovariance())
    with pytest.raises(ValueError, match="compile must be False with FullCovariance"):
        bf.fit(model, [(torch.randn(2, 2), torch.tensor([0, 1]))], epochs=1, compile=True)


def test_positions_that_come_first_are_refused() -> None:
    method = bf.FullCovariance()
    model = bf.convert(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), method)
    model.register_forward_pre_hook(lambda _, args: args[0].reshape(-1, 3))
    model.register_forward_hook(lambda *call: call[-1].view(2, 5, 2).mean(1))
    with pytest.raises(ValueError, match="a row for each example"):
        described(method, model, torch.randn(2, 5, 3))


@pytest.mark.parametrize("through", ["moments", "mean"])
def test_mixed_precision_trains(through: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(60, 4)
    loader = DataLoader(TensorDataset(x, x[:, :3].argmax(1)), 30)
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    model = bf.convert(net, bf.FullCovariance(through=through))
    options = {"learning_rate": 0.02, "precision": "bf16-mixed", "progress": False}
    history = bf.fit(model, loader, epochs=30, **options)
    assert history.last["nll"] < 0.7 * history.rows[0]["nll"]
