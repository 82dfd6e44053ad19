"""Slopes told from what layers are given and return, against slopes of every weight."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import bayesify as bf
from bayesify.conversion.posterior import posteriors
from bayesify.conversion.sites import named_posteriors
from bayesify.prediction import layer_slopes
from bayesify.prediction.by_linearisation import (
    _Linearised,
    derivable_attention,
    linearised,
)
from bayesify.prediction.layer_slopes import (
    Cost,
    Use,
    covariance,
    layers_to_watch,
    slopes_of_weight,
    watched,
)


def spread(model, std=0.3):
    """Give every random weight a standard deviation of its own."""
    generator = torch.Generator().manual_seed(1)
    for site in posteriors(model):
        wanted = std * (0.5 + torch.rand(site.rho.shape, generator=generator))
        site.rho.data.copy_(torch.log(torch.expm1(wanted)))
    return model.double().eval()


def expected_covariance(model, x):
    """Return the covariance from a slope of every weight, one example at a time."""
    sites = named_posteriors(model)
    names = {f"{path}_posterior.mean": site for path, site in sites.items()}
    names = {name: site for name, site in names.items() if site.num_random}
    means = {name: model.get_parameter(name).detach() for name in names}
    rows = []
    for index in range(len(x)):

        def output(*values, index=index):
            given = dict(zip(means, values, strict=True))
            found = torch.func.functional_call(
                model, given, (x[index : index + 1],), tie_weights=False
            )
            return found[0].flatten()

        slopes = torch.autograd.functional.jacobian(output, tuple(means.values()))
        rows.append(
            sum(
                (slope.flatten(1) * site.stored_variance().flatten()) @ slope.flatten(1).T
                for slope, site in zip(slopes, names.values(), strict=True)
            )
        )
    return torch.stack(rows).detach()


def assert_right(model, x):
    """Compare outputs and covariances with those of the model and of all slopes."""
    with bf.mean_weights(model):
        with torch.no_grad():
            outputs, found = linearised(model, x)[:2]
            torch.testing.assert_close(outputs, torch.cat([model(row[None]) for row in x]))
        torch.testing.assert_close(found, expected_covariance(model, x))


def slow_weights(model, x):
    with torch.no_grad(), bf.mean_weights(model):
        return {
            name.removeprefix("model.")
            for name in _Linearised(model, x[:1], layers_to_watch(model)).slow
        }


@pytest.mark.parametrize("scale", ["weight", "out"])
@pytest.mark.parametrize("name", ["lenet_5", "cifar_resnet", "vit_mini", "text_transformer"])
def test_models_of_the_project_have_the_covariance_of_all_slopes(name, scale):
    torch.manual_seed(0)
    model = bf.convert(bf.build_model(name), bf.MeanField(initial_std=0.05, scale=scale)).eval()
    if name == "text_transformer":
        x = torch.randint(0, 500, (2, 7))
    else:
        x = torch.randn(2, *((1, 28, 28) if name == "lenet_5" else (3, 32, 32)))
    with torch.no_grad(), bf.mean_weights(model), derivable_attention():
        network, slow = (_Linearised(model, x[:1], part) for part in (layers_to_watch(model), []))
        assert len(network.variances) > 2
        assert len(slow.variances) == 0
        _, found = linearised(model, x)[:2]
        expected = torch.stack([slow(row[None])[1] for row in x])
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5 * expected.abs().max().item())


class Called(nn.Module):
    """A layer, something that is not linear, and three outputs of each example."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return torch.tanh(self.layer(x)).flatten(1)[:, :3]


LAYERS = {
    "linear": (nn.Linear(4, 5), (4,)),
    "linear over tokens": (nn.Linear(4, 2), (6, 4)),
    "strided and padded": (nn.Conv2d(2, 3, 3, stride=2, padding=1), (2, 7, 6)),
    "uneven": (nn.Conv2d(2, 3, (3, 2), stride=(1, 2), padding=(0, 1), dilation=(2, 1)), (2, 7, 6)),
    "groups": (nn.Conv2d(4, 6, 3, groups=2), (4, 5, 5)),
    "depthwise": (nn.Conv2d(3, 3, 3, padding=1, groups=3, bias=False), (3, 5, 5)),
    "same": (nn.Conv2d(2, 3, 3, padding="same", dilation=2), (2, 6, 5)),
    "valid": (nn.Conv2d(2, 3, 2, padding="valid"), (2, 6, 5)),
    "one side": (nn.Conv1d(2, 4, 3, stride=2, padding=2, groups=2), (2, 9)),
}
ODD_LAYERS = {
    "more on one side": (nn.Conv2d(2, 3, 2, padding="same"), (2, 6, 5)),
    "mirrored": (nn.Conv2d(2, 3, 3, padding=1, padding_mode="reflect"), (2, 6, 5)),
    "three sides": (nn.Conv3d(2, 3, 2), (2, 4, 4, 3)),
    "transposed": (nn.ConvTranspose2d(2, 3, 2), (2, 4, 4)),
}


@pytest.mark.filterwarnings("ignore:Using padding='same'")
@pytest.mark.parametrize("scale", ["weight", "out"])
@pytest.mark.parametrize("name", [*LAYERS, *ODD_LAYERS])
def test_covariance_of_every_layer(name, scale):
    torch.manual_seed(0)
    layer, shape = (LAYERS | ODD_LAYERS)[name]
    method = bf.MeanField(biases=True, scale=scale)
    model = spread(bf.convert(Called(layer), method))
    x = torch.randn(4, *shape, dtype=torch.float64)
    assert_right(model, x)
    assert bool(slow_weights(model, x)) == (name in ODD_LAYERS)


def test_scales_that_inputs_share_are_those_of_every_weight():
    torch.manual_seed(0)
    model = spread(bf.convert(Called(nn.Linear(4, 4)), bf.MeanField(biases=False)))
    (site,) = posteriors(model)
    site.rho = nn.Parameter(site.rho.detach()[:1])
    site.is_tied_scale = True
    x = torch.randn(3, 4, dtype=torch.float64)
    assert_right(model, x)


@pytest.mark.parametrize("is_shared", [False, True])
@pytest.mark.parametrize("sizes", [(1, 1, 3, 4, 5), (1, 6, 2, 3, 4), (3, 4, 5, 2, 3)])
def test_both_orders_are_the_sum_over_all_weights(sizes, is_shared):
    groups, positions, outputs, units, inputs = sizes
    torch.manual_seed(0)
    use = Use(
        torch.randn(groups, positions, inputs, dtype=torch.float64),
        torch.randn(groups, outputs, positions, units, dtype=torch.float64),
    )
    variance = torch.rand(groups * units, 1 if is_shared else inputs, dtype=torch.float64)
    slopes = slopes_of_weight(use)
    expected = (slopes * variance.expand(-1, inputs).flatten()) @ slopes.T
    torch.testing.assert_close(covariance(use, variance), expected)
    for order in (layer_slopes._by_pairs, layer_slopes._by_slopes):
        each = [
            order(use.given[group], use.slopes[group], part)
            for group, part in enumerate(variance.chunk(groups))
        ]
        torch.testing.assert_close(sum(each), expected)


def test_few_positions_and_many_weights_are_taken_in_pairs():
    def is_by_pairs(positions, inputs, units, is_shared):
        use = Use(torch.empty(1, positions, inputs), torch.empty(1, 1, positions, units))
        variance = torch.empty(units, 1 if is_shared else inputs)
        return Cost(use, variance, 10).is_least_by_pairs

    # The first and the last layers of a ResNet-18, and a layer of one position.
    assert is_by_pairs(1, 784, 300, is_shared=False)
    assert is_by_pairs(16, 4608, 512, is_shared=False)
    assert not is_by_pairs(1024, 576, 64, is_shared=False)
    assert is_by_pairs(64, 2304, 256, is_shared=True)


class Uses(nn.Module):
    """One layer, called twice, with a keyword, on one more shape; another read by hand."""

    def __init__(self):
        super().__init__()
        self.again = nn.Conv2d(2, 2, 3, padding=1)
        self.by_hand = nn.Linear(8, 3)
        self.both = nn.Linear(3, 3)

    def forward(self, x):
        x = self.again(input=torch.tanh(self.again(x)))
        x = self.again(x[..., ::2])
        x = torch.tanh(F.adaptive_avg_pool2d(x, 2).flatten(1))
        x = torch.tanh(F.linear(x, self.by_hand.weight, self.by_hand.bias))
        return self.both(torch.tanh(self.both(x) @ self.both.weight))


def test_weights_used_again_and_by_hand():
    torch.manual_seed(0)
    model = spread(bf.convert(Uses(), bf.MeanField(biases=True)))
    x = torch.randn(3, 2, 6, 6, dtype=torch.float64)
    assert_right(model, x)
    # The bias of `both` is only ever added where it is called; its weight is used elsewhere too.
    found = {name.removesuffix("_posterior.mean") for name in slow_weights(model, x)}
    assert found == {"by_hand.weight", "by_hand.bias", "both.weight"}


class Decoded(nn.Module):
    """A weight that is read by hand where the first example does not show it."""

    def __init__(self):
        super().__init__()
        self.encode = nn.Linear(6, 4)

    def forward(self, x):
        return torch.relu(self.encode(x) - 1.0) @ self.encode.weight


class Escaping(nn.Module):
    """A layer called under a transform of the model's own, out of which nothing may be kept."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x):
        return torch.tanh(torch.vmap(self.layer)(x.view(-1, 2, 3))).flatten(1)


class OneKernel(nn.Module):
    """Convolutions of other groups with the same weight."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Conv2d(2, 4, 2, bias=False), nn.Conv2d(4, 4, 2, groups=2)
        self.two.weight = self.one.weight

    def forward(self, x):
        return torch.tanh(self.two(torch.tanh(self.one(x)))).mean((2, 3))


class Heads(nn.Module):
    """One of several outputs goes through a hook of the user's."""

    def __init__(self):
        super().__init__()
        self.heads = nn.ModuleList(nn.Linear(6, 1) for _ in range(4))
        self.heads[1].register_forward_hook(lambda *seen: seen[-1] * 2.0)

    def forward(self, x):
        return torch.cat([head(x) for head in self.heads], 1)


ODD_MODELS = {Decoded: (6,), Escaping: (6,), OneKernel: (2, 5, 5), Heads: (6,)}


@pytest.mark.parametrize("is_blank", [False, True])
@pytest.mark.parametrize("kind", ODD_MODELS)
def test_odd_models_are_taken_the_slow_way(kind, is_blank):
    torch.manual_seed(0)
    model = spread(bf.convert(kind(), bf.MeanField(biases=True)))
    x = 3 * torch.randn(3, *ODD_MODELS[kind], dtype=torch.float64)
    if is_blank:
        x[0] = 0.0
    assert_right(model, x)
    assert not any(module._forward_pre_hooks for module in model.modules())
    assert not any("value" in vars(site) for site in posteriors(model))


def test_uses_that_nearly_cancel_leave_a_variance():
    class Difference(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.last = nn.Linear(64, 64), nn.Linear(64, 2)

        def forward(self, x):
            return self.last(torch.tanh(self.layer(x[:, 0])) - torch.tanh(self.layer(x[:, 1])))

    torch.manual_seed(0)
    model = bf.convert(Difference(), bf.MeanField(initial_std=0.1))
    x = torch.randn(8, 1, 64) + 1.0
    x = torch.cat([x, x + 1e-4 * torch.randn(8, 1, 64)], 1)
    found = predicted(model, x)
    # Of the rounding of float32, 1e-7, differences of 1e-4 leave 1e-3.
    torch.testing.assert_close(
        found, predicted(model.double(), x.double()).float(), rtol=0.02, atol=0
    )


def predicted(model, x):
    likelihood = bf.GaussianRegression(1.0)
    return bf.predict(model, x, by="linearised", likelihood=likelihood).epistemic


def test_what_the_model_says_against_its_inputs_is_passed_on():
    model = bf.convert(nn.Linear(3, 2), bf.MeanField())
    with pytest.raises(RuntimeError, match=r"^mat1 and mat2"):
        predicted(model, torch.randn(4, 5))


def chunks(monkeypatch, model, x, limit):
    """Return how many examples are taken at a time under a limit of memory."""
    seen, vmap = [], torch.vmap

    def noted(*args, **options):
        seen.append(options.get("chunk_size"))
        return vmap(*args, **options)

    monkeypatch.setattr(torch, "vmap", noted)
    with torch.no_grad(), bf.mean_weights(model):
        linearised(model, x, limit)[:2]
    monkeypatch.setattr(torch, "vmap", vmap)
    return max(size for size in seen if size)


def test_examples_are_taken_together_as_memory_allows(monkeypatch):
    model = bf.convert(
        nn.Sequential(nn.Linear(200, 300), nn.Tanh(), nn.Linear(300, 5)), bf.MeanField()
    )
    x = torch.randn(64, 200)
    # Two layers of 200 + 300 and 300 + 5 numbers, and slopes of 5 outputs: some 50 kB an example.
    assert chunks(monkeypatch, model, x, 2**30) == 64
    assert 4 <= chunks(monkeypatch, model, x, 10**6) <= 40
    # Slopes of 60,000 weights take 2.4 MB: one example at a time.
    layer = model[0]
    layer.forward = lambda x: 2.0 * F.linear(x, layer.weight, layer.bias)
    assert chunks(monkeypatch, model, x, 4 * 10**6) == 1


def test_many_outputs_of_a_few_weights_are_taken_in_less_memory():
    net = nn.Sequential(*[nn.Conv2d(1, 1, 3, padding=1) for _ in range(6)])
    model = bf.convert(net, bf.MeanField())
    x = torch.randn(1, 1, 16, 16)
    with torch.no_grad(), bf.mean_weights(model):
        ways = [_Linearised(model, x, layers) for layers in (layers_to_watch(model), [])]
        assert ways[0].bytes_per_example > 10 * ways[1].bytes_per_example
        wide, tight = (linearised(model, x, limit).covariance for limit in (2**31, 2**20))
    torch.testing.assert_close(wide, tight)


def test_units_that_share_a_variance_keep_it():
    model = bf.convert(nn.Sequential(nn.Linear(4, 3)), bf.MeanField(scale="out"))
    with torch.no_grad(), bf.mean_weights(model):
        (variance,) = _Linearised(
            model, torch.ones(1, 4), layers_to_watch(model)
        ).variances.values()
    assert variance.shape == (3, 1)


def test_images_without_their_dimension_of_examples():
    class Unbatched(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(2, 3, 3)

        def forward(self, x):
            return torch.tanh(self.conv(x[0])).mean((1, 2))[None]

    torch.manual_seed(0)
    model = spread(bf.convert(Unbatched(), bf.MeanField(biases=True)))
    x = torch.randn(3, 2, 5, 5, dtype=torch.float64)
    assert_right(model, x)
    assert not slow_weights(model, x)


def test_bfloat16_agrees_with_float32_to_its_rounding():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(64, 3))
    model = bf.convert(net, bf.MeanField(initial_std=0.05))
    x = torch.randn(8, 1, 6, 6)
    options = {"likelihood": bf.GaussianRegression(1.0), "by": "linearised"}
    wanted = bf.predict(model, x, **options).epistemic
    found = bf.predict(model.bfloat16(), x, **options).epistemic
    assert found.dtype == torch.float32
    assert not slow_weights(model, x.bfloat16())
    torch.testing.assert_close(found, wanted, rtol=0.05, atol=0)


def test_layers_are_watched_no_longer_than_asked():
    layer = nn.Linear(2, 2)
    with pytest.raises(RuntimeError, match="mat1 and mat2"), watched([layer]):
        layer(torch.randn(3, 5))
    assert not layer._forward_hooks
    with watched([layer], [torch.ones(2), torch.zeros(2)]) as calls:
        first, second = layer(torch.zeros(1, 2)), layer(torch.zeros(1, 2))
    torch.testing.assert_close(first - second, torch.ones(1, 2))
    assert [call.layer for call in calls] == [layer, layer]
