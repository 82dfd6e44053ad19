"""Where: which tensors a selector chooses, and the reason it gives for each of the others."""

import pytest
import torch
from torch import nn

from bayesify.conversion import convert
from bayesify.conversion.convert import require_record
from bayesify.conversion.select import candidates, select
from bayesify.methods import MeanField
from specimens import HeadBeforeTable, ResidualCNN, SharedModule, TiedLanguageModel


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.ModuleDict(
            {"embed": nn.Embedding(5, 4), "block": nn.Sequential(nn.Linear(4, 4), nn.ReLU())}
        )
        self.norm = nn.LayerNorm(4)
        self.scale = nn.Parameter(torch.ones(4))
        self.encoder_head = nn.Linear(4, 4)
        self.head = nn.Linear(4, 2)


WEIGHTS = ["encoder.embed.weight", "encoder.block.0.weight", "encoder_head.weight", "head.weight"]
BIASES = ["encoder.block.0.bias", "encoder_head.bias", "head.bias"]


def chosen(where, model=None, **options):
    return [c.path for c in select(model or Model(), where, **options).chosen]


def reasons(where="everything", model=None, **options):
    return {c.path: why for c, why in select(model or Model(), where, **options).skipped}


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("everything", WEIGHTS),
        ("last_layer", ["head.weight"]),
        ("head.weight", ["head.weight"]),
        ("head", ["head.weight"]),
        ("encoder", ["encoder.embed.weight", "encoder.block.0.weight"]),
        ("encoder.block", ["encoder.block.0.weight"]),
        ("encoder.*", ["encoder.embed.weight", "encoder.block.0.weight"]),
        ("*head*", ["encoder_head.weight", "head.weight"]),
        ("*.weight", WEIGHTS),
        (nn.Linear, WEIGHTS[1:]),
        (nn.Embedding, WEIGHTS[:1]),
        ([nn.Embedding, "head"], ["encoder.embed.weight", "head.weight"]),
        (["head", ["encoder_head"]], ["encoder_head.weight", "head.weight"]),
        (("last_layer", nn.Embedding), ["encoder.embed.weight", "head.weight"]),
        (lambda path, module, tensor: tensor.numel() == 8, ["head.weight"]),
        (lambda path, module, tensor: path.startswith("enc") and tensor.ndim == 1, BIASES[:2]),
    ],
)
def test_a_selector_chooses_the_tensors_it_names(where, expected):
    assert chosen(where) == expected


def test_biases_come_along_when_asked_for():
    assert set(chosen("everything", biases=True)) == {*WEIGHTS, *BIASES}
    assert chosen("last_layer", biases=True) == ["head.weight", "head.bias"]
    assert chosen(nn.Embedding, biases=True) == ["encoder.embed.weight"]


@pytest.mark.parametrize("name", ["head.bias", "norm.weight", "norm.bias", "scale"])
def test_a_tensor_named_outright_is_chosen_whatever_it_is(name):
    assert chosen(name) == [name]
    model = convert(Model(), MeanField(where=name))
    assert [site.path for site in require_record(model).plan.sites] == [name]


def test_a_pattern_does_not_reach_norms_and_biases():
    assert chosen(["norm*", "head"]) == ["head.weight"]
    assert chosen("*") == WEIGHTS


def test_every_tensor_left_out_has_its_reason():
    model = Model()
    model.encoder["embed"].weight.requires_grad_(False)
    model.register_parameter("table", nn.Parameter(torch.zeros(2, 2, dtype=torch.complex64)))
    model.register_parameter("nothing", nn.Parameter(torch.zeros(0, 3)))
    assert reasons(model=model) == {
        "encoder.embed.weight": "frozen (requires_grad is False)",
        "encoder.block.0.bias": "bias or vector (biases=True makes biases Bayesian)",
        "norm.weight": "parameter of a norm layer",
        "norm.bias": "parameter of a norm layer",
        "scale": "bias or vector (biases=True makes biases Bayesian)",
        "encoder_head.bias": "bias or vector (biases=True makes biases Bayesian)",
        "head.bias": "bias or vector (biases=True makes biases Bayesian)",
        "table": "not a real floating-point tensor (torch.complex64)",
        "nothing": "it has no entries",
    }
    assert reasons("head")["encoder_head.weight"] == "not selected"


@pytest.mark.parametrize(
    "norm",
    [
        nn.BatchNorm2d(3),
        nn.GroupNorm(1, 3),
        nn.LayerNorm(3),
        nn.RMSNorm(3),
        nn.InstanceNorm1d(3, affine=True),
    ],
)
def test_norm_layers_stay_deterministic(norm):
    model = nn.Sequential(norm, nn.Linear(3, 3))
    assert chosen("everything", model, biases=True) == ["1.weight", "1.bias"]


def test_a_frozen_tensor_is_skipped_by_kind_and_chosen_outright():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[0].weight.requires_grad_(False)
    assert chosen("everything", model) == ["1.weight"]
    assert chosen("0.weight", model) == ["0.weight"]


def test_tied_tensors_are_one_candidate_under_all_their_names():
    (tied, *_) = candidates(TiedLanguageModel())
    assert tied.paths == ("embed.weight", "head.weight")
    assert [type(module) for module, _ in tied.owners] == [nn.Embedding, nn.Linear]
    for name in tied.paths:
        assert chosen(name, TiedLanguageModel()) == ["embed.weight"]
    assert "embed.weight" in chosen(nn.Embedding, TiedLanguageModel())


def test_a_module_with_two_names_is_one_owner():
    weight = candidates(SharedModule())[0]
    assert weight.paths == ("first.weight", "second.weight")
    assert len(weight.owners) == 1


def test_last_layer_is_the_last_module_even_where_its_weight_is_tied():
    assert chosen("last_layer", TiedLanguageModel()) == ["embed.weight"]
    assert chosen("last_layer", HeadBeforeTable()) == ["head.weight"]
    assert chosen("last_layer", ResidualCNN()) == ["head.weight"]
    assert chosen("last_layer", nn.Linear(2, 2)) == ["weight"]


@pytest.mark.parametrize(
    "where", ["hed", "head.*.x", nn.Conv2d, ["head", "tail"], "last_layers"], ids=str
)
def test_a_selector_that_matches_nothing_is_an_error_that_names_it(where):
    culprit = where[-1] if isinstance(where, list) else where
    with pytest.raises(ValueError, match="matches no parameter of the model") as error:
        select(Model(), where)
    assert repr(culprit) in str(error.value)
    assert "encoder.embed.weight" in str(error.value)
    assert str(error.value).endswith(", ...")


def test_a_predicate_that_matches_nothing_is_an_error():
    with pytest.raises(ValueError, match="matches no parameter"):
        select(Model(), lambda path, module, tensor: False)


def test_a_selector_of_no_known_kind_is_an_error():
    with pytest.raises(TypeError, match=r"where must be 'everything'.*got 3"):
        select(Model(), 3)


def test_a_lazy_layer_that_nobody_selects_stays_lazy():
    model = nn.Sequential(nn.LazyLinear(3), nn.Linear(3, 2))
    assert reasons("1", model)["0.weight"] == "not selected"
    assert reasons("1", model)["0.bias"] == "not selected"
    bayesian = convert(model, MeanField(where="1"))
    assert bayesian(torch.randn(4, 5)).shape == (4, 2)
