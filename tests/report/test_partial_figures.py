"""Pictures of partly random networks show the numbers of the models they were given."""

import io
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import bayesify as bf
from bayesify.conversion.sites import named_posteriors
from bayesify.report import (
    input_std_figure,
    random_share_figure,
    weight_distribution_figure,
)
from bayesify.report.partial_figures import input_std, weights_of


def network(hidden: int = 12, seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(24, hidden),
        nn.BatchNorm1d(hidden),
        nn.ReLU(),
        nn.Linear(hidden, 10),
        nn.ReLU(),
        nn.Linear(10, 3),
    )


def partial(fraction: float, **options: Any) -> nn.Sequential:
    return bf.convert(network(), bf.PartialBayes(fraction, score="magnitude", **options))


def models() -> dict[str, nn.Module]:
    return {"1 %": partial(0.01), "_20 $": partial(0.2), "all": partial(1.0)}


def image_axes(figure: Any) -> list[Any]:
    return [axes for axes in figure.axes if axes.images]


def test_heat_maps_show_the_mean_std_of_each_pixels_weights() -> None:
    every = models()
    panels = image_axes(input_std_figure(every, (4, 6)))
    assert len(panels) == len(every)
    for axes, model in zip(panels, every.values(), strict=True):
        site = named_posteriors(model)["1.weight"]
        total = torch.zeros(12, 24, dtype=torch.float64)
        where = slice(None) if site.random_index is None else site.random_index.long()
        rho = site.rho.detach().double().flatten()
        total.view(-1)[where] = nn.functional.softplus(rho)
        expected = total.mean(0).view(4, 6)
        np.testing.assert_allclose(axes.images[0].get_array(), expected, rtol=1e-5)


def test_heat_maps_average_over_channels() -> None:
    model = partial(0.5)
    whole, by_channel = input_std(model, (4, 6)), input_std(model, (2, 4, 3))
    torch.testing.assert_close(by_channel, whole.view(2, 4, 3).mean(0))
    assert by_channel.shape == (4, 3)


def test_a_first_layer_without_random_weights_is_dark_and_says_so() -> None:
    figure = input_std_figure({"none": partial(0.0), "some": partial(0.5)}, (4, 6))
    none, some = image_axes(figure)
    assert float(none.images[0].get_array().max()) == 0.0
    assert none.images[0].get_clim() == (0.0, 1.0)
    assert none.get_xlabel() == "none of them is random"
    low, high = some.images[0].get_clim()
    assert 0.0 <= low < high == float(some.images[0].get_array().max())
    assert some.get_xlabel() == ""


def test_bars_are_the_share_of_each_layer_and_the_line_that_of_the_network() -> None:
    every = models()
    figure = random_share_figure(every)
    assert len(figure.axes) == len(every)
    for axes, (name, model) in zip(figure.axes, every.items(), strict=True):
        sites = named_posteriors(model)
        assert axes.get_title(loc="left").replace("\\", "").strip() == name
        expected = [100 * site.num_random / site.shape.numel() for site in sites.values()]
        assert [bar.get_height() for bar in axes.patches] == pytest.approx(expected)
        num_random = sum(site.num_random for site in sites.values())
        total = 24 * 12 + 12 * 10 + 10 * 3
        assert axes.lines[0].get_ydata()[0] == pytest.approx(100 * num_random / total)
    labels = [label.get_text() for label in figure.axes[-1].get_xticklabels()]
    assert labels == ["1.weight", "4.weight", "6.weight"]
    assert max(bar.get_height() for bar in figure.axes[0].patches) > 1.0


def test_the_distributions_are_those_of_the_weights_with_their_distance() -> None:
    first, second = partial(0.3), bf.convert(network(seed=1), bf.DeepEnsemble(3))
    figure = weight_distribution_figure({"partial": first, "ensemble": second})
    (axes,) = figure.axes
    values = [weights_of(model).numpy() for model in (first, second)]
    grid = np.sort(np.concatenate(values))
    below = [np.searchsorted(np.sort(each), grid, "right") / len(each) for each in values]
    distance = np.abs(below[0] - below[1]).max()
    assert axes.get_title(loc="left") == f"Kolmogorov-Smirnov statistic {distance:.3f}"
    outlines = [patch for patch in axes.patches if patch.get_label() in ("partial", "ensemble")]
    for outline, each in zip(outlines, values, strict=True):
        heights, edges, _ = outline.get_data()
        inside = np.histogram(each, edges)[0]
        np.testing.assert_allclose(heights * np.diff(edges) * len(each), inside, atol=1e-9)
        assert inside.sum() > 0.99 * len(each)


def test_the_same_weights_have_no_distance_and_others_have_one() -> None:
    same = weight_distribution_figure({"a": network(), "b": bf.convert(network(), bf.MeanField())})
    assert same.axes[0].get_title(loc="left").endswith(" 0.000")
    moved = network()
    with torch.no_grad():
        for entry in moved.parameters():
            entry.add_(10.0)
    far = weight_distribution_figure({"a": network(), "b": moved})
    assert far.axes[0].get_title(loc="left").endswith(" 1.000")


def test_weights_are_matrices_once_each_and_only_those_that_exist() -> None:
    net = network()
    matrices = torch.cat([net[index].weight.detach().flatten().double() for index in (1, 4, 6)])
    for method in (bf.Deterministic(), bf.PartialBayes(0.2, score="random"), bf.MeanField()):
        torch.testing.assert_close(weights_of(bf.convert(net, method)), matrices)
    sparse = bf.convert(net, bf.SparseSubspace(0.25, first_dense=False))
    assert len(weights_of(sparse)) == round(0.25 * 288) + round(0.25 * 120) + round(0.25 * 30)
    assert len(weights_of(bf.convert(net, bf.DeepEnsemble(4)))) == 4 * len(matrices)


def test_half_precision_can_be_drawn() -> None:
    half = bf.convert(network().bfloat16(), bf.PartialBayes(0.4, score="magnitude"))
    assert torch.isfinite(input_std(half, (4, 6))).all()
    for figure in (
        input_std_figure({"half": half}, (4, 6)),
        random_share_figure({"half": half}),
        weight_distribution_figure({"half": half, "whole": network()}),
    ):
        figure.savefig(io.BytesIO())


def test_what_cannot_be_drawn_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one model"):
        input_std_figure({}, (4, 6))
    with pytest.raises(ValueError, match="at least one model"):
        random_share_figure({})
    with pytest.raises(ValueError, match=r"over the 25 pixels of .*got 1.weight of shape \(12, 24"):
        input_std_figure({"a": partial(0.1)}, (5, 5))
    with pytest.raises(ValueError, match=r"got no posterior"):
        input_std_figure({"a": network()}, (4, 6))
    with pytest.raises(ValueError, match=r"image_shape must be \(height, width\)"):
        input_std_figure({"a": partial(0.1)}, (24,))
    other = bf.convert(nn.Linear(3, 2), bf.MeanField())
    with pytest.raises(ValueError, match="posteriors at the same layers"):
        random_share_figure({"a": partial(0.1), "b": other})
    with pytest.raises(ValueError, match="models must be two to be compared, got 1"):
        weight_distribution_figure({"a": network()})
    with pytest.raises(ValueError, match="got one without any"):
        weight_distribution_figure({"a": network(), "b": nn.BatchNorm1d(3)})


def test_importing_the_pictures_imports_neither_matplotlib_nor_scipy() -> None:
    code = (
        "import sys, bayesify.report.partial_figures; "
        "assert not {'matplotlib', 'scipy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
