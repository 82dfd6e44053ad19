"""Derivatives of a pass of moments: exact where they should be, near sampling where others fail."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import bayesify as bf
from bayesify.conversion.posterior import posteriors
from bayesify.conversion.scope import forward_by
from bayesify.prediction.by_covariance import covariant_outputs, noted
from bayesify.prediction.by_linearisation import linearised_outputs


def set_stds(model, std):
    """Give every random weight a standard deviation of its own, around this one."""
    generator = torch.Generator().manual_seed(1)
    for site in posteriors(model):
        wanted = std * (0.5 + torch.rand(site.rho.shape, generator=generator, dtype=site.rho.dtype))
        site.rho.data.copy_(torch.log(torch.expm1(wanted)))
    return model


def found(model, x, how="moments", **options):
    with torch.no_grad(), forward_by(model, how):
        return covariant_outputs(model.eval(), x, **options)


def predicted(model, x, **options):
    return bf.predict(model, x, likelihood=bf.GaussianRegression(1.0), **options)


def test_three_linear_layers_are_exact():
    """Noise times noise, and what units share, to the last digit."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 6), nn.Linear(6, 3)).double()
    model = set_stds(bf.convert(net, bf.MeanField(biases=True)), 0.4)
    x = torch.randn(7, 4, dtype=torch.float64)
    mean, covariance = x, torch.zeros(7, 4, 4, dtype=torch.float64)
    for layer in model:
        weight, variance = (each.detach() for each in layer.weight_posterior.dense_moments())
        bias, of_bias = (each.detach() for each in layer.bias_posterior.dense_moments())
        square = mean.square() + covariance.diagonal(dim1=1, dim2=2)
        covariance = weight @ covariance @ weight.T + torch.diag_embed(
            square @ variance.T + of_bias
        )
        mean = mean @ weight.T + bias
    outputs = found(model, x)
    torch.testing.assert_close(outputs.mean, mean)
    torch.testing.assert_close(outputs.covariance, covariance)
    assert outputs.places is None
    # To first order the products of noise are missing, and they count here.
    with bf.mean_weights(model), torch.no_grad():
        _, to_first_order = linearised_outputs(model, x)
    assert (
        to_first_order.diagonal(dim1=1, dim2=2) < 0.95 * covariance.diagonal(dim1=1, dim2=2)
    ).all()


class Convolutions(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(2, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.grouped = nn.Conv2d(4, 6, 3, stride=2, groups=2, bias=False)
        self.head = nn.Linear(6, 3)

    def forward(self, x):
        x = torch.tanh(self.norm(self.first(x)))
        return self.head(F.relu(self.grouped(x)).mean((2, 3)))


class Attending(nn.Module):
    """Projections, a token and a gain that no linear layer reads."""

    def __init__(self):
        super().__init__()
        self.token = nn.Parameter(torch.randn(1, 1, 8))
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.hidden = nn.Conv1d(8, 8, 1)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1)
        x = self.hidden(self.attention(x, x, x)[0].mT).mT
        return self.head(torch.tanh(x[:, 0]))


class Twice(nn.Module):
    """A layer called twice, and a weight that two layers share."""

    def __init__(self):
        super().__init__()
        self.layer, self.other, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)
        self.other.weight = self.layer.weight

    def forward(self, x):
        return self.head(torch.tanh(self.other(torch.tanh(self.layer(torch.tanh(self.layer(x)))))))


class Embedded(nn.Module):
    """A table that is read as a weight too."""

    def __init__(self):
        super().__init__()
        self.table, self.mix = nn.Embedding(7, 5), nn.Linear(5, 5)
        self.head = nn.Linear(5, 7, bias=False)
        self.head.weight = self.table.weight

    def forward(self, tokens):
        return self.head(torch.tanh(self.mix(self.table(tokens).mean(1))))


NETWORKS = {
    "convolutions": (Convolutions, lambda: torch.randn(5, 2, 7, 7, dtype=torch.float64)),
    "attention": (Attending, lambda: torch.randn(5, 4, 8, dtype=torch.float64)),
    "twice": (Twice, lambda: torch.randn(5, 4, dtype=torch.float64)),
    "embedding": (Embedded, lambda: torch.randint(0, 7, (5, 3))),
}
METHODS = [
    bf.MeanField(biases=True),
    bf.MeanField(scale="out", biases=True),
    bf.PartialBayes(0.3, score="magnitude"),
    bf.SparseSubspace(density=0.5),
]


@pytest.mark.parametrize("method", METHODS, ids=lambda method: f"{method.name}-{id(method)}")
@pytest.mark.parametrize("name", NETWORKS)
def test_at_mean_weights_it_is_the_linearised_network(name, method):
    torch.manual_seed(0)
    build, inputs = NETWORKS[name]
    model = bf.convert(build().double(), method).eval()
    x = inputs()
    with bf.mean_weights(model), torch.no_grad():
        mean, covariance = linearised_outputs(model, x)
    outputs = found(model, x, "mean")
    torch.testing.assert_close(outputs.mean, mean)
    torch.testing.assert_close(outputs.covariance, covariance)
    assert bool((covariance.diagonal(dim1=1, dim2=2) > 0).all())


@pytest.mark.parametrize("name", NETWORKS)
def test_little_noise_is_the_linearised_network(name):
    torch.manual_seed(0)
    build, inputs = NETWORKS[name]
    model = set_stds(bf.convert(build().double(), bf.MeanField(biases=True)), 1e-4).eval()
    x = inputs()
    with bf.mean_weights(model), torch.no_grad():
        mean, covariance = linearised_outputs(model, x)
    outputs = found(model, x)
    torch.testing.assert_close(outputs.mean, mean, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(outputs.covariance, covariance, rtol=2e-3, atol=1e-12)


def test_noise_that_opens_a_unit_is_seen():
    """Units that are shut at the mean weights: to first order nothing comes of them."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 400), nn.ReLU(), nn.Linear(400, 3)).double()
    net[0].bias.data.fill_(-0.9)
    model = bf.convert(net, bf.MeanField()).eval()
    model[0].weight_posterior.rho.data.fill_(0.0)  # a standard deviation of 0.69
    model[2].weight_posterior.rho.data.fill_(-12.0)
    x = torch.randn(20, 6, dtype=torch.float64)
    sampled = predicted(model, x, by="sample", num_samples=4000, seed=0).epistemic
    ratio = predicted(model, x, by="covariance").epistemic / sampled
    # 4,000 draws find a variance to 2.2 %.
    assert (ratio.log().abs() < 0.12).all()
    assert (predicted(model, x, by="linearised").epistemic / sampled).median() < 0.5


def test_noise_that_positions_share_is_counted():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.AvgPool2d(8))
    net = nn.Sequential(*net, nn.Flatten(), nn.Linear(8, 3))
    model = set_stds(bf.convert(net, bf.MeanField()), 0.03).eval()
    x = torch.randn(16, 1, 12, 12) + 1.0
    sampled = predicted(model, x, by="sample", num_samples=4000, seed=0).epistemic
    answer = predicted(model, x, by="covariance")
    assert answer.made_by == "one pass of means and variances, and its derivatives"
    assert ((answer.epistemic / sampled).log().abs() < 0.15).all()
    assert (predicted(model, x, by="moments").epistemic / sampled).median() < 0.7


def test_classes_are_read_off_correlated_logits():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 30), nn.Tanh(), nn.Linear(30, 3))
    model = set_stds(bf.convert(net, bf.MeanField()), 0.15)
    x, options = torch.randn(24, 4) * 2, {"likelihood": "classification"}
    sampled = bf.predict(model, x, by="sample", num_samples=4000, seed=0, **options)
    answer = bf.predict(model, x, by="covariance", **options)
    error = (sampled.variance / 4000).sqrt()
    assert ((answer.probs - sampled.probs).abs() < 5 * error + 5e-3).all()
    ratio = answer.mutual_information / sampled.mutual_information
    assert (ratio.log().abs() < 0.25).all()


@pytest.mark.parametrize("name", NETWORKS)
def test_chunks_and_a_few_outputs_say_the_same(name):
    torch.manual_seed(0)
    build, inputs = NETWORKS[name]
    model = set_stds(bf.convert(build().double(), bf.MeanField(biases=True)), 0.1).eval()
    x = inputs()
    whole = found(model, x)
    one_by_one = found(model, x, memory_limit=1)
    torch.testing.assert_close(one_by_one.mean, whole.mean)
    torch.testing.assert_close(one_by_one.covariance, whole.covariance)
    few = found(model, x, num_outputs=2)
    places = whole.mean.topk(2).indices
    assert torch.equal(few.places, places)
    for index, own in enumerate(places):
        wanted = whole.covariance[index][own][:, own]
        torch.testing.assert_close(few.covariance[index], wanted)
    assert found(model, x, num_outputs=50).places is None
    none = found(model, x[:0])
    assert none.mean.shape == (0, *whole.mean.shape[1:])
    assert none.covariance.shape == (0, *whole.covariance.shape[1:])


def test_a_network_of_certain_weights_is_certain():
    model = bf.convert(nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2)), bf.MeanField())
    for site in posteriors(model):
        site.rho.data.fill_(-200.0)
    x = torch.randn(3, 2)
    assert (predicted(model, x, by="covariance").epistemic == 0).all()


def test_the_model_is_left_as_it_was():
    model = bf.convert(Convolutions(), bf.MomentPropagation()).train()
    hooks = [len(module._forward_hooks) for module in model.modules()]
    bf.predict(model, torch.randn(2, 2, 7, 7), by="covariance", likelihood="classification")
    assert model.norm.training
    assert [len(module._forward_hooks) for module in model.modules()] == hooks
    assert all(parameter.grad is None for parameter in model.parameters())
    with pytest.raises(RuntimeError, match="size"), noted(model):
        model(torch.randn(2, 5, 7, 7))
    assert [len(module._forward_hooks) for module in model.modules()] == hooks
    assert all("value" not in vars(site) for site in posteriors(model))


def test_a_family_needs_a_variance_and_not_a_normal_law():
    x = torch.randn(3, 2)
    model = bf.convert(nn.Linear(2, 2), bf.MonteCarloKL("laplace", prior="laplace"))
    exact = predicted(model, x, by="moments").epistemic
    torch.testing.assert_close(predicted(model, x, by="covariance").epistemic, exact)
    model = bf.convert(nn.Linear(2, 2), bf.MonteCarloKL("horseshoe", prior="horseshoe"))
    with pytest.raises(ValueError, match="covariance"):
        predicted(model, x, by="covariance")


def test_maps_of_classes_are_refused():
    maps = bf.convert(nn.Conv2d(2, 3, 1), bf.MeanField())
    with pytest.raises(ValueError, match="by='covariance' reads classes off outputs of shape"):
        bf.predict(maps, torch.randn(2, 2, 4, 4), by="covariance", likelihood="classification")
