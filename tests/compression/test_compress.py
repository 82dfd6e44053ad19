"""compress: what goes, what stays, and that what stays predicts as before."""

import math

import pytest
import torch
from torch import nn

import bayesify as bf
from bayesify.conversion.narrow import signal_to_noise
from bayesify.conversion.posterior import posteriors
from bayesify.distributions.scale import inverse_softplus
from bayesify.training.optimiser import make_optimizers


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 3))


def spread(method: bf.Method | None = None) -> nn.Module:
    """Return a model whose entries have every ratio |mean| / std from 0.01 to 100."""
    model = bf.convert(network(), method or bf.MeanField())
    generator = torch.Generator().manual_seed(1)
    for site in posteriors(model):
        ratio = 10 ** (4 * torch.rand(site.rho.shape, generator=generator) - 2)
        std = site.mean.detach().abs() / ratio if site.rho.shape == site.mean.shape else 0.1 / ratio
        site.rho.data = inverse_softplus(std)
    return model


def ratios(model: nn.Module) -> torch.Tensor:
    return torch.cat([signal_to_noise(site) for site in posteriors(model)])


def num_live(model: nn.Module) -> list[int]:
    return [site.num_live for site in posteriors(model)]


@pytest.mark.parametrize("threshold", [0.223, 0.83, 5.0])
def test_a_threshold_removes_what_lies_below_it(threshold: float) -> None:
    model = spread()
    small = bf.compress(model, threshold=threshold, shrink=False)
    expected = [int((signal_to_noise(site) > threshold).sum()) for site in posteriors(model)]
    assert num_live(small) == expected
    assert (ratios(small) > threshold).all()


def test_log_alpha_three_is_a_ratio_of_exp_minus_one_and_a_half() -> None:
    model = spread()
    by_alpha = bf.compress(model, by="log_alpha", threshold=3.0, shrink=False)
    by_ratio = bf.compress(model, by="snr", threshold=math.exp(-1.5), shrink=False)
    assert num_live(by_alpha) == num_live(by_ratio)
    assert 0 < sum(num_live(by_alpha)) < sum(num_live(model))


@pytest.mark.parametrize(
    ("method", "ratio"), [(bf.MeanField(), 0.83), (bf.VariationalDropout(), math.exp(-1.5))]
)
@pytest.mark.parametrize("by", ["snr", "log_alpha"])
def test_without_a_word_the_methods_own_rule_decides(method, ratio: float, by: str) -> None:
    model = spread(method)
    small = bf.compress(model, by=by, shrink=False)
    assert sum(num_live(small)) == int((ratios(model) > ratio).sum())


@pytest.mark.parametrize("by", ["snr", "log_alpha", "magnitude", "random"])
def test_a_share_to_keep_is_kept_exactly_over_the_network_or_in_each_layer(by: str) -> None:
    model = spread()
    total = sum(num_live(model))
    everywhere = bf.compress(model, by=by, keep=0.25, shrink=False)
    assert sum(num_live(everywhere)) == round(0.25 * total)
    in_each = bf.compress(model, by=by, keep=0.25, scope="layer", shrink=False)
    assert num_live(in_each) == [round(0.25 * count) for count in num_live(model)]


def test_the_weights_kept_by_magnitude_are_the_largest() -> None:
    model = spread()
    small = bf.compress(model, by="magnitude", keep=0.1, shrink=False)
    sizes = torch.cat([site.mean.detach().abs().flatten() for site in posteriors(model)])
    left = torch.cat([site.mean.detach().abs() for site in posteriors(small)])
    torch.testing.assert_close(left.sort().values, sizes.sort().values[-left.numel() :])


def test_the_random_control_matches_the_count_of_every_layer_and_its_seed() -> None:
    model = spread()
    small = bf.compress(model, threshold=2.0, shrink=False)
    first = bf.compress(model, by="random", like=small, seed=3, shrink=False)
    again = bf.compress(model, by="random", like=small, seed=3, shrink=False)
    other = bf.compress(model, by="random", like=small, seed=4, shrink=False)
    assert num_live(first) == num_live(small)
    positions = [torch.cat([s.index for s in posteriors(m)]) for m in (first, again, other, small)]
    assert torch.equal(positions[0], positions[1])
    assert not torch.equal(positions[0], positions[2])
    assert not torch.equal(positions[0], positions[3])


def test_nothing_removed_predicts_bit_for_bit_the_same() -> None:
    model = spread()
    same = bf.compress(model, threshold=0.0)
    inputs = torch.randn(5, 6)
    options = {"num_samples": 4, "seed": 0, "likelihood": "classification"}
    first, second = (bf.predict(each, inputs, **options) for each in (model, same))
    assert torch.equal(first.mean, second.mean)


@pytest.mark.parametrize("how", ["sample", "local"])
def test_compressed_model_is_the_model_with_zeros(how: str) -> None:
    model = spread(bf.MeanField(how=how))
    small = bf.compress(model, threshold=1.0, shrink=False)
    for old in posteriors(model):
        kept = (signal_to_noise(old) > 1.0).view(old.shape)
        old.mean.data *= kept
    inputs = torch.randn(5, 6)
    with bf.mean_weights(model), bf.mean_weights(small):
        torch.testing.assert_close(model(inputs), small(inputs), rtol=0, atol=0)


def test_the_model_itself_is_left_untouched() -> None:
    model = spread()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    bf.compress(model, keep=0.1)
    after = model.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)


def test_compressed_model_trains_on_and_keeps_its_zeros() -> None:
    small = bf.compress(spread(), keep=0.3, shrink=False)
    data = [(torch.randn(8, 6), torch.randint(3, (8,))) for _ in range(4)]
    before = num_live(small)
    bf.fit(small, data, epochs=2, num_data=32, progress=False)
    assert num_live(small) == before
    assert bf.sparsity(small).removed == pytest.approx(0.7, abs=0.01)
    plain = bf.revert(small)
    zeros = sum(int((layer.weight == 0).sum()) for layer in plain if isinstance(layer, nn.Linear))
    assert zeros == 248 - sum(before)


def test_compressing_twice_is_compressing_once() -> None:
    model = spread()
    once = bf.compress(model, threshold=2.0, shrink=False)
    twice = bf.compress(
        bf.compress(model, threshold=0.5, shrink=False), threshold=2.0, shrink=False
    )
    assert num_live(once) == num_live(twice)
    assert bf.sparsity(once).by_path == bf.sparsity(twice).by_path


def test_tied_weights_stay_tied() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(7, 4)
            self.head = nn.Linear(4, 7, bias=False)
            self.head.weight = self.embedding.weight

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return self.head(self.embedding(tokens))

    small = bf.compress(bf.convert(Tied(), bf.MeanField()), keep=0.5)
    assert small.head.weight_posterior is small.embedding.weight_posterior
    assert num_live(small) == [14]
    assert torch.isfinite(small(torch.arange(3))).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"by": "sn"}, "Did you mean 'snr'"),
        ({"keep": 1.5}, r"keep must be the share of weights to keep, in \[0, 1\], got 1.5"),
        ({"keep": 0.1, "threshold": 2.0}, "only one of threshold, keep and like"),
        ({"by": "random"}, "needs keep"),
        ({"by": "magnitude"}, "needs keep"),
        ({"by": "random", "threshold": 0.5}, "means nothing for by='random'"),
        ({"scope": "x"}, "scope must be 'global' or 'layer', got 'x'"),
        ({"like": nn.Linear(2, 2)}, "same posteriors: it has 0, model 3"),
    ],
)
def test_wrong_options_are_named(options: dict, message: str) -> None:
    with pytest.raises((ValueError, LookupError), match=message):
        bf.compress(spread(), **options)


def test_a_model_without_posteriors_is_refused() -> None:
    with pytest.raises(TypeError, match="no posterior to prune"):
        bf.compress(bf.convert(network(), bf.Deterministic()), keep=0.1)
    with pytest.raises(TypeError, match=r"must come from bayesify\.convert"):
        bf.compress(network(), keep=0.1)


def test_weight_decay_stays_on_what_is_left() -> None:
    settings = bf.FitSettings(epochs=1, weight_decay=0.1)
    small = bf.compress(spread(), keep=0.5, shrink=False)
    groups = make_optimizers(small, nn.Identity(), settings)[0].param_groups
    decayed = {group["weight_decay"]: sum(p.numel() for p in group["params"]) for group in groups}
    assert decayed == {0.1: sum(num_live(small)), 0.0: 16 + 8 + 3}


def test_a_layer_that_keeps_its_units_is_logged_with_the_reason(caplog) -> None:
    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.head = nn.Linear(6, 6), nn.Linear(6, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(x + self.inner(x))

    with caplog.at_level("INFO", logger="bayesify"):
        bf.compress(bf.convert(Residual(), bf.MeanField()), by="magnitude", keep=0.1)
    assert "dead units were kept: inner" in caplog.text


def test_a_scope_without_a_share_and_words_for_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match="scope='layer' needs keep"):
        bf.compress(spread(), threshold=1.0, scope="layer")
    with pytest.raises(TypeError, match="keep must be a number, got"):
        bf.compress(spread(), keep="0.5")
