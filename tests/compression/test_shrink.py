"""shrink_: dead units go, and nothing about the predictions changes."""

import copy
import dataclasses

import pytest
import torch
from torch import Tensor, nn

import bayesify as bf
from bayesify.compression.shrink import shrink_
from bayesify.conversion.convert import require_record
from bayesify.conversion.narrow import narrowed
from bayesify.conversion.posterior import posteriors
from bayesify.models import cifar_resnet
from compression.pruned import (
    NETWORKS,
    Convolutional,
    TwoHeads,
    dense,
    normalised,
    prune_,
    prune_input_,
    prune_most_,
    prune_output_,
)
from specimens import SPECIMENS, Specimen

METHODS = {
    "mean_field": bf.MeanField(initial_std=0.2),
    "local": bf.MeanField(how="local", initial_std=0.2),
    "tied_scale": bf.MeanField(scale="out"),
    "random_biases": bf.MeanField(biases=True, how="local"),
    "additive": bf.VariationalDropout(),
    "multiplicative": bf.VariationalDropout(noise="multiplicative"),
}


def outputs(model: nn.Module, x: Tensor) -> Tensor:
    """Return all outputs of the mean weights, side by side."""
    with bf.mean_weights(model), torch.no_grad():
        output = model(x)
    return torch.cat(output, -1) if isinstance(output, tuple) else output


def num_weights(model: nn.Module) -> int:
    return sum(site.shape.numel() for site in posteriors(model))


def sizes(model: nn.Module) -> dict[str, dict[str, int]]:
    return {path: dict(new) for path, new in require_record(model).plan.resized.items()}


def pruned(name: str, method: bf.Method, seed: int = 0) -> tuple[nn.Module, Tensor]:
    """Return a network in float64 with most of its weights gone, and inputs for it."""
    torch.manual_seed(seed)
    build, make_inputs = NETWORKS[name]
    model = bf.convert(build().double(), method)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d) and module.running_mean is not None:
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2.0)
    prune_most_(model)
    x = make_inputs()
    return model.eval(), x.double() if x.is_floating_point() else x


def draw_(model: nn.Module) -> None:
    """Centre every posterior on a draw from it, with the same entries."""
    for site in posteriors(model):
        drawn = site.sample().detach().flatten()
        live = drawn if site.index is None else drawn[site.index]
        site.mean.data = live.view(site.mean.shape)


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
@pytest.mark.parametrize("name", NETWORKS)
def test_every_draw_of_the_weights_keeps_its_outputs(name: str, method: bf.Method) -> None:
    before = after = 0
    for seed in range(3):
        model, x = pruned(name, method, seed)
        draw_(model)
        expected = outputs(model, x)
        before += num_weights(model)
        assert shrink_(model) is None
        after += num_weights(model)
        # A sum of at most 30 products in float64, in another order, through at most 4 layers.
        torch.testing.assert_close(outputs(model, x), expected, rtol=1e-12, atol=1e-12)
    assert after < before


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("specimen", SPECIMENS, ids=[s.name for s in SPECIMENS])
def test_no_specimen_changes_its_outputs(specimen: Specimen, training: bool) -> None:
    model = bf.convert(specimen.build(), bf.MeanField(biases=True)).train(training)
    for _ in range(2):
        prune_most_(model, 0.6)
        with bf.mean_weights(model), torch.no_grad():
            expected = specimen.call(model)
            shrink_(model)
            # Sums of fewer than 20 terms in another order: the default float32 tolerance holds.
            torch.testing.assert_close(specimen.call(model), expected)


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
@pytest.mark.parametrize("name", NETWORKS)
def test_what_stays_has_the_distribution_it_had(name: str, method: bf.Method) -> None:
    model, _ = pruned(name, method)
    whole = copy.deepcopy(model)
    shrink_(model)
    expected_kl = 0.0
    for site, old in zip(posteriors(model), posteriors(whole), strict=True):
        # Values tell entries apart: no two means are the same.
        stays = torch.isin(old.mean.detach().flatten(), site.mean.detach().flatten())
        part = narrowed(old, stays)
        assert part.num_live == site.num_live
        expected_kl = expected_kl + part.kl()
        for mine, theirs in (
            (site.dense_mean(), part.dense_mean()),
            (site.dense_variance(), part.dense_variance()),
        ):
            assert torch.equal(mine[mine != 0], theirs[theirs != 0])
    assert any(site.num_live for site in posteriors(model))
    torch.testing.assert_close(bf.kl(model), torch.as_tensor(expected_kl))


def linear_moments(model: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the exact mean and variance of y = W2 (W1 x + b1) + b2, weights independent."""
    first, second = posteriors(model)
    mean = x @ first.dense_mean().T + model[0].bias
    variance = x.square() @ first.dense_variance().T
    spread = (variance + mean.square()) @ second.dense_variance().T
    spread = spread + variance @ second.dense_mean().square().T
    return mean @ second.dense_mean().T + model[2].bias, spread


@pytest.mark.parametrize("how", ["sample", "local"])
def test_the_predictive_moments_stay(how: str) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(5, 12), nn.Identity(), nn.Linear(12, 3)).double()
    net[0].bias.data[:6] = 0.0
    model = bf.convert(net, bf.MeanField(how=how, initial_std=0.5))
    prune_(model[0], torch.rand(12, 5) < 0.7)
    prune_output_(model[0], 1)
    prune_input_(model[2], 7)
    x = torch.randn(2, 5).double()
    with torch.no_grad():
        mean, variance = linear_moments(model, x)
        shrink_(model)
        assert model[0].out_features == 10
        torch.testing.assert_close(linear_moments(model, x), (mean, variance))
        draws = torch.stack([model(x) for _ in range(2000)])
    standard_error = (variance / len(draws)).sqrt()
    assert ((draws.mean(0) - mean).abs() < 5 * standard_error).all()
    # The fourth moment of the draws gives the standard error of their variance.
    centred = (draws - mean).square()
    error_of_variance = centred.std(0) / len(draws) ** 0.5
    assert ((centred.mean(0) - variance).abs() < 5 * error_of_variance).all()


def two_layers(**options: object) -> nn.Module:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    return bf.convert(net, bf.MeanField(**options))


def test_a_unit_that_nothing_reads_goes() -> None:
    model = two_layers()
    row = model[0].weight_posterior.mean.detach().clone()
    prune_input_(model[2], 4)
    bias = model[0].bias.detach().clone()
    shrink_(model)
    others = torch.tensor([0, 1, 2, 3, 5])
    assert torch.equal(model[0].weight_posterior.mean, row[others])
    assert torch.equal(model[0].bias, bias[others])
    assert isinstance(model[0].bias, nn.Parameter)
    assert (model[0].in_features, model[0].out_features) == (4, 5)
    assert (model[2].in_features, model[2].out_features) == (5, 3)
    assert model[2].weight_posterior.shape == (3, 5)


@pytest.mark.parametrize(
    ("activation", "bias", "goes"),
    [
        (nn.ReLU(), -1.0, True),
        (nn.ReLU(), 0.0, True),
        (nn.ReLU(), 1e-6, False),
        (nn.Tanh(), 0.0, True),
        (nn.Sigmoid(), 0.0, False),
        (nn.Softplus(), -1.0, False),
        (nn.Sequential(nn.Dropout(0.5), nn.ReLU()), 0.0, True),
        (nn.Sequential(nn.ReLU(), nn.Dropout(0.5)), -1.0, True),
        # What training drops is 0 before the activation, and 0.5 after it.
        (nn.Sequential(nn.Dropout(0.5), nn.Hardsigmoid()), -4.0, False),
        (nn.Hardsigmoid(), -4.0, True),
        (nn.BatchNorm1d(6), 0.0, False),
        (nn.Sequential(nn.ReLU(), nn.Sigmoid()), -1.0, False),
    ],
)
def test_a_unit_that_nothing_feeds_goes_only_if_it_is_zero(
    activation: nn.Module, bias: float, goes: bool
) -> None:
    net = nn.Sequential(nn.Linear(4, 6), activation, nn.Linear(6, 3))
    net[0].bias.data[2] = bias
    model = bf.convert(net, bf.MeanField())
    prune_output_(model[0], 2)
    shrink_(model)
    assert model[0].out_features == (5 if goes else 6)


def test_a_random_bias_keeps_its_unit_until_it_is_pruned() -> None:
    model = two_layers(biases=True)
    model[0].bias_posterior.mean.data[2] = -1.0
    prune_output_(model[0], 2)
    shrink_(model)
    assert model[0].out_features == 6
    prune_(model[0], torch.arange(6) != 2, "bias")
    shrink_(model)
    assert model[0].out_features == model[0].bias_posterior.shape[0] == 5


def test_a_channel_goes_only_with_its_whole_block() -> None:
    model = bf.convert(Convolutional(), bf.MeanField())
    kept = torch.arange(30) // 6 != 3
    kept[20] = True
    prune_(model.fc1, kept)
    shrink_(model)
    assert model.conv2.out_channels == 5
    prune_input_(model.fc1, 3, block=6)
    shrink_(model)
    assert (model.conv2.out_channels, model.fc1.in_features) == (4, 24)
    assert model(torch.randn(2, 2, 8, 6)).shape == (2, 3)


def test_a_unit_stays_while_one_of_two_layers_reads_it() -> None:
    model = bf.convert(TwoHeads(), bf.MeanField())
    prune_input_(model.left, 1)
    shrink_(model)
    assert model.body.out_features == 8
    prune_input_(model.right, 1)
    shrink_(model)
    assert model.body.out_features == model.left.in_features == model.right.in_features == 7


def test_a_normalisation_shrinks_with_its_channels() -> None:
    model = bf.convert(normalised(), bf.MeanField())
    norm = model[1]
    norm.running_mean.copy_(torch.arange(6.0))
    norm.weight.requires_grad_(False)
    prune_input_(model[3], 2)
    prune_input_(model[8], 1, block=6)
    shrink_(model)
    assert norm.num_features == model[0].out_channels == 5
    assert torch.equal(norm.running_mean, torch.tensor([0.0, 1.0, 3.0, 4.0, 5.0]))
    assert not norm.weight.requires_grad
    assert norm.bias.requires_grad
    assert "running_mean" in norm.state_dict()
    assert model[6].num_features == model[8].in_features == 24
    model.train()(torch.randn(3, 2, 8, 6)).sum().backward()
    assert norm.running_var.shape == (5,)


def test_removing_a_unit_removes_what_only_it_has_read() -> None:
    torch.manual_seed(0)
    sizes_before = [nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 3)]
    model = bf.convert(nn.Sequential(*sizes_before), bf.MeanField())
    reads = torch.ones(6, 5, dtype=torch.bool)
    reads[:, 3] = False
    reads[1, 3] = True  # only unit 1 reads unit 3 of the layer before ...
    prune_(model[2], reads)
    shrink_(model)
    assert model[0].out_features == 5
    prune_input_(model[4], 1)  # ... and now nothing reads unit 1
    shrink_(model)
    assert (model[0].out_features, model[2].out_features) == (4, 5)


def test_removing_a_unit_removes_what_only_it_has_fed() -> None:
    layers = [nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 6, bias=False), nn.ReLU(), nn.Linear(6, 3)]
    layers[0].bias.data[3] = -1.0
    model = bf.convert(nn.Sequential(*layers), bf.MeanField())
    feeds = torch.ones(6, 5, dtype=torch.bool)
    feeds[1] = torch.arange(5) == 3  # only unit 3 of the layer before feeds unit 1
    prune_(model[2], feeds)
    prune_output_(model[0], 3)
    shrink_(model)
    assert (model[0].out_features, model[2].out_features) == (4, 5)


def test_a_layer_without_any_weight_left_keeps_one_unit() -> None:
    model, x = pruned("dense", METHODS["mean_field"])
    prune_(model[3], torch.zeros(7, 8, dtype=torch.bool))
    expected = outputs(model, x)
    shrink_(model)
    assert model[0].out_features == model[3].in_features == 1
    torch.testing.assert_close(outputs(model, x), expected, rtol=1e-12, atol=1e-12)
    assert model[0].weight_posterior.num_live == 0


def test_every_weight_gone_leaves_a_network_that_runs() -> None:
    model = bf.convert(Convolutional(), bf.VariationalDropout())
    for layer in (model.conv1, model.conv2, model.fc1, model.fc2):
        prune_(layer, torch.zeros((), dtype=torch.bool))
    x = torch.randn(2, 2, 8, 6)
    expected = outputs(model, x)
    shrink_(model)
    assert model.fc1.out_features == model.conv1.out_channels == 1
    torch.testing.assert_close(outputs(model, x), expected)
    assert bf.kl(model) == 0


@pytest.mark.parametrize("prune", [False, True])
def test_a_model_without_dead_units_is_left_alone(prune: bool) -> None:
    model = two_layers()
    if prune:
        prune_(model[0], torch.arange(24).view(6, 4) % 4 != 1)
    plan = require_record(model).plan
    held = list(model.modules())
    before = {
        key: (value, value.clone()) for key, value in model.state_dict(keep_vars=True).items()
    }
    assert shrink_(model) is None
    after = model.state_dict(keep_vars=True)
    assert list(model.modules()) == held
    assert all(after[key] is value for key, (value, _) in before.items())
    assert all(torch.equal(after[key], copied) for key, (_, copied) in before.items())
    assert require_record(model).plan == plan


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = dense()

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x) if x.sum() > 0 else -self.layers(x)


def test_a_model_that_cannot_be_traced_keeps_its_units_and_says_why() -> None:
    model = bf.convert(Branching(), bf.MeanField())
    prune_input_(model.layers[3], 1)
    before = model.state_dict()
    reason = shrink_(model)
    assert "cannot be traced" in reason
    assert model.layers[0].out_features == 8
    assert before.keys() == model.state_dict().keys()
    assert not sizes(model)


def test_a_plain_model_is_refused() -> None:
    with pytest.raises(TypeError, match=r"must come from bayesify\.convert"):
        shrink_(dense())


def test_a_residual_network_loses_only_units_inside_its_blocks() -> None:
    model = bf.convert(cifar_resnet(8, width=4).double(), bf.MeanField()).eval()
    for path, module in list(model.named_modules()):
        if isinstance(module, nn.Conv2d | nn.Linear):
            prune_input_(module, 1)
        if path.endswith("0.conv1"):
            prune_output_(module, 2)
    x = torch.randn(2, 3, 12, 12).double()
    expected = outputs(model, x)
    shrink_(model)
    torch.testing.assert_close(outputs(model, x), expected, rtol=1e-10, atol=1e-10)
    assert model.conv1.out_channels == model.layer1[0].conv2.out_channels == 4
    assert model.layer1[0].conv1.out_channels == model.layer1[0].bn1.num_features == 3
    assert model.layer2[0].conv1.out_channels == model.layer2[0].conv2.in_channels == 7
    assert model.linear.in_features == 16


def test_a_plain_layer_before_a_pruned_one_shrinks_too() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    net[0].weight.requires_grad_(False)
    model = bf.convert(net, bf.MeanField(where="2"))
    prune_input_(model[2], 5)
    shrink_(model)
    assert torch.equal(model[0].weight, net[0].weight[:5])
    assert not model[0].weight.requires_grad
    shapes = {skip.path: skip.shape for skip in require_record(model).plan.skipped}
    assert shapes["0.weight"] == (5, 4)
    assert shapes["0.bias"] == (5,)


def test_the_record_tells_the_sizes_before_and_now() -> None:
    model = two_layers(scale="out")
    prune_input_(model[2], 4)
    shrink_(model)
    first, second = require_record(model).plan.sites
    assert (first.shape, first.original_shape, first.scale_shape) == ((5, 4), (6, 4), (5, 1))
    assert (second.shape, second.original_shape, second.scale_shape) == ((3, 5), (3, 6), (3, 5))
    assert sizes(model) == {"0": {"out_features": 5}, "2": {"in_features": 5}}
    prune_input_(model[2], 0)
    shrink_(model)
    first, second = require_record(model).plan.sites
    assert (first.shape, first.original_shape) == ((4, 4), (6, 4))
    assert sizes(model) == {"0": {"out_features": 4}, "2": {"in_features": 4}}


def test_sizes_of_earlier_removals_stay_on_record() -> None:
    model = bf.convert(dense(), bf.MeanField())
    record = require_record(model)
    record.plan = dataclasses.replace(record.plan, resized={"3": {"in_features": 8}, "9": {}})
    prune_input_(model[5], 0)
    shrink_(model)
    assert sizes(model) == {
        "3": {"in_features": 8, "out_features": 6},
        "5": {"in_features": 6},
        "9": {},
    }


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_a_shrunk_model_trains_copies_and_reverts(method: bf.Method) -> None:
    model, x = pruned("convolutional", method)
    shrink_(model)
    targets = torch.randint(3, (4,))
    data = torch.utils.data.TensorDataset(x, targets)
    before = copy.deepcopy(model)
    loader = torch.utils.data.DataLoader(data, batch_size=4)
    bf.fit(model, loader, epochs=1, learning_rate=0.01, progress=False)
    moved = [
        not torch.equal(old, new)
        for (name, new), old in zip(model.named_parameters(), before.parameters(), strict=True)
        if name == "fc2.bias" or (name.startswith("fc2") and new.numel())
    ]
    assert all(moved)
    torch.testing.assert_close(outputs(copy.deepcopy(model), x), outputs(model, x), rtol=0, atol=0)
    plain = bf.revert(model)
    assert type(plain) is Convolutional
    assert plain.fc1.weight.shape == (model.fc1.out_features, model.fc1.in_features)
    with torch.no_grad():
        torch.testing.assert_close(plain(x), outputs(model, x), rtol=1e-12, atol=1e-12)


def test_a_padded_embedding_loses_columns_and_keeps_its_padding_row() -> None:
    net = nn.Sequential(nn.Embedding(7, 6, padding_idx=0), nn.Tanh(), nn.Linear(6, 3))
    model = bf.convert(net, bf.MeanField())
    prune_input_(model[2], 3)
    shrink_(model)
    assert model[0].embedding_dim == 5
    assert model[0].weight_posterior.num_random == 6 * 5
    assert (model[0].weight_posterior.dense_variance()[0] == 0).all()
    assert model(torch.tensor([[0, 1]])).shape == (1, 2, 3)


def test_half_precision_keeps_its_type() -> None:
    net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)).bfloat16()
    model = bf.convert(net, bf.MeanField())
    prune_input_(model[2], 4)
    shrink_(model)
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    assert model(torch.randn(0, 4).bfloat16()).shape == (0, 3)


def test_shrinking_leaves_the_random_state_and_mode_alone() -> None:
    model = two_layers()
    prune_input_(model[2], 4)
    model.train()
    state = torch.get_rng_state()
    shrink_(model)
    assert torch.equal(torch.get_rng_state(), state)
    assert model.training
