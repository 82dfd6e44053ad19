"""The plan: what a conversion will do, and every obstacle named before anything is changed."""

import json
import math
import warnings

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm, weight_norm
from torch.nn.utils.parametrize import remove_parametrizations

from bayesify.conversion import convert, convert_, mean_weights
from bayesify.conversion.convert import require_record
from bayesify.conversion.plan import Site
from bayesify.conversion.posterior import posteriors
from bayesify.methods import MeanField
from bayesify.types import ConversionError
from specimens import HeadBeforeTable, TiedLanguageModel


def failures(model, **options):
    """Return what stands in the way of a conversion, after checking that nothing was changed."""
    classes = [type(module) for module in model.modules()]
    parameters = [id(parameter) for parameter in model.parameters()]
    with pytest.raises(ConversionError) as error:
        convert_(model, MeanField(**options))
    assert [type(module) for module in model.modules()] == classes
    assert [id(parameter) for parameter in model.parameters()] == parameters
    assert not posteriors(model)
    return error.value


def sites(model, **options):
    return {
        site.path: site for site in require_record(convert(model, MeanField(**options))).plan.sites
    }


class Owner(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(2, 2))
        self.gain = nn.Parameter(torch.ones(2, 2))


class ListOwner(nn.ModuleList):
    def __init__(self):
        super().__init__([nn.Linear(2, 2)])
        self.gain = nn.Parameter(torch.ones(2, 2))


class DictOwner(nn.ModuleDict):
    def __init__(self):
        super().__init__({"layer": nn.Linear(2, 2)})
        self.gain = nn.Parameter(torch.ones(2, 2))


def with_weight(value):
    layer = nn.Linear(2, 2)
    layer.weight.data.fill_(value)
    return layer


def complex_weight():
    layer = nn.Module()
    layer.weight = nn.Parameter(torch.zeros(2, 2, dtype=torch.complex64))
    return layer


def scripted():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return torch.jit.script(nn.Linear(2, 2))


OBSTACLES = [
    (lambda: with_weight(math.nan), {}, "it holds NaN or infinite values: start from finite"),
    (lambda: with_weight(math.inf), {}, "it holds NaN or infinite values"),
    (complex_weight, {"where": "weight"}, "expected a real floating-point tensor, got torch.comp"),
    (lambda: nn.LazyLinear(3), {}, "its shape is not known yet: run the model once on an example"),
    (lambda: nn.Linear(2, 2, device="meta"), {}, "it is on the meta device: load its weights"),
    (lambda: nn.Embedding(3, 2, max_norm=1.0), {}, "max_norm rewrites the table in every forward"),
    (lambda: nn.Embedding(3, 2, sparse=True), {}, "sparse=True gradients cannot flow"),
    (lambda: nn.EmbeddingBag(3, 2, sparse=True), {}, "sparse=True gradients cannot flow"),
    (lambda: weight_norm(nn.Linear(2, 2)), {}, "it is parametrised already: remove the param"),
    (lambda: spectral_norm(nn.Linear(2, 2)), {}, "it is parametrised already"),
    (scripted, {}, "its module is scripted: convert the original module instead"),
    (Owner, {"where": "gain"}, "a Owner takes all it holds for layers: move its own parameter"),
    (ListOwner, {"where": "gain"}, "a ListOwner takes all it holds for layers"),
    (DictOwner, {"where": "gain"}, "a DictOwner takes all it holds for layers"),
    (lambda: nn.ReLU(), {}, "nothing to make Bayesian: no tensor was selected"),
    (lambda: nn.Linear(2, 2), {"where": "*bias"}, "nothing to make Bayesian"),
    (lambda: nn.Linear(2, 2), {"prior_std": -1.0}, "the prior's std must be positive and finite"),
    (lambda: nn.Linear(2, 2), {"prior_mean": math.nan}, "the prior's mean must be finite"),
    (
        lambda: nn.Linear(2, 2),
        {"prior_std": lambda path, shape: {}["missing"]},
        "the prior could not be made: KeyError: 'missing'",
    ),
    (
        lambda: nn.Linear(2, 2),
        {"prior_std": lambda path, shape: 0.0},
        "the prior's std must be positive and finite, got 0.0",
    ),
]


@pytest.mark.parametrize(("build", "options", "reason"), OBSTACLES)
def test_an_obstacle_is_named_and_nothing_is_changed(build, options, reason):
    assert reason in str(failures(build(), **options))


def test_all_obstacles_are_listed_at_once():
    model = nn.ModuleDict(
        {
            "nan": with_weight(math.nan),
            "good": nn.Linear(2, 2),
            "lazy": nn.LazyLinear(2),
            "table": nn.Embedding(3, 2, max_norm=1.0, sparse=True),
            "normed": weight_norm(nn.Linear(2, 2)),
        }
    )

    def prior_std(path, shape):
        return -1.0 if path == "good.weight" else 1.0

    error = failures(model, prior_std=prior_std)
    assert [path for path, _ in error.failures] == [
        "nan.weight",
        "good.weight",
        "lazy.weight",
        "table.weight",
        "table.weight",
        "normed.parametrizations.weight.original0",
        "normed.parametrizations.weight.original1",
    ]
    assert str(error).startswith("the model was not converted: 7 problems found\n  nan.weight: it")


def test_one_problem_is_not_called_problems():
    assert "1 problem found" in str(failures(nn.ReLU()))


def test_a_tensor_can_have_two_obstacles():
    layer = with_weight(math.nan)
    error = failures(layer, prior_std=-1.0)
    assert [path for path, _ in error.failures] == ["weight", "weight"]


@pytest.mark.parametrize("parametrise", [weight_norm, spectral_norm])
def test_a_parametrised_layer_that_is_not_selected_keeps_working(parametrise):
    plain = nn.Sequential(parametrise(nn.Linear(3, 3)), nn.Linear(3, 2)).eval()
    model = convert(plain, MeanField(where="1", initial_std=0.5)).eval()
    x = torch.randn(4, 3)
    with mean_weights(model):
        torch.testing.assert_close(model(x), plain(x))
    assert not torch.equal(model(x), model(x))


@pytest.mark.parametrize("parametrise", [weight_norm, spectral_norm])
def test_a_layer_whose_parametrisation_was_removed_converts(parametrise):
    layer = remove_parametrizations(parametrise(nn.Linear(3, 3)), "weight")
    assert set(sites(layer)) == {"weight"}


def test_hook_based_weight_norm_converts_and_keeps_its_outputs():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        plain = nn.utils.weight_norm(nn.Linear(3, 3))
    model = convert_(plain, MeanField(initial_std=0.5))
    paths = {site.path for site in require_record(model).plan.sites}
    assert paths == {"weight_g", "weight_v"}
    x = torch.randn(4, 3)
    assert not torch.equal(model(x), model(x))
    v, g = model.weight_v_posterior.mean, model.weight_g_posterior.mean
    with mean_weights(model):
        expected = nn.functional.linear(x, g * v / v.norm(dim=1, keepdim=True), model.bias)
        torch.testing.assert_close(model(x), expected)


def test_initial_std_is_a_tenth_of_the_root_mean_square():
    layer = nn.Linear(4, 4)
    expected = 0.1 * layer.weight.detach().square().mean().sqrt().item()
    site = sites(layer)["weight"]
    assert site.initial_std == pytest.approx(expected, rel=1e-6)
    model = convert(layer, MeanField())
    std = model.weight_posterior.dense_variance().sqrt()
    torch.testing.assert_close(std, torch.full((4, 4), expected))


def test_initial_std_of_zero_weights_is_small_and_positive():
    assert sites(with_weight(0.0))["weight"].initial_std == 1e-3


def test_initial_std_of_huge_weights_does_not_overflow():
    assert sites(with_weight(1e30))["weight"].initial_std == pytest.approx(1e29, rel=1e-6)


def test_initial_std_can_be_given():
    assert sites(nn.Linear(2, 2), initial_std=0.3)["weight"].initial_std == 0.3


@pytest.mark.parametrize(
    ("layer", "expected"),
    [
        (nn.Linear(3, 5), (5, 1)),
        (nn.Conv2d(4, 6, 3, groups=2), (6, 1, 1, 1)),
        (nn.ConvTranspose2d(4, 6, 3), (1, 6, 1, 1)),
        (nn.Embedding(7, 3), (7, 1)),
        (nn.Bilinear(2, 3, 4), (4, 1, 1)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_out_scales_are_one_per_output_unit(layer, expected):
    assert sites(layer, scale="out")["weight"].scale_shape == expected
    model = convert(layer, MeanField(scale="out"))
    assert model.weight_posterior.rho.shape == expected


def test_out_scales_of_a_bias_are_its_own():
    assert sites(nn.Linear(3, 5), scale="out", biases=True)["bias"].scale_shape == (5,)


@pytest.mark.parametrize("scale", ["weight", "out"])
@pytest.mark.parametrize("table", [nn.Embedding, nn.EmbeddingBag])
def test_the_padding_row_is_never_random(table, scale):
    model = convert(table(5, 3, padding_idx=2), MeanField(scale=scale, initial_std=0.5))
    assert model.weight_posterior.num_random == 4 * 3
    first, second = model.weight, model.weight
    assert torch.equal((first != second).all(1), torch.arange(5) != 2)


def test_the_padding_row_is_known_from_any_owner_of_a_tie():
    (site,) = sites(HeadBeforeTable()).values()
    assert site.path == "head.weight"
    assert site.fixed_row == 2


def test_a_user_module_with_a_padding_idx_of_its_own_is_not_an_embedding():
    layer = nn.Linear(3, 3)
    layer.padding_idx = 1
    assert sites(layer)["weight"].fixed_row is None


def test_local_is_for_weights_and_biases_a_layer_alone_uses():
    class WithExtra(nn.Linear):
        def __init__(self):
            super().__init__(3, 3)
            self.extra = nn.Parameter(torch.ones(2, 2))

    planned = sites(WithExtra(), how="local", biases=True)
    assert {path: site.how for path, site in planned.items()} == {
        "weight": "local",
        "bias": "local",
        "extra": "sample",
    }
    tied = sites(TiedLanguageModel(), how="local")
    assert tied["embed.weight"].how == "sample"
    assert tied["mix.weight"].how == "local"


def test_a_prior_may_depend_on_path_and_shape():
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 4))
    planned = sites(model, prior_std=lambda path, shape: float(path[0] == "1") + shape[1])
    assert planned["0.weight"].prior.std == 2.0
    assert planned["1.weight"].prior.std == 4.0


def test_a_site_survives_a_json_round_trip():
    model = nn.Sequential(nn.Embedding(5, 3, padding_idx=1), nn.Linear(3, 2))
    for site in sites(model, how="local", scale="out", prior_std=0.5).values():
        assert Site.from_dict(json.loads(json.dumps(site.to_dict()))) == site


def test_a_model_made_again_from_its_plan_has_the_same_state():
    plain = nn.Sequential(nn.Embedding(5, 3, padding_idx=1), nn.Linear(3, 2))
    model = convert(plain, MeanField(scale="out"))
    again = convert(plain, MeanField(scale="out"))
    assert require_record(model).plan == require_record(again).plan
    for (name, value), other in zip(
        model.state_dict().items(), again.state_dict().values(), strict=True
    ):
        assert torch.equal(value, other), name


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"how": "moments"}, "how must be 'sample' or 'local', got 'moments'"),
        ({"scale": "in"}, "scale must be 'weight' or 'out', got 'in'"),
        ({"initial_std": 0.0}, "initial_std must be positive and finite, got 0.0"),
        ({"initial_std": math.inf}, "initial_std must be positive and finite, got inf"),
    ],
)
def test_impossible_options_are_refused_at_once(options, message):
    with pytest.raises(ValueError, match=message):
        MeanField(**options)
