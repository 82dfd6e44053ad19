import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from bayesify.conversion import convert, kl
from bayesify.conversion.posterior import posteriors
from bayesify.distributions import Normal, NormalPrior, softplus
from bayesify.distributions.normal import normal_from_normal
from bayesify.distributions.shared_scales import kl_of_shared_scales
from bayesify.methods import MeanField, VariationalDropout


def exact_kl(model, prior_std=1.0):
    """Return the closed form in float64, tensor by tensor."""
    total = torch.zeros((), dtype=torch.float64)
    for site in posteriors(model):
        mean = site.dense_mean().detach().double()
        std = softplus(site.rho.detach().double()).expand_as(mean)
        here = torch.distributions.Normal(mean, std)
        prior = torch.distributions.Normal(torch.zeros_like(mean), prior_std)
        total += torch.distributions.kl_divergence(here, prior).sum()
    return total


def digits_network():
    return nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10))


def test_kl_of_a_network_equals_the_float64_closed_form():
    for scale in ("weight", "out"):
        model = convert(digits_network(), MeanField(biases=True, scale=scale, prior_std=0.3))
        for site in posteriors(model):
            site.rho.data.add_(torch.randn_like(site.rho))
        assert sum(site.num_random for site in posteriors(model)) == 203_530
        torch.testing.assert_close(kl(model).double(), exact_kl(model, 0.3), rtol=1e-6, atol=0)


def test_kl_of_bfloat16_parameters_is_accumulated_in_float32():
    model = convert(digits_network().bfloat16(), MeanField())
    assert kl(model).dtype == torch.float32
    torch.testing.assert_close(kl(model).double(), exact_kl(model), rtol=1e-6, atol=0)


def test_kl_gradient_is_that_of_the_sum_over_sites():
    model = convert(nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)), MeanField(biases=True))
    together = torch.autograd.grad(
        kl(model), [p for s in posteriors(model) for p in s.parameters()]
    )
    apart = [
        gradient
        for site in posteriors(model)
        for gradient in torch.autograd.grad(site.kl(), list(site.parameters()))
    ]
    for left, right in zip(together, apart, strict=True):
        torch.testing.assert_close(left, right)


@pytest.mark.parametrize("scale", ["weight", "out"])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_sites_joined_in_any_layout_give_the_sum_over_sites(scale, layout):
    plain = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 5, (1, 2)), nn.Linear(7, 2))
    model = convert(plain, MeanField(biases=True, scale=scale, prior_std=0.3))
    model = model.to(memory_format=layout)
    for site in posteriors(model):
        site.rho.data.add_(torch.randn_like(site.rho))
    total = kl(model)
    torch.testing.assert_close(total.double(), exact_kl(model, 0.3), rtol=1e-6, atol=0)
    for site in posteriors(model):
        parts = list(site.parameters())
        together = torch.autograd.grad(total, parts, retain_graph=True)
        for left, right in zip(together, torch.autograd.grad(site.kl(), parts), strict=True):
            torch.testing.assert_close(left, right)


def test_shared_scales_have_the_kl_of_scales_written_out():
    prior = NormalPrior(mean=0.2, std=0.3)
    shapes = [(4, 3, 3, 3), (2, 7), (3, 0)]
    means = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    rhos = [torch.randn(len(mean)).double().requires_grad_() for mean in means]

    def together(*parameters):
        return kl_of_shared_scales(parameters[:3], parameters[3:], prior)

    wide = [
        rho.view(-1, *[1] * (mean.ndim - 1)).expand_as(mean)
        for rho, mean in zip(rhos, means, strict=True)
    ]
    apart = sum(
        normal_from_normal(Normal(), {"mean": mean, "rho": rho}, prior)
        for mean, rho in zip(means, wide, strict=True)
    )
    torch.testing.assert_close(together(*means, *rhos), apart)
    assert torch.autograd.gradcheck(together, (*means, *rhos))
    assert torch.autograd.gradgradcheck(together, (*means, *rhos))
    detached = [each.detach() for each in (*means, *rhos)]
    slopes = torch.func.grad(together, argnums=tuple(range(6)))(*detached)
    own = torch.autograd.grad(together(*means, *rhos), [*means, *rhos])
    torch.testing.assert_close(slopes, own)


def test_shared_scales_of_a_large_layer_keep_their_digits():
    mean = torch.randn(4096, 1024) * 0.05
    rho = torch.full((4096,), -3.5)
    prior = NormalPrior(std=0.05)
    found = kl_of_shared_scales([mean], [rho], prior).double()
    exact = kl_of_shared_scales([mean.double()], [rho.double()], prior)
    torch.testing.assert_close(found, exact, rtol=1e-6, atol=0)


def test_a_trace_leaves_no_counts_behind():
    mean, rho, prior = torch.randn(11, 3), torch.randn(11), NormalPrior()
    with FakeTensorMode() as fake:
        kl_of_shared_scales([fake.from_tensor(mean)], [fake.from_tensor(rho)], prior)
    torch.func.grad(lambda r: kl_of_shared_scales([mean], [r], prior))(rho)
    with torch.device("meta"):
        found = kl_of_shared_scales([mean], [rho], prior)
    wide = {"mean": mean, "rho": rho[:, None].expand(11, 3)}
    torch.testing.assert_close(found, normal_from_normal(Normal(), wide, prior))


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
def test_shared_scales_are_learned_after_a_look_without_gradients_and_in_compiled_code():
    model = convert(nn.Sequential(nn.Linear(5, 3), nn.Linear(3, 7)), MeanField(scale="out"))
    with torch.inference_mode():
        before = kl(model).clone()
    kl(model).backward()
    assert all((site.rho.grad != 0).all() for site in posteriors(model))
    compiled = torch.compile(lambda: kl(model), backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(), before)


def test_weights_stay_with_their_scales_in_any_layout():
    # Of a log-uniform prior the KL is that of mean / std; of a Normal one the two come apart.
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 5, 2))
    model = convert(plain, VariationalDropout(noise="additive"))
    for site in posteriors(model):
        site.rho.data.add_(torch.randn_like(site.rho))
    apart = sum(site.kl() for site in posteriors(model))
    torch.testing.assert_close(kl(model.to(memory_format=torch.channels_last)), apart)


def test_a_gradient_of_the_kl_lies_in_memory_as_its_parameter_does():
    model = convert(nn.Conv2d(3, 4, 3), MeanField()).to(memory_format=torch.channels_last)
    (site,) = posteriors(model)
    parameters = list(site.parameters())
    assert all(parameter.stride(1) == 1 for parameter in parameters)
    # As it comes: what gathers gradients would copy it into the right order.
    for parameter, gradient in zip(
        parameters, torch.autograd.grad(kl(model), parameters), strict=True
    ):
        assert gradient.stride() == parameter.stride()


def test_sites_of_different_types_and_priors_are_summed():
    plain = nn.ModuleDict({"low": nn.Linear(3, 4), "high": nn.Linear(4, 2).double()})
    model = convert(plain, MeanField(prior_std=lambda path, shape: 1.0 if "low" in path else 2.0))
    low, high = exact_kl(model["low"]), exact_kl(model["high"], 2.0)
    torch.testing.assert_close(kl(model).double(), low + high, rtol=1e-6, atol=0)


def test_a_plain_model_has_no_kl():
    assert kl(nn.Linear(2, 2)) == 0
    assert kl(nn.ReLU()) == 0


def test_terms_on_several_devices_are_summed_on_one():
    # The meta device stands in for a second accelerator: it too refuses to be mixed.
    model = convert(nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)), MeanField())
    model[0].to("meta")
    assert kl(model).device.type == "meta"
