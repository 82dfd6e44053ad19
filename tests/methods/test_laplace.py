"""Laplace against posteriors in closed form, derivatives by hand, and laplace-torch's own classes.

What laplace-torch finds is tested where it is installed, what is made of it everywhere.
"""

import copy
import math
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import bayesify as bf
from bayesify.batches import map_tensors, output_tensor
from bayesify.methods.laplace import Linearised
from specimens import SPECIMENS, Specimen

NO_FORWARD_MODE = ("embedding_bag",)  # torch has no such derivative of it
NO_OUTPUT = ("bert",)  # a bare encoder returns no logits


def classes(num: int = 60, num_classes: int = 3) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(num, 4, generator=generator, dtype=torch.float64)
    return x, torch.randint(num_classes, (num,), generator=generator)


def hidden() -> Any:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()


def fitted(net: nn.Module, x: Tensor, y: Tensor, **options: Any) -> Any:
    pytest.importorskip("laplace")
    loader = DataLoader(TensorDataset(x, y), 16, shuffle=True)
    return bf.convert(net, bf.Laplace(data=loader, **options))


def given(net: nn.Module, scale: Tensor, index: Tensor | None = None, **options: Any) -> Any:
    """Return a model with a posterior of the test's own: nothing is asked of laplace-torch."""
    model: Any = bf.convert(net, bf.Laplace(**options).for_data(None))
    model.scale.copy_(scale)
    if index is not None:
        model.index.copy_(index)
    return model


def covariance(model: Linearised) -> Tensor:
    return model.scale @ model.scale.T if model.scale.ndim == 2 else model.scale.square().diag()


def jacobian(model: Linearised, x: Tensor) -> Tensor:
    """Return the derivatives (examples, outputs, random weights)."""
    return torch.func.jacrev(model.outputs(x))(model.mean())


def gauss_newton(model: Linearised, x: Tensor) -> Tensor:
    probs = model.network(x).detach().softmax(1)
    inner = probs.diag_embed() - probs[:, :, None] * probs[:, None, :]
    derivatives = jacobian(model, x)
    return torch.einsum("ncp,nck,nkq->pq", derivatives, inner, derivatives)


# What laplace-torch finds.


def test_posterior_of_a_linear_regression_is_exact() -> None:
    x, _ = classes()
    y = x[:, :1] - 2 * x[:, 1:2] + 0.3 * torch.randn(60, 1, dtype=torch.float64)
    net = nn.Linear(4, 1).double()
    model = fitted(net, x, y, prior_precision=2.0, noise_std=0.5)
    design = torch.cat([x, torch.ones(60, 1)], 1)
    precision = design.T @ design / 0.25 + 2 * torch.eye(5, dtype=torch.float64)
    torch.testing.assert_close(covariance(model), precision.inverse())
    assert model.noise_std.item() == 0.5
    diagonal = fitted(net, x, y[:, 0], prior_precision=2.0, noise_std=0.5, hessian="diag")
    torch.testing.assert_close(diagonal.scale, precision.diag().rsqrt())


def test_noise_is_the_size_of_the_residuals_unless_given() -> None:
    x, _ = classes()
    y = torch.randn(60, 2, dtype=torch.float64)
    net = nn.Linear(4, 2).double()
    model = fitted(net, x, y, prior_precision=1.0)
    expected = (net(x) - y).square().mean().sqrt()
    torch.testing.assert_close(model.noise_std, expected.detach())
    with pytest.raises(ValueError, match="noise_std must be given: there are no residuals"):
        fitted(net, x, net(x).detach())


def test_posterior_of_a_logistic_regression_is_its_hessian() -> None:
    x, y = classes()
    net = nn.Linear(4, 3).double()
    model = fitted(net, x, y, prior_precision=0.7)

    def loss(weights: Tensor) -> Tensor:
        return F.cross_entropy(model.outputs(x)(weights), y, reduction="sum")

    found = torch.autograd.functional.hessian(loss, model.mean())
    precision = found + 0.7 * torch.eye(15, dtype=torch.float64)
    torch.testing.assert_close(covariance(model), precision.inverse())
    assert model.noise_std.item() == 1


def test_subnetwork_holds_the_best_weights_and_their_curvature() -> None:
    x, y = classes()
    net = hidden()
    options = {"subset": "subnetwork", "fraction": 0.4, "score": "magnitude"}
    model = fitted(net, x, y, prior_precision=1.5, **options)
    together = torch.cat([net[0].weight.flatten(), net[2].weight.flatten()]).abs()
    assert model.index.tolist() == sorted(together.topk(14).indices.tolist())
    torch.testing.assert_close(model.mean().abs(), together[model.index].detach())
    precision = gauss_newton(model, x) + 1.5 * torch.eye(14, dtype=torch.float64)
    torch.testing.assert_close(covariance(model), precision.inverse())
    diagonal = fitted(net, x, y, prior_precision=1.5, hessian="diag", **options)
    torch.testing.assert_close(diagonal.scale, precision.diag().rsqrt())


def test_sensitive_weights_are_those_partial_bayes_takes() -> None:
    pytest.importorskip("laplace")
    net, loader = hidden(), DataLoader(TensorDataset(*classes()), 16, shuffle=True)
    model = bf.convert(net, bf.Laplace("subnetwork", 0.4, data=loader))
    partial = bf.convert(net, bf.PartialBayes(0.4, data=loader))
    first, second = (partial[at].weight_posterior.random_index for at in (0, 2))
    assert model.index.tolist() == [*first.tolist(), *(second + 20).tolist()]


@pytest.mark.filterwarnings("ignore:By default `link_approx`", "ignore:`torch.jit.script`")
@pytest.mark.parametrize("subset", ["last_layer", "subnetwork"])
def test_it_is_what_laplace_torch_itself_finds(subset: Any) -> None:
    laplace = pytest.importorskip("laplace")
    x, y = classes()
    net = hidden()
    loader = DataLoader(TensorDataset(x, y), 16)
    model = bf.convert(net, bf.Laplace(subset, 0.5, data=loader, score="magnitude"))
    options: dict[str, Any] = {}
    if subset == "subnetwork":
        # Biases stand between the weights in its vector of all parameters.
        where = torch.tensor([*range(20), *range(25, 40)])[model.index]
        options["subnetwork_indices"] = where
    own = laplace.Laplace(net, "classification", subset, "full", **options)
    own.fit(loader)
    own.optimize_prior_precision(method="marglik")
    torch.testing.assert_close(model.prior_precision, own.prior_precision.squeeze())
    torch.testing.assert_close(covariance(model), own.posterior_covariance)
    mean, variance = own._glm_predictive_distribution(x[:5])
    derivatives = jacobian(model, x[:5])
    spread = torch.einsum("ncp,pq,nkq->nck", derivatives, covariance(model), derivatives)
    torch.testing.assert_close(spread, variance)
    torch.testing.assert_close(model(x[:5]), mean)


def test_the_marginal_likelihood_is_largest_at_the_prior_found() -> None:
    x, _ = classes()
    y = x[:, :1] - 2 * x[:, 1:2] + 0.3 * torch.randn(60, 1, dtype=torch.float64)
    net = nn.Linear(4, 1).double()
    with torch.no_grad():
        design = torch.cat([x, torch.ones(60, 1)], 1)
        solved = torch.linalg.lstsq(design, y).solution
        net.weight.copy_(solved[:4].T)
        net.bias.copy_(solved[4])
    model = fitted(net, x, y)
    curvature = design.T @ design / model.noise_std**2

    def evidence(precision: Tensor) -> Tensor:
        together = curvature + precision * torch.eye(5, dtype=torch.float64)
        fit = precision * solved.square().sum()
        return -0.5 * (together.logdet() - 5 * precision.log() + fit)

    at = model.prior_precision
    # Adam stops near the top: a tenth to either side is below it.
    assert evidence(at) > evidence(1.1 * at)
    assert evidence(at) > evidence(0.9 * at)


def test_a_network_that_cannot_be_vectorised_gives_the_same_posterior() -> None:
    class Branching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = hidden()

        def forward(self, x: Tensor) -> Tensor:
            return self.layers(x) if x.sum() > -math.inf else x  # a choice made by values

    x, y = classes()
    options = {"subset": "subnetwork", "fraction": 0.4, "score": "magnitude"}
    plain, branching = (fitted(net, x, y, **options) for net in (hidden(), Branching()))
    torch.testing.assert_close(plain.scale, branching.scale)


def test_fitting_leaves_no_trace() -> None:
    x, y = classes()
    net = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Dropout(0.5), nn.Linear(5, 3))
    net = net.double().train()
    net[2].eval()
    before, state = {k: v.clone() for k, v in net.state_dict().items()}, torch.get_rng_state()
    pytest.importorskip("laplace")
    method = bf.Laplace("subnetwork", 0.3, data=DataLoader(TensorDataset(x, y), 16, shuffle=True))
    model = bf.convert_(net, method)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(before[k], v) for k, v in net.state_dict().items())
    assert [module.training for module in net] == [True, True, False, True]
    assert isinstance(model, Linearised)
    assert model.network is net


def test_batch_norms_keep_their_running_averages() -> None:
    x, y = classes()
    net = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3)).double()
    for _ in range(20):
        net(x)  # until the averages are the data's
    model = fitted(net, x, y, subset="subnetwork", fraction=1.0, prior_precision=1.0)
    net.eval()
    model.eval()
    expected = gauss_newton(model, x) + torch.eye(35, dtype=torch.float64)
    torch.testing.assert_close(covariance(model), expected.inverse())
    averages = model.network[1].running_mean.clone()
    bf.predict(model.train(), 5 * x, num_samples=20, likelihood="classification")
    assert torch.equal(averages, model.network[1].running_mean)


def test_a_network_in_float32_has_a_posterior_in_float32() -> None:
    x, y = classes()
    model = fitted(hidden().float(), x.float(), y, prior_precision=1e-3)
    reference = fitted(hidden(), x, y, prior_precision=1e-3)
    assert model.scale.dtype == torch.float32
    torch.testing.assert_close(model.scale.double(), reference.scale, rtol=1e-4, atol=1e-4)


# What is made of it.


def test_draws_have_the_variance_of_the_linearised_network() -> None:
    x, _ = classes()
    net = hidden()
    index = torch.tensor([0, 3, 7, 21, 22, 30, 34])
    scale = 0.3 * torch.randn(7, 7, dtype=torch.float64).tril()
    model = given(net, scale, index, subset="subnetwork", fraction=0.2)
    derivatives = jacobian(model, x[:4])
    exact = torch.einsum("ncp,pq,nkq->nck", derivatives, covariance(model), derivatives)
    for num_samples, memory_limit in ((4000, None), (500, 1)):
        found = bf.predict(
            model,
            x[:4],
            num_samples=num_samples,
            likelihood=bf.GaussianRegression(0.1),
            memory_limit=memory_limit,
        )
        way = "one pass per draw" if memory_limit else "vectorised in chunks of 4000"
        assert found.made_by == f"{num_samples} draws of the linearised network, {way}"
        centred = found.samples - net(x[:4]).detach()
        variance = exact.diagonal(dim1=1, dim2=2)
        error = (variance / num_samples).sqrt()
        assert (centred.mean(0).abs() < 4.5 * error).all()
        products = torch.einsum("tnc,tnk->nck", centred, centred) / num_samples
        # Var of a product of Normal numbers: Σcc Σkk + Σck².
        spread = variance[:, :, None] * variance[:, None, :] + exact.square()
        assert ((products - exact).abs() < 4.5 * (spread / num_samples).sqrt()).all()


def test_a_draw_of_a_last_layer_is_a_draw_of_its_weights() -> None:
    x, _ = classes()
    net = hidden()
    scale = torch.randn(18, 18, dtype=torch.float64).tril()
    model = given(net, scale)
    with torch.no_grad(), model.bayesify.method.sampling(model, "sample"):
        torch.manual_seed(5)
        found = model(x)
        torch.manual_seed(5)
        shift = scale @ torch.randn(18, dtype=torch.float64)
        net[2].weight += shift[:15].view(3, 5)
        net[2].bias += shift[15:]
        torch.testing.assert_close(found, net(x))


@pytest.mark.parametrize(
    "specimen", [s for s in SPECIMENS if s.name not in NO_FORWARD_MODE + NO_OUTPUT], ids=str
)
def test_draws_of_every_kind_of_network_are_linear_in_the_weights(specimen: Specimen) -> None:
    torch.manual_seed(0)
    net = specimen.build().eval().double()
    given_inputs = map_tensors((specimen.args(), specimen.kwargs()), in_double)
    method = bf.Laplace("subnetwork", 0.5, hessian="diag").for_data(None)
    model: Any = bf.convert(net, method).eval()
    total = sum(net.get_parameter(path).numel() for path in model.names)
    model.index.copy_(torch.randperm(total)[: len(model.index)].sort().values)
    model.scale.fill_(1.0)
    before = {key: value.clone() for key, value in model.network.state_dict().items()}

    def output(network: nn.Module) -> Tensor:
        args, kwargs = given_inputs
        with torch.no_grad():
            return output_tensor(network(*args, **kwargs))

    with method.sampling(model, "sample"):
        torch.manual_seed(1)
        change = output(model) - output(net)
    torch.manual_seed(1)
    shift = 1e-7 * torch.randn(len(model.index), dtype=torch.float64)
    expected = (output(moved(model, shift)) - output(moved(model, -shift))) / 2e-7
    assert expected.abs().max() > 0
    # Outputs of size 1 are rounded by 1e-16, of which the difference is divided by 2e-7.
    torch.testing.assert_close(change, expected, rtol=1e-7, atol=1e-8 * expected.abs().max().item())
    for key, value in model.network.state_dict(keep_vars=True).items():
        assert torch.equal(value, before[key])
        assert isinstance(value, nn.Parameter) == (key in dict(names_of(net)))


def in_double(tensor: Tensor) -> Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor


def names_of(net: nn.Module) -> list[tuple[str, Tensor]]:
    return list(net.named_parameters(remove_duplicate=False))


def moved(model: Linearised, shift: Tensor) -> nn.Module:
    """Return the plain network with its random weights shifted."""
    net = copy.deepcopy(model.network)
    owned = [net.get_parameter(path).detach().view(-1) for path in model.names]
    together = torch.cat(owned).index_add(0, model.index, shift)
    for own, new in zip(owned, together.split([len(each) for each in owned]), strict=True):
        own.copy_(new)
    return net


def test_probabilities_sum_to_one_and_no_spread_is_the_plain_network() -> None:
    x, _ = classes()
    net = hidden()
    model = given(net, 2 * torch.eye(18, dtype=torch.float64))
    prediction = bf.predict(model, 100 * x, num_samples=8, likelihood="classification")
    torch.testing.assert_close(prediction.probs.sum(1), torch.ones(60, dtype=torch.float64))
    assert (prediction.epistemic >= -1e-12).all()
    assert torch.equal(model(x), net(x))  # only a prediction draws
    plain = net(x).softmax(1)
    for certain, way in ((given(net, torch.zeros(18, 18)), "sample"), (model, "mean")):
        found = bf.predict(certain, x, by=way, likelihood="classification")
        torch.testing.assert_close(found.probs, plain)
    assert bf.predict(model, x[:0], num_samples=3, likelihood="classification").probs.shape == (
        0,
        3,
    )
    assert bf.predict(model, x[:1], num_samples=1, likelihood="classification").num_samples == 1


def test_a_huge_prior_precision_is_the_plain_network() -> None:
    x, y = classes()
    model = fitted(hidden(), x, y, prior_precision=1e12)
    found = bf.predict(model, x, num_samples=20, likelihood="classification")
    torch.testing.assert_close(found.probs, hidden()(x).softmax(1), rtol=1e-4, atol=1e-4)
    assert found.epistemic.max() < 1e-8


def test_a_model_in_bfloat16_predicts() -> None:
    x, _ = classes()
    model = given(hidden(), 0.1 * torch.eye(18)).to(torch.bfloat16)
    found = bf.predict(model, x, num_samples=200, likelihood="classification")
    reference = bf.predict(
        given(hidden(), 0.1 * torch.eye(18)), x, num_samples=200, likelihood="classification"
    )
    error = (found.variance / 200 + reference.variance / 200).sqrt()
    # Eight bits of a logit below 2, beside the errors of 200 draws each.
    assert ((found.probs - reference.probs).abs() < 4.5 * error + 2**-7).all()
    assert (found.epistemic > 0).all()


@pytest.mark.parametrize("hessian", ["full", "diag"])
@pytest.mark.parametrize("subset", ["last_layer", "subnetwork"])
def test_a_file_holds_the_posterior(subset: str, hessian: str, tmp_path: Path) -> None:
    x, y = classes()
    net = hidden()
    net[0].weight.requires_grad_(False)  # which the network a file is read into need not know
    model = fitted(net, x, y, subset=subset, hessian=hessian, fraction=0.5)
    bf.fit(model, DataLoader(TensorDataset(x, y), 16), epochs=0, progress=False)
    bf.save(model, tmp_path / "model.safetensors")
    loaded: Any = bf.load(tmp_path / "model.safetensors", hidden().float())
    first, second = (bf.predict(m, x, num_samples=5, seed=0).probs for m in (model, loaded))
    assert torch.equal(first, second)
    assert len(model.names) == len(loaded.names) == (2 if subset == "last_layer" else 1)
    other = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3, bias=False))
    with pytest.raises(bf.ArchiveError, match="made from another architecture"):
        bf.load(tmp_path / "model.safetensors", other)


def test_evaluate_and_summary_take_the_model() -> None:
    x, y = classes()
    x = x.float()
    model = given(hidden().float(), 0.1 * torch.eye(18))
    loader = DataLoader(TensorDataset(x, y), 16)
    bf.fit(model, loader, epochs=0, progress=False)
    torch.manual_seed(0)
    table = bf.evaluate(model, loader, num_samples=5, progress=False)
    torch.manual_seed(0)
    probs = bf.predict(model, loader, num_samples=5).probs
    assert table["nll"] == pytest.approx(F.nll_loss(probs.log(), y).item(), rel=1e-5)
    assert "network.2.weight" in str(bf.summary(model))
    assert "Gaussian together" in str(bf.summary(model))


# What is refused.


def test_fit_refuses_to_train_and_takes_no_epochs(tmp_path: Path) -> None:
    x, y = classes()
    model = given(hidden(), 0.1 * torch.eye(18))
    before = {key: value.clone() for key, value in model.state_dict().items()}
    loader = DataLoader(TensorDataset(x, y), 16)
    with pytest.raises(ValueError, match="epochs must be 0 with Laplace"):
        bf.fit(model, loader, epochs=1, progress=False, run_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    assert bf.fit(model, loader, loader, epochs=0, progress=False).rows == []
    for key, value in model.state_dict().items():
        torch.testing.assert_close(value, before[key], rtol=0, atol=0, equal_nan=True)
    assert bf.predict(model, x).probs.shape == (60, 3)  # what outputs mean is known


def test_data_are_needed_unless_a_model_is_only_looked_at() -> None:
    with pytest.raises(ValueError, match=r"data must be given.*Laplace\(data=train_loader\)"):
        bf.convert(hidden(), bf.Laplace())
    model = bf.convert(hidden(), bf.Laplace().for_data(None))
    with pytest.raises(ValueError, match="model has no posterior"):
        bf.predict(model, classes()[0], likelihood="classification")
    plain = bf.predict(model, classes()[0], by="mean", likelihood="classification")
    torch.testing.assert_close(plain.probs, hidden()(classes()[0]).softmax(1))
    own = bf.Laplace(data=[classes()])
    assert own.for_data(None) is own


def test_a_missing_package_is_named_before_anything_is_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "laplace", None)
    with pytest.raises(ImportError, match=r"pip install --no-deps laplace-torch==0\.3"):
        bf.convert(hidden(), bf.Laplace(data=[classes()]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"subset": "all"}, "subset must be one of 'last_layer', 'subnetwork', got 'all'"),
        ({"hessian": "kron"}, "hessian must be one of 'full', 'diag', got 'kron'"),
        ({"fraction": 0.0}, r"fraction must lie in \(0, 1\], got 0.0"),
        ({"prior_precision": -1.0}, "prior_precision must be 'marglik' or above 0, got -1.0"),
        ({"prior_precision": math.inf}, "prior_precision must be 'marglik' or above 0, got inf"),
        ({"prior_precision": "cv"}, "prior_precision must be 'marglik' or above 0, got 'cv'"),
        ({"noise_std": 0.0}, "noise_std must be None or above 0, got 0.0"),
        ({"score": "jacobain"}, "Did you mean 'jacobian'"),
    ],
)
def test_arguments_are_checked(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        bf.Laplace(**options)


def test_models_that_cannot_be_converted_are_named() -> None:
    method = bf.Laplace("subnetwork", 0.001).for_data(None)
    with pytest.raises(bf.ConversionError, match="0 weights were selected, expected 1 or more"):
        bf.convert(hidden(), method)
    large = nn.Linear(200, 200)
    with pytest.raises(bf.ConversionError, match=r"40,200 weights were selected.*='diag'"):
        bf.convert(large, bf.Laplace().for_data(None))
    model: Any = bf.convert(large, bf.Laplace(hessian="diag").for_data(None))
    assert len(model.scale) == 40_200
    with pytest.raises(bf.ConversionError, match="its shapes are not known yet"):
        bf.convert(nn.LazyLinear(3), bf.Laplace().for_data(None))


def test_data_that_do_not_fit_are_named() -> None:
    x, y = classes()
    with pytest.raises(ValueError, match=r"outputs of shape \(60, 3\) and targets of shape \(60, "):
        fitted_on([(x, F.one_hot(y, 3))])
    with pytest.raises(ValueError, match=r"targets of shape \(60, 2\) do not fit outputs"):
        fitted_on([(x, torch.randn(60, 2))])
    with pytest.raises(TypeError, match="data must yield pairs of a tensor of inputs"):
        fitted_on([x])
    with pytest.raises(ValueError, match="data gave no examples"):
        fitted_on([])
    with pytest.raises(ValueError, match=r"got outputs of shape \(60, 3, 1\)"):
        fitted_on([(x, y)], nn.Sequential(hidden(), nn.Unflatten(1, (3, 1))))


def fitted_on(data: list[Any], net: nn.Module | None = None) -> nn.Module:
    pytest.importorskip("laplace")
    return bf.convert(net or hidden(), bf.Laplace(data=data))
