"""A model leaves memory and comes back the same; a bad file leaves everything as it was."""

import random
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from torch import nn

import bayesify as bf
from bayesify.exporting.model_file import read_note
from bayesify.training.likelihood import GaussianRegression

METHODS = [
    bf.Deterministic(),
    bf.MeanField(prior_std=0.3, how="local", biases=True),
    bf.MeanField(scale="out"),
    bf.MCDropout(rate=0.2),
    bf.DeepEnsemble(num_members=2),
]


def network() -> nn.Module:
    return nn.Sequential(
        nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 3)
    )


@pytest.mark.parametrize("method", METHODS, ids=repr)
def test_loaded_model_predicts_the_same(tmp_path: Path, method: bf.Method) -> None:
    torch.manual_seed(0)
    model = bf.convert(network(), method)
    model.bayesify.likelihood = bf.Classification()
    path = tmp_path / "m.safetensors"
    bf.save(model, path)
    loaded = bf.load(path, network())
    assert type(loaded) is type(model)
    x = torch.randn(5, 6)
    first, second = (bf.predict(m, x, num_samples=4, seed=3).probs for m in (model, loaded))
    assert torch.equal(first, second)
    assert loaded.bayesify.method == method
    assert loaded.bayesify.plan == model.bayesify.plan


@pytest.mark.parametrize("random_layer", [0, 4])
def test_a_layer_that_is_random_as_a_whole_comes_back(tmp_path: Path, random_layer: int) -> None:
    torch.manual_seed(0)
    net = network()
    # The file need not say where its random weights are, and the other layer has none.
    share = net[random_layer].weight.numel() / (6 * 8 + 8 * 3)
    with torch.no_grad():
        net[random_layer].weight.copy_(torch.ones_like(net[random_layer].weight) * 9)
    model = bf.convert(net, bf.PartialBayes(share, score="magnitude"))
    model.bayesify.likelihood = bf.Classification()
    bf.save(model, tmp_path / "m")
    loaded = bf.load(tmp_path / "m", network())
    x = torch.randn(5, 6)
    first, second = (bf.predict(m, x, num_samples=4, seed=3).probs for m in (model, loaded))
    assert torch.equal(first, second)


def test_file_names_tensors_as_people_do(tmp_path: Path) -> None:
    bf.save(bf.convert(network(), bf.MeanField()), tmp_path / "m")
    with safe_open(tmp_path / "m", "pt") as file:
        names = set(file.keys())
    assert {"0.weight.mean", "0.weight.rho", "0.bias", "1.running_mean"} <= names


def test_registered_model_needs_no_architecture(tmp_path: Path) -> None:
    net = bf.build_model("mlp", in_features=4, hidden=(5,), out_features=2)
    options = {"in_features": 4, "hidden": [5], "out_features": 2}
    model = bf.convert(net, bf.MeanField())
    bf.save(model, tmp_path / "m", architecture="mlp", options=options, note={"classes": ["a"]})
    loaded = bf.load(tmp_path / "m")
    assert all(map(torch.equal, model.state_dict().values(), loaded.state_dict().values()))
    assert read_note(tmp_path / "m")["note"] == {"classes": ["a"]}


def test_learned_noise_travels_along(tmp_path: Path) -> None:
    model = bf.convert(nn.Linear(2, 1), bf.MeanField())
    likelihood = GaussianRegression()
    likelihood.start(torch.tensor([0.0, 10.0]))
    model.bayesify.likelihood = likelihood
    bf.save(model, tmp_path / "m")
    found = bf.load(tmp_path / "m", nn.Linear(2, 1)).bayesify.likelihood
    assert torch.equal(found.raw_noise_variance, likelihood.raw_noise_variance)


def test_another_architecture_is_refused_and_untouched(tmp_path: Path) -> None:
    bf.save(bf.convert(network(), bf.MeanField()), tmp_path / "m")
    other = nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 3))
    before = {name: value.clone() for name, value in other.state_dict().items()}
    with pytest.raises(bf.ArchiveError, match="another architecture"):
        bf.load(tmp_path / "m", other)
    assert all(torch.equal(before[name], value) for name, value in other.state_dict().items())
    assert type(other[0]) is nn.Linear


def test_missing_architecture_and_plain_model_are_explained(tmp_path: Path) -> None:
    bf.save(bf.convert(network(), bf.MeanField()), tmp_path / "m")
    with pytest.raises(ValueError, match="architecture must be given"):
        bf.load(tmp_path / "m")
    with pytest.raises(TypeError, match=r"must come from bayesify\.convert"):
        bf.save(network(), tmp_path / "n")
    with pytest.raises(LookupError, match="Did you mean 'lenet_5'"):
        bf.save(bf.convert(network(), bf.MeanField()), tmp_path / "n", architecture="lenet5")
    assert not (tmp_path / "n").exists()


def test_two_hundred_damaged_files_give_two_hundred_clear_errors(tmp_path: Path) -> None:
    torch.manual_seed(0)
    good = tmp_path / "good"
    bf.save(bf.convert(network(), bf.MeanField()), good)
    content = good.read_bytes()
    chance = random.Random(0)
    bad = tmp_path / "bad"
    for index in range(200):
        damaged = bytearray(content)
        kind = index % 5
        if kind == 0:
            damaged = damaged[: chance.randrange(len(content))]
        elif kind == 1:
            damaged[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        elif kind == 2:
            start = chance.randrange(len(content))
            damaged[start : start + 64] = chance.randbytes(64)
        elif kind == 3:
            damaged = bytearray(chance.randbytes(chance.randrange(1, 4096)))
        else:
            damaged += chance.randbytes(chance.randrange(1, 64))
        assert bytes(damaged) != content
        bad.write_bytes(damaged)
        architecture = network()
        with pytest.raises(bf.ArchiveError) as caught:
            bf.load(bad, architecture)
        assert str(bad) in str(caught.value)
        assert len(str(caught.value)) < 600
        assert type(architecture[0]) is nn.Linear


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_loaded_model_has_the_type_it_was_saved_in(tmp_path: Path, dtype: torch.dtype) -> None:
    model = bf.convert(network().to(dtype), bf.MeanField())
    bf.save(model, tmp_path / "m")
    loaded = bf.load(tmp_path / "m", network())
    for a, b in zip(model.state_dict().values(), loaded.state_dict().values(), strict=True):
        assert a.dtype == b.dtype
        assert torch.equal(a, b)


def test_frozen_weights_stay_frozen(tmp_path: Path) -> None:
    net = network()
    net[0].weight.requires_grad_(False)
    bf.save(bf.convert(net, bf.MeanField()), tmp_path / "m")
    loaded = bf.load(tmp_path / "m", network())
    frozen = [name for name, entry in loaded.named_parameters() if not entry.requires_grad]
    assert frozen == ["0.weight"]


def test_choices_that_are_not_plain_numbers_survive(tmp_path: Path) -> None:
    method = bf.MeanField(where=("0", "4"), initial_std=np.float32(0.1))
    model = bf.convert(network(), method)
    bf.save(model, tmp_path / "m")
    loaded = bf.load(tmp_path / "m", network()).bayesify
    assert loaded.plan == model.bayesify.plan
    assert loaded.method.where == ("0", "4")
    assert hash(loaded.method)


def test_what_json_cannot_hold_is_named_and_nothing_is_written(tmp_path: Path) -> None:
    model = bf.convert(network(), bf.MeanField())
    with pytest.raises(TypeError, match="note must hold only what JSON can hold"):
        bf.save(model, tmp_path / "m", note={"scores": torch.ones(2)})
    assert not list(tmp_path.iterdir())
