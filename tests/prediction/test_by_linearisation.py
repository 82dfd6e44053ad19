import pytest
import torch
import torch.nn.functional as F
from torch import nn

import bayesify as bf
from bayesify.conversion.posterior import posteriors
from bayesify.prediction.by_linearisation import _Linearised, linearised
from scales import set_stds


def predicted(model, x, **options):
    return bf.predict(model, x, likelihood=bf.GaussianRegression(1.0), **options)


SMALL = bf.MeanField(initial_std=0.05)


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2, 3, 3, padding=1)
        self.norm = nn.BatchNorm2d(3)
        self.head = nn.Linear(3, 4)

    def forward(self, x):
        return self.head(F.relu(self.norm(self.conv(x))).mean((2, 3)))


METHODS = [
    bf.MeanField(biases=True),
    bf.MeanField(scale="out"),
    bf.MomentPropagation(),
    bf.PartialBayes(0.3, score="magnitude"),
    bf.SparseSubspace(density=0.5),
    bf.VariationalDropout(noise="multiplicative"),
]


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_covariance_is_that_of_the_jacobian_of_the_dense_weights(method):
    torch.manual_seed(0)
    model = bf.convert(Small().double(), method).eval()
    x = torch.randn(5, 2, 6, 6, dtype=torch.float64)
    dense = {}
    for path, site in bf.conversion.sites.named_posteriors(model).items():
        dense[path] = tuple(each.detach().double() for each in site.dense_moments())
    # The plain network with those means, differentiated by torch one example at a time.
    plain = Small().double().eval()
    given = {name: tensor.double() for name, tensor in plain.state_dict().items()}
    own = dict(model.named_parameters()) | dict(model.named_buffers())
    given |= {name: own[name].detach().double() for name in given if name in own}
    given |= {path: mean for path, (mean, _) in dense.items()}
    with bf.mean_weights(model):
        mean, covariance = linearised(model, x)[:2]
    for index in range(len(x)):

        def output(*weights, index=index):
            replaced = given | dict(zip(dense, weights, strict=True))
            return torch.func.functional_call(plain, replaced, (x[index : index + 1],))[0]

        torch.testing.assert_close(mean[index], output(*(m for m, _ in dense.values())))
        slopes = torch.autograd.functional.jacobian(output, tuple(m for m, _ in dense.values()))
        expected = sum(
            (slope.flatten(1) * variance.flatten()) @ slope.flatten(1).T
            for slope, (_, variance) in zip(slopes, dense.values(), strict=True)
        )
        torch.testing.assert_close(covariance[index], expected)


def test_linear_network_is_exact():
    model = set_stds(bf.convert(nn.Linear(3, 2), bf.MeanField(biases=True)), 0.3)
    x = torch.randn(4, 3)
    by_moments, linearised = (predicted(model, x, by=way) for way in ("moments", "linearised"))
    torch.testing.assert_close(linearised.mean, by_moments.mean)
    torch.testing.assert_close(linearised.epistemic, by_moments.epistemic)
    assert linearised.made_by == "the linearised network"


def test_shared_noise_is_counted_where_rules_for_moments_lose_it():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 8, 3), nn.Tanh(), nn.Conv2d(8, 8, 3), nn.AvgPool2d(8))
    net = nn.Sequential(*net, nn.Flatten(), nn.Linear(8, 3))
    model = set_stds(bf.convert(net, bf.MeanField()), 0.02)
    x = torch.randn(16, 1, 12, 12) + 1.0
    sampled = predicted(model, x, by="sample", num_samples=4000, seed=0).epistemic
    ratio = predicted(model, x, by="linearised").epistemic / sampled
    # 4,000 draws find a variance to 2.2 %, and the network is linear to a few per cent.
    assert (ratio.log().abs() < 0.12).all()
    assert (predicted(model, x, by="moments").epistemic / sampled).median() < 0.7


def test_classes_are_read_off_correlated_logits():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
    model = set_stds(bf.convert(net, bf.MeanField()), 0.05)
    x = torch.randn(24, 4) * 2
    options = {"likelihood": "classification"}
    sampled = bf.predict(model, x, by="sample", num_samples=4000, seed=0, **options)
    found = bf.predict(model, x, by="linearised", **options)
    error = (sampled.variance / 4000).sqrt()
    # Beside the draws' error there is that of 256 points and of the first order.
    assert ((found.probs - sampled.probs).abs() < 5 * error + 3e-3).all()
    ratio = found.mutual_information / sampled.mutual_information
    assert (ratio.log().abs() < 0.25).all()


def test_no_spread_gives_the_plain_network():
    model = set_stds(bf.convert(Small(), bf.MeanField()), 1e-12).eval()
    x = torch.randn(3, 2, 5, 5)
    found = bf.predict(model, x, by="linearised", likelihood="classification")
    with torch.no_grad(), bf.mean_weights(model):
        torch.testing.assert_close(found.probs, model(x).softmax(1))
    assert found.mutual_information.max() < 1e-6


def test_network_without_random_weights_is_certain():
    model = bf.convert(nn.Linear(2, 2), bf.PartialBayes(0.5, score="magnitude"))
    for site in posteriors(model):
        site.rho.data.fill_(-200.0)
    assert (predicted(model, torch.randn(3, 2), by="linearised").epistemic == 0).all()


def test_one_number_per_example():
    class Scalar(nn.Linear):
        def forward(self, input):
            return super().forward(input).squeeze(1)

    model = set_stds(bf.convert(Scalar(3, 1), bf.MeanField()), 0.3)
    x = torch.randn(4, 3)
    found = predicted(model, x, by="linearised")
    torch.testing.assert_close(found.epistemic, predicted(model, x, by="moments").epistemic)


def test_tied_weights_move_together():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(3, 3, bias=False)
            self.second = nn.Linear(3, 3, bias=False)
            self.second.weight = self.first.weight

        def forward(self, x):
            return self.second(self.first(x))

    torch.manual_seed(0)
    model = set_stds(bf.convert(Tied(), bf.MeanField()), 0.02)
    x = torch.randn(8, 3)
    sampled = predicted(model, x, by="sample", num_samples=4000, seed=0).epistemic
    ratio = predicted(model, x, by="linearised").epistemic / sampled
    assert (ratio.log().abs() < 0.12).all()


def test_model_that_looks_at_its_values_is_refused_with_advice():
    class Looking(nn.Linear):
        def forward(self, input):
            return super().forward(input) if bool(input.sum() > 0) else super().forward(-input)

    model = bf.convert(Looking(2, 2), bf.MeanField())
    with pytest.raises(RuntimeError, match="take by='sample'"):
        predicted(model, torch.randn(3, 2), by="linearised")


def test_memory_limit_changes_nothing_but_memory():
    model = set_stds(bf.convert(Small(), bf.MeanField()), 0.1).eval()
    x = torch.randn(7, 2, 6, 6)
    whole, parts = (predicted(model, x, by="linearised", memory_limit=n) for n in (2**30, 1))
    torch.testing.assert_close(whole.epistemic, parts.epistemic)


def test_empty_batch():
    model = bf.convert(Small(), bf.MeanField()).eval()
    assert predicted(model, torch.randn(0, 2, 6, 6), by="linearised").mean.shape == (0, 4)
    found = bf.predict(model, torch.randn(0, 2, 6, 6), by="linearised", likelihood="classification")
    assert found.probs.shape == (0, 4)


class Tokens(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.encoder = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, tokens, mask=None):
        hidden = self.encoder(self.embed(tokens), src_key_padding_mask=mask)
        return self.head(hidden.mean(1))


def test_attention_and_named_inputs():
    torch.manual_seed(0)
    model = set_stds(bf.convert(Tokens(), bf.MeanField()), 0.01).eval()
    tokens = torch.randint(0, 11, (6, 5))
    mask = torch.zeros(6, 5, dtype=torch.bool)
    mask[:, 4] = True
    batch = {"tokens": tokens, "mask": mask}
    sampled = predicted(model, batch, by="sample", num_samples=3000, seed=0).epistemic
    ratio = predicted(model, batch, by="linearised").epistemic / sampled
    assert (ratio.log().abs() < 0.2).all()


def test_model_is_left_as_it_was():
    model = bf.convert(Small(), bf.MeanField()).eval()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    ways = [site.how for site in posteriors(model)]
    predicted(model, torch.randn(3, 2, 6, 6), by="linearised")
    assert [site.how for site in posteriors(model)] == ways
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name])
    assert all(parameter.grad is None for parameter in model.parameters())


def test_what_cannot_be_linearised_is_refused():
    radial = bf.convert(Small(), bf.MonteCarloKL(family="radial"))
    with pytest.raises(ValueError, match="linearised"):
        predicted(radial, torch.randn(3, 2, 6, 6), by="linearised")
    maps = bf.convert(nn.Conv2d(2, 3, 1), bf.MeanField())
    with pytest.raises(ValueError, match=r"shape \(batch, classes\)"):
        bf.predict(maps, torch.randn(2, 2, 4, 4), by="linearised", likelihood="classification")


def classes_of(model, x, **options):
    return bf.predict(model, x, by="linearised", likelihood="classification", **options)


def test_largest_logits_have_their_own_covariance_and_the_others_none():
    model = set_stds(bf.convert(Small().double(), bf.MeanField(biases=True)), 0.1).eval()
    x = torch.randn(9, 2, 6, 6, dtype=torch.float64)
    found = classes_of(model, x, num_outputs=2)
    assert found.made_by == "the linearised network of the 2 largest logits"
    with torch.no_grad(), bf.mean_weights(model):
        mean, covariance = linearised(model, x)[:2]
    generator = torch.Generator().manual_seed(0)
    for index in range(len(x)):
        places = mean[index].topk(2).indices
        root = torch.linalg.cholesky(covariance[index][places][:, places])
        logits = mean[index].repeat(100_000, 1)
        logits[:, places] += torch.randn(100_000, 2, generator=generator).double() @ root.T
        probs = logits.softmax(1)
        # 100,000 draws, and 256 points of a sequence that fills the space.
        error = probs.std(0) / 100_000**0.5
        assert ((found.probs[index] - probs.mean(0)).abs() < 5 * error + 2e-3).all()
        ratio = found.variance[index] / probs.var(0)
        assert (ratio.log().abs() < 0.1).all()


@pytest.mark.parametrize("number", [4, 7])
def test_as_many_logits_as_there_are_is_all_of_them(number):
    model = set_stds(bf.convert(Small(), bf.MeanField()), 0.1).eval()
    x = torch.randn(3, 2, 6, 6)
    some, every = classes_of(model, x, num_outputs=number), classes_of(model, x)
    torch.testing.assert_close(some.probs, every.probs)
    torch.testing.assert_close(some.variance, every.variance)
    assert some.made_by == every.made_by == "the linearised network"


def test_largest_logits_take_less_memory():
    model = bf.convert(nn.Sequential(nn.Linear(30, 20), nn.Tanh(), nn.Linear(20, 50)), SMALL)
    example = torch.randn(1, 30)
    with torch.no_grad(), bf.mean_weights(model):
        every, few = (_Linearised(model, example, [], number) for number in (None, 3))
    assert few.bytes_per_example < every.bytes_per_example / 10


def test_no_example_has_largest_logits():
    model = bf.convert(Small(), bf.MeanField()).eval()
    found = classes_of(model, torch.randn(0, 2, 6, 6), num_outputs=2)
    assert found.probs.shape == (0, 4)


def test_a_number_of_logits_that_cannot_be_is_refused():
    model = bf.convert(Small(), bf.MeanField()).eval()
    x = torch.randn(3, 2, 6, 6)
    with pytest.raises(ValueError, match="num_outputs must be at least 1, got 0"):
        classes_of(model, x, num_outputs=0)
    with pytest.raises(ValueError, match="num_outputs is an option of by='covariance'"):
        bf.predict(model, x, likelihood="classification", num_outputs=2)
    with pytest.raises(ValueError, match="num_outputs is a number of classes"):
        predicted(model, x, by="linearised", num_outputs=2)


def test_a_learned_slope_is_derived():
    """torch.func fails at torch's own derivative of a PReLU."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.PReLU(4), nn.Flatten(), nn.Linear(16, 2))
    model = bf.convert(net.double(), SMALL).eval()
    x = torch.randn(3, 1, 4, 4, dtype=torch.float64)
    names = [name for name, _ in net.named_parameters() if name.endswith("weight")][::2]
    with bf.mean_weights(model):
        plain = bf.revert(model)
        covariance = torch.zeros(3, 2, 2, dtype=torch.float64)
        for name in names:
            weight = plain.get_parameter(name)
            site = model.get_submodule(name.removesuffix(".weight")).weight_posterior
            for index, example in enumerate(x):
                rows = [torch.autograd.grad(out, weight)[0] for out in each(plain, example)]
                slopes = torch.stack(rows).flatten(1)
                covariance[index] += slopes * site.dense_variance().flatten() @ slopes.T
        found = linearised(model, x).covariance
    torch.testing.assert_close(found.detach(), covariance)


def each(plain, example):
    """Return the outputs of an example, each with a graph of its own."""
    return [plain(example[None])[0, index] for index in range(2)]


def test_what_all_examples_share_stays_whole():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 2)

        def forward(self, x, scale):
            return self.layer(x * scale)

    model = bf.convert(Scaled(), SMALL).eval()
    x, scale = torch.randn(4, 3), torch.tensor(0.7)
    found = predicted(model, {"x": x, "scale": scale}, by="linearised").variance
    wanted = predicted(model, {"x": x * scale, "scale": torch.ones(())}, by="linearised").variance
    torch.testing.assert_close(found, wanted)


def test_examples_that_see_each_other_are_refused():
    class Centred(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 2)

        def forward(self, x):
            return torch.tanh(self.layer(x - x.mean(0)))

    model = bf.convert(Centred(), SMALL).eval()
    with pytest.raises(RuntimeError, match="by='linearised' takes a few examples at a time"):
        predicted(model, torch.randn(4, 3), by="linearised")
