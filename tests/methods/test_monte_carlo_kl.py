"""MonteCarloKL: any family against any prior, a KL found as asked, the known posterior found."""

import copy
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import bayesify as bf
from bayesify.distributions import (
    Laplace,
    LaplacePrior,
    NormalPrior,
    Radial,
    divergence_problem,
    families,
    priors,
)

NOISE_STD, PRIOR_STD, NUM_DATA = 0.5, 1.5, 64
LOCATION_SCALE = ["normal", "radial", "laplace", "logistic", "student_t", "generalised_error"]


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))


def regression() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return inputs, targets, and the mean and variance of the best factorised posterior.

    Against a Normal prior the objective is the same function of means and standard deviations for
    every family of the form mean + std · noise, up to a constant: so is its optimum.
    """
    generator = torch.Generator().manual_seed(3)
    mixing = torch.tensor([[1.0, 0.4, 0.0], [0.0, 1.0, -0.3], [0.0, 0.0, 0.8]])
    x = torch.randn(NUM_DATA, 3, generator=generator) @ mixing
    noise = NOISE_STD * torch.randn(NUM_DATA, 1, generator=generator)
    y = x @ torch.tensor([[0.8], [-1.2], [0.3]]) + noise
    precision = (x.T @ x / NOISE_STD**2 + torch.eye(3) / PRIOR_STD**2).double()
    mean = torch.linalg.solve(precision, (x.T @ y).double() / NOISE_STD**2).T
    return x, y, mean, 1 / precision.diagonal().unsqueeze(0)


def trained(**options: object) -> nn.Module:
    torch.manual_seed(0)
    x, y, _, _ = regression()
    method = bf.MonteCarloKL(
        prior=NormalPrior(std=PRIOR_STD), initial_std=0.02, last_layer="exact", **options
    )
    model = bf.convert(nn.Linear(3, 1, bias=False), method)
    bf.fit(
        model,
        DataLoader(TensorDataset(x, y), NUM_DATA),
        epochs=300,
        likelihood=bf.GaussianRegression(NOISE_STD),
        learning_rate=5e-2,
        scale_learning_rate=5e-2,
        progress=False,
    )
    return model


@pytest.mark.parametrize("family", LOCATION_SCALE)
def test_fit_finds_the_known_posterior_of_every_location_scale_family(family: str) -> None:
    _, _, mean, variance = regression()
    site = trained(family=family).weight_posterior
    # No draw is left in this objective: what remains is the optimiser's last step.
    assert ((site.mean.detach() - mean).abs() / variance.sqrt()).max() < 2e-3
    assert (site.dense_variance().detach() / variance - 1).abs().max() < 2e-3


@pytest.mark.parametrize(
    ("family", "estimator", "num_samples"),
    [
        ("normal", "exact_mc", 1000),
        ("normal", "repar", 10),
        ("radial", "repar", 10),
        ("radial", "streamed", 5),
        ("laplace", "direct", 5),
    ],
)
def test_fit_finds_the_known_posterior_by_every_estimator(
    family: str, estimator: str, num_samples: int
) -> None:
    _, _, mean, variance = regression()
    model = trained(family=family, estimator=estimator, num_samples=num_samples)
    site = model.weight_posterior
    # The prior moves the means by up to 0.03 standard deviations: less than that must be left.
    assert ((site.mean.detach() - mean).abs() / variance.sqrt()).max() < 0.005
    assert (site.dense_variance().detach() / variance - 1).abs().max() < 0.02


@pytest.mark.parametrize("family", list(families))
def test_every_family_converts_keeps_the_means_and_gives_gradients(family: str) -> None:
    prior = "student_t" if family == "horseshoe" else "normal"
    options = {"family": family, "prior": prior, "num_samples": 3, "initial_std": 0.01}
    model = bf.convert(network(), bf.MonteCarloKL(**options))
    x = torch.randn(5, 4)
    with bf.mean_weights(model):
        torch.testing.assert_close(model(x), network()(x))
    loss = bf.elbo_loss(model(x).square().mean(), model, num_data=10)
    loss.total.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert torch.isfinite(parameter.grad).all(), name
    assert not torch.equal(model(x), model(x))
    options = {"num_samples": 6, "seed": 0, "likelihood": "classification"}
    first, second = (bf.predict(model, x, **options).probs for _ in range(2))
    assert torch.equal(first, second)


@pytest.mark.parametrize("family", list(families))
@pytest.mark.parametrize("prior", list(priors))
def test_every_pair_has_a_kl_or_a_reason(family: str, prior: str) -> None:
    problem = divergence_problem(families[family](), priors[prior]())
    if problem is None:
        model = bf.convert(network(), bf.MonteCarloKL(family, prior, num_samples=2))
        assert torch.isfinite(bf.kl(model))
        return
    assert "infinite" in problem
    with pytest.raises(ValueError, match="infinite"):
        bf.MonteCarloKL(family, prior)


def test_a_family_and_a_prior_can_be_named_described_or_given() -> None:
    table = {"name": "laplace", "mean": 0.5, "std": 0.2}
    ways = [
        bf.MonteCarloKL({"name": "laplace"}, table),
        bf.MonteCarloKL(Laplace(), LaplacePrior(0.5, 0.2)),
    ]
    assert ways[0] == ways[1]
    assert hash(ways[0]) == hash(ways[1])
    with pytest.raises(TypeError, match="unknown option of the prior 'laplace' 'sdt'"):
        bf.MonteCarloKL(prior={"name": "laplace", "sdt": 1.0})
    with pytest.raises(LookupError, match="unknown family 'radail'"):
        bf.MonteCarloKL("radail")
    with pytest.raises(TypeError, match="the family 'laplace' takes no options, got 'std'"):
        bf.MonteCarloKL({"name": "laplace", "std": 1.0})
    with pytest.raises(ValueError, match="degrees must be finite and above 2, got '5'"):
        bf.MonteCarloKL({"name": "student_t", "degrees": "5"})
    with pytest.raises(ValueError, match="the prior's std must be positive and finite, got '1'"):
        bf.MonteCarloKL(prior={"name": "normal", "std": "1"})
    for prior in (3, NormalPrior):
        with pytest.raises(TypeError, match="prior must be a name, a table"):
            bf.MonteCarloKL(prior=prior)


def test_each_site_can_have_a_prior_of_its_own() -> None:
    def prior(path: str, shape: tuple[int, ...]) -> NormalPrior:
        return NormalPrior(std=0.1 if path.startswith("0") else shape[0] / 10)

    model = bf.convert(network(), bf.MonteCarloKL("normal", prior))
    stds = [row.prior for row in bf.summary(model).rows]
    assert stds == ["normal(mean=0, std=0.1)", "normal(mean=0, std=0.3)"]
    named = bf.convert(network(), bf.MonteCarloKL("normal", lambda path, shape: "laplace"))
    assert bf.summary(named).rows[0].prior == "laplace(mean=0, std=1)"


def test_summary_says_how_each_kl_is_found() -> None:
    def told(**options: object) -> set[str]:
        model = bf.convert(network(), bf.MonteCarloKL(**options))
        assert next(iter({row.kl for row in bf.summary(model).rows})) in str(bf.summary(model))
        return {row.kl for row in bf.summary(model).rows}

    assert told() == {"closed"}
    assert told(prior="scale_mixture", num_samples=5) == {"streamed (5 draws)"}
    assert told(estimator="repar", num_samples=1000) == {"repar (1,000 draws)"}
    assert {row.kl for row in bf.summary(bf.convert(network(), bf.MeanField())).rows} == {"closed"}


def test_choices_that_cannot_be_are_refused_before_anything_changes() -> None:
    with pytest.raises(ValueError, match="unknown estimator 'exact'"):
        bf.MonteCarloKL(estimator="exact")
    with pytest.raises(ValueError, match="num_samples must be a whole number >= 1, got 0"):
        bf.MonteCarloKL(num_samples=0)
    with pytest.raises(TypeError, match=r"num_samples must be a whole number, got 1\.5"):
        bf.MonteCarloKL(num_samples=1.5)
    with pytest.raises(ValueError, match="how='local' needs a Normal posterior, got family='rad"):
        bf.MonteCarloKL(how="local")
    with pytest.raises(ValueError, match="no 'exact_mc' KL is known between the 'radial'"):
        bf.MonteCarloKL(estimator="exact_mc")
    with pytest.raises(ValueError, match="last_layer must be 'sample' or 'exact', got 'mean'"):
        bf.MonteCarloKL(last_layer="mean")
    net = network()
    before = copy.deepcopy(net.state_dict())
    with pytest.raises(bf.ConversionError, match="is infinite: it needs the mean of"):
        bf.convert_(net, bf.MonteCarloKL("horseshoe", lambda path, shape: NormalPrior()))
    assert type(net) is nn.Sequential
    assert all(torch.equal(before[key], value) for key, value in net.state_dict().items())


def test_radial_outputs_cannot_be_drawn_in_place_of_weights() -> None:
    model = bf.convert(network(), bf.MonteCarloKL())
    with pytest.raises(ValueError, match="local"):
        bf.predict(model, torch.randn(2, 4), by="local", likelihood="classification")


def test_a_file_remembers_family_prior_and_estimator(tmp_path: Path) -> None:
    method = bf.MonteCarloKL(
        {"name": "student_t", "degrees": 5.0}, {"name": "laplace", "std": 0.3}, num_samples=7
    )
    model = bf.convert(network(), method)
    bf.save(model, tmp_path / "model.safetensors")
    loaded = bf.load(tmp_path / "model.safetensors", network())
    site, again = (
        model.get_submodule("0.weight_posterior"),
        loaded.get_submodule("0.weight_posterior"),
    )
    assert (again.family, again.prior) == (site.family, site.prior)
    assert (again.estimator, again.num_samples) == ("streamed", 7)
    assert loaded.bayesify.method == method


@pytest.mark.parametrize("family", ["radial", "laplace", "log_normal"])
def test_a_sampled_forward_compiles_without_a_break_and_draws_anew(family: str) -> None:
    model = bf.convert(network(), bf.MonteCarloKL(family))
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    x = torch.randn(5, 4)
    assert not torch.equal(compiled(x), compiled(x))
    with bf.mean_weights(model):
        torch.testing.assert_close(compiled(x), network()(x))


def test_radial_under_autocast_draws_in_float32() -> None:
    model = bf.convert(network(), bf.MonteCarloKL(initial_std=0.1))
    x = torch.randn(5, 4)
    with torch.autocast("cpu", torch.bfloat16):
        output = model(x)
        assert output.dtype == torch.bfloat16
        site = model.get_submodule("0.weight_posterior")
        assert site.sample().dtype == torch.float32
        divergence = bf.kl(model)
    assert divergence.dtype == torch.float32
    torch.testing.assert_close(divergence, bf.kl(model))
    (output.float().square().mean() + divergence).backward()
    assert torch.isfinite(site.rho.grad).all()


def test_radial_has_one_direction_and_one_radius_per_tensor() -> None:
    torch.manual_seed(0)
    model = bf.convert(nn.Linear(30, 20), bf.MonteCarloKL(initial_std=0.1))
    site = model.weight_posterior
    noise = torch.stack([(site.sample() - site.mean).detach() / 0.1 for _ in range(4000)])
    radius = noise.flatten(1).norm(dim=1) / 600**0.5
    # |N(0, 1)|: mean √(2/π), variance 1 − 2/π; N independent weights would all have radius 1.
    assert abs(radius.mean() - 0.79788) < 4 * (0.36338 / 4000) ** 0.5
    assert abs(radius.var() - 0.36338) < 0.05
    direction = noise.flatten(1) / noise.flatten(1).norm(dim=1, keepdim=True)
    assert direction.mean(0).norm() < 4 / 4000**0.5


def test_the_kl_of_a_radial_network_is_the_sum_over_its_tensors() -> None:
    model = bf.convert(network(), bf.MonteCarloKL(biases=True))
    parts = [site.kl() for site in map(model.get_submodule, _sites(model))]
    torch.testing.assert_close(bf.kl(model), torch.stack(parts).sum())
    assert isinstance(model.get_submodule("0.weight_posterior").family, Radial)


def test_pruned_radial_weights_leave_the_direction() -> None:
    model = bf.convert(network(), bf.MonteCarloKL(initial_std=0.05))
    pruned = bf.compress(model, keep=0.5, by="snr", shrink=False)
    site = pruned.get_submodule("0.weight_posterior")
    assert site.num_random < 32
    expected = bf.distributions.radial.radial_entropy(site.num_random)
    torch.testing.assert_close(
        site.family.entropy(site.random_parameters()),
        torch.log(torch.nn.functional.softplus(site.rho)).sum() + expected,
    )


def _sites(model: nn.Module) -> list[str]:
    return [path for path, _ in model.named_modules() if path.endswith("_posterior")]
