"""The exact expectation over the last layer: equal to many draws of it, refused where it is not."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import bayesify as bf
from bayesify.conversion.last_layer import exact_last_layer
from bayesify.conversion.posterior import posteriors
from bayesify.types import OutputMoments


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 2))


@pytest.mark.parametrize("family", ["normal", "radial", "laplace", "gamma"])
@pytest.mark.parametrize("biases", [False, True])
def test_moments_are_those_of_many_draws(family: str, biases: bool) -> None:
    net = network()
    nn.init.uniform_(net[2].bias, 0.1, 0.2)
    method = bf.MonteCarloKL(family, initial_std=0.1, biases=biases, where="2.*")
    model = bf.convert(net, method)
    x = torch.randn(3, 4)
    found = exact_last_layer(model, lambda: model(x))
    with torch.no_grad():
        features = net[1](net[0](x))
        draws = torch.stack([model[2](features) for _ in range(3000)])
    with bf.mean_weights(model):
        torch.testing.assert_close(found.mean, model(x))
    spread = (draws - draws.mean(0)).square()
    error = spread.std(0) / 3000**0.5
    assert ((draws.var(0) - found.variance).abs() < 4.5 * error).all()


def test_the_expected_squared_error_is_exact() -> None:
    model = bf.convert(network(), bf.MonteCarloKL(initial_std=0.2, where="2.*"))
    x, y = torch.randn(5, 4), torch.randn(5, 2)
    likelihood = bf.GaussianRegression(0.7)
    exact = likelihood.nll(exact_last_layer(model, lambda: model(x)), y)
    with torch.no_grad():
        outputs = torch.stack([model(x) for _ in range(1000)])
    draws = torch.stack([likelihood.nll(output, y) for output in outputs])
    assert abs(draws.mean() - exact) < 4 * draws.std() / 1000**0.5


def test_how_each_layer_is_drawn_is_put_back_whatever_happens() -> None:
    model = bf.convert(network(), bf.MonteCarloKL("normal"))

    def fails() -> None:
        raise KeyError("a broken forward")

    with pytest.raises(KeyError):
        exact_last_layer(model, fails)
    assert [site.how for site in posteriors(model)] == ["sample", "sample"]
    assert not model[2]._forward_hooks


def test_a_squeezed_output_is_still_that_of_the_last_layer() -> None:
    class Squeezed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x).squeeze(-1)

    model = bf.convert(Squeezed(), bf.MonteCarloKL("normal"))
    found = exact_last_layer(model, lambda: model(torch.randn(6, 4)))
    assert found.mean.shape == found.variance.shape == (6,)


def test_outputs_changed_after_the_last_layer_are_refused() -> None:
    model = bf.convert(nn.Sequential(network(), nn.Tanh()), bf.MonteCarloKL("normal"))
    with pytest.raises(ValueError, match="whose output is that of its last linear layer"):
        exact_last_layer(model, lambda: model(torch.randn(6, 4)))


def test_outputs_changed_in_place_are_refused() -> None:
    # Both names then hold the changed numbers: that they are equal tells nothing.
    model = bf.convert(
        nn.Sequential(network(), nn.ReLU(inplace=True)), bf.MonteCarloKL("normal", where="0.2.*")
    )
    with pytest.raises(ValueError, match="whose output is that of its last linear layer"):
        exact_last_layer(model, lambda: model(torch.randn(6, 4)))


def test_a_transposed_output_is_refused_and_a_diverged_one_is_not() -> None:
    model = bf.convert(nn.Sequential(nn.Linear(4, 3)), bf.MonteCarloKL("normal"))
    with pytest.raises(ValueError, match="whose output is that of its last linear layer"):
        exact_last_layer(model, lambda: model(torch.randn(2, 5, 4)).transpose(1, 2))
    nothing = torch.full((2, 4), torch.nan)
    assert exact_last_layer(model, lambda: model(nothing).clone()).mean.isnan().all()


def test_a_last_layer_whose_weights_are_used_elsewhere_is_refused() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    net[2].weight = net[0].weight
    with pytest.raises(ValueError, match="weights of its own"):
        bf.convert(net, bf.MonteCarloKL(last_layer="exact"))


def test_networks_and_families_without_exact_moments_are_refused() -> None:
    with pytest.raises(ValueError, match="needs a linear layer at the end"):
        bf.convert(nn.Conv1d(1, 2, 3), bf.MonteCarloKL(last_layer="exact"))
    heavy = bf.MonteCarloKL("horseshoe", "student_t", last_layer="exact")
    with pytest.raises(ValueError, match="needs a variance, family='horseshoe' has none"):
        bf.convert(network(), heavy)


def test_other_likelihoods_refuse_moments() -> None:
    moments = OutputMoments(torch.zeros(2, 4), torch.ones(2, 4))
    with pytest.raises(TypeError, match="exact under a squared error only"):
        bf.Classification().nll(moments, torch.tensor([0, 1]))
    with pytest.raises(TypeError, match="noise='learned' or a number"):
        bf.GaussianRegression("predicted").nll(moments, torch.zeros(2, 2))
    with pytest.raises(TypeError, match="needs likelihood='regression'"):
        bf.CustomLikelihood(nn.MSELoss()).nll(moments, torch.zeros(2, 4))


def test_fit_learns_with_it_and_lowers_the_noise_of_the_objective() -> None:
    x = torch.randn(64, 4, generator=torch.Generator().manual_seed(1))
    y = x[:, :2] * torch.tensor([1.0, -0.5])
    rows = {}
    for last_layer in ("sample", "exact"):
        model = bf.convert(network(), bf.MonteCarloKL("normal", last_layer=last_layer))
        rows[last_layer] = bf.fit(
            model,
            DataLoader(TensorDataset(x, y), 64),
            epochs=60,
            learning_rate=1e-2,
            likelihood=bf.GaussianRegression(0.3),
            seed=0,
            progress=False,
        ).column("nll")
    assert rows["exact"][-1] < 0.5 * rows["exact"][0]
    jumps = {name: torch.tensor(values[30:]).diff().std() for name, values in rows.items()}
    assert jumps["exact"] < jumps["sample"]


def test_a_layer_that_is_called_twice_is_refused() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(self.layer(x))

    model = bf.convert(Twice(), bf.MonteCarloKL("normal"))
    with pytest.raises(ValueError, match="calls its last linear layer once, not 2 times"):
        exact_last_layer(model, lambda: model(torch.randn(6, 4)))


def test_compiled_it_gives_the_same_or_says_that_it_cannot() -> None:
    model = bf.convert(network(), bf.MonteCarloKL("normal", where="2.*", last_layer="exact"))
    compiled = torch.compile(model, backend="eager")
    x = torch.randn(6, 4)
    compiled(x)
    refusal = ""
    try:
        found = exact_last_layer(model, lambda: compiled(x))
    except ValueError as error:
        refusal = str(error)
    if refusal:
        assert "under compile=True calls are not seen" in refusal
        return
    expected = exact_last_layer(model, lambda: model(x))
    torch.testing.assert_close(found.mean, expected.mean)
    torch.testing.assert_close(found.variance, expected.variance)
