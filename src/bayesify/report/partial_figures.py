"""Pictures of the weights of networks that are random in part: which, how much, and where.

Every function takes converted models by the names that stand above or below them and returns a
matplotlib `Figure` of its own; nothing is shown, and no global state of matplotlib is touched.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from bayesify.conversion.narrow import existing
from bayesify.conversion.posterior import Posterior, posteriors
from bayesify.conversion.sites import named_posteriors
from bayesify.report.panels import (
    COLOURS,
    FAINT,
    INK,
    NARROW,
    calm,
    handles_of,
    legend_below,
    one_panel,
    panels,
    plain,
    shortened,
)

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_HEIGHT = 2.9
_NUM_BINS = 120
_TAIL = 0.001  # Share of the weights on either side that lies beyond the picture.
_LONGEST_NAME = 24
_FEW = 4  # Layers whose names have room beside one another.


def input_std_figure(models: Mapping[str, nn.Module], image_shape: tuple[int, ...]) -> Figure:
    """Draw how random the weights of each pixel are, one heat map per model.

    A pixel shows the standard deviation of its weights in the first layer, averaged over the
    units; weights that are not random count as 0. Every panel has colours of its own, since
    standard deviations differ a lot between models.

    Args:
        models: Converted models whose first posterior is that of a dense layer over an image.
        image_shape: (height, width), or (channels, height, width), averaged over the channels.
    """
    _check_some(models)
    stds = {name: input_std(model, image_shape) for name, model in models.items()}
    figure, places = panels({"": stds}, _HEIGHT)
    for place in places:
        values = place.content.numpy()
        low, high = float(values.min()), float(values.max())
        # One number everywhere would be drawn in the middle of a range around it.
        low, top = (low, high) if high > low else (0.0, high or 1.0)
        drawn = place.axes.imshow(
            values, cmap="inferno", vmin=low, vmax=top, interpolation="nearest"
        )
        place.axes.set(xticks=[], yticks=[], xlabel="" if high else "none of them is random")
        place.axes.grid(visible=False)
        bar = figure.colorbar(drawn, ax=place.axes, shrink=0.8)
        bar.ax.tick_params(labelsize=8, colors=FAINT, length=0)
    return figure


def input_std(model: nn.Module, image_shape: tuple[int, ...]) -> Tensor:
    """Return the std of the first layer's weights, averaged over units, as an image.

    Args:
        model: A converted model whose first posterior is that of a dense layer over an image.
        image_shape: (height, width), or (channels, height, width), averaged over the channels.
    """
    sites = named_posteriors(model)
    path, site = next(iter(sites.items()), (None, None))
    size = math.prod(image_shape)
    if site is None or len(site.shape) != 2 or site.shape[1] != size:
        found = "no posterior" if site is None else f"{path} of shape {tuple(site.shape)}"
        raise ValueError(
            f"models must begin with a dense layer over the {size} pixels of image_shape="
            f"{tuple(image_shape)}, got {found}"
        )
    if len(image_shape) not in (2, 3):
        raise ValueError(
            "image_shape must be (height, width) or (channels, height, width), got "
            f"{tuple(image_shape)}"
        )
    with torch.no_grad():
        std = site.dense_variance().sqrt().mean(0).cpu().view(tuple(image_shape))
    return std.mean(0) if len(image_shape) == 3 else std


def random_share_figure(models: Mapping[str, nn.Module]) -> Figure:
    """Draw which share of the weights of each layer is random, one panel per model.

    The dashed line is the share of the whole network; a layer above it has more than its part.

    Args:
        models: Converted models of one architecture.
    """
    from matplotlib.figure import Figure

    _check_some(models)
    sites = {name: named_posteriors(model) for name, model in models.items()}
    layers = list(next(iter(sites.values())))
    for name, own in sites.items():
        if not own or list(own) != layers:
            raise ValueError(
                f"models must have posteriors at the same layers, got {list(own)} in {name!r} "
                f"and {layers} in {next(iter(sites))!r}"
            )
    figure = Figure(
        figsize=(max(NARROW, 1.2 + 0.42 * len(layers)), 1.6 * len(models) + 1.0),
        layout="constrained",
        facecolor="white",
    )
    # One below the other: the names of many layers need the whole width.
    places = figure.subplots(len(models), 1, sharex=True, squeeze=False)[:, 0]
    for axes, (name, own) in zip(places, sites.items(), strict=True):
        calm(axes)
        axes.set_title(plain(name), size=10, color=INK, loc="left")
        _draw_shares(axes, own)
    names = shortened(layers, _LONGEST_NAME)
    labels = [plain(names[layer]) for layer in layers]
    slant: dict[str, Any] = {} if len(layers) <= _FEW else {"rotation": 60, "ha": "right"}
    places[-1].set_xticks(range(len(layers)), labels, size=8, **slant)
    return figure


def _draw_shares(axes: Axes, sites: Mapping[str, Posterior]) -> None:
    shares = [100.0 * site.num_random / site.shape.numel() for site in sites.values()]
    total = sum(site.shape.numel() for site in sites.values())
    whole = 100.0 * sum(site.num_random for site in sites.values()) / total
    axes.bar(range(len(shares)), shares, width=0.7, color=COLOURS[0])
    axes.axhline(whole, color=INK, lw=1, ls=(0, (4, 3)))
    axes.set(ylabel="random, %", xlim=(-0.6, len(shares) - 0.4))
    axes.grid(visible=False, axis="x")


def weight_distribution_figure(models: Mapping[str, nn.Module]) -> Figure:
    """Draw the weights of two models over each other, with how far their distributions differ.

    The title has the two-sample Kolmogorov-Smirnov statistic, the largest difference between the
    shares of weights below any number: 0 for the same distribution, 1 for no overlap. The picture
    leaves out the outermost weights, 0.1 % on either side; the statistic does not.

    Args:
        models: Two models, converted or plain (see `weights_of`).
    """
    import numpy as np
    from scipy.stats import ks_2samp

    if len(models) != 2:
        raise ValueError(f"models must be two to be compared, got {len(models)}: {list(models)}")
    values = {name: weights_of(model).numpy() for name, model in models.items()}
    # The p-value is of no interest, and the exact one takes long.
    first, second = values.values()
    found: Any = ks_2samp(first, second, method="asymp")
    low, high = np.quantile(np.concatenate([first, second]), (_TAIL, 1 - _TAIL))
    edges = np.linspace(low, max(high, low + 1e-12), _NUM_BINS + 1)
    figure, axes = one_panel(_HEIGHT)
    for (name, each), colour in zip(values.items(), COLOURS, strict=False):
        density = _density(each, edges)
        axes.stairs(density, edges, fill=True, color=colour, alpha=0.25)
        axes.stairs(density, edges, color=colour, lw=1.4, label=plain(name))
    axes.set(xlabel="weight", ylabel="density")
    title = f"Kolmogorov-Smirnov statistic {found.statistic:.3f}"
    axes.set_title(title, size=10, color=INK, loc="left")
    legend_below(figure, handles_of([axes]))
    return figure


def weights_of(model: nn.Module) -> Tensor:
    """Return the weights of a model in one list: means of the random ones, others as they are.

    Weights are matrices and kernels; biases and norms are left out. Of a sparse model only those
    that exist are there, of an ensemble those of all members.
    """
    sites = [site for site in posteriors(model) if len(site.shape) > 1]
    inside = {id(entry) for site in sites for entry in site.parameters()}
    found = [existing(site, site.dense_mean()) for site in sites]
    found += [entry for entry in model.parameters() if entry.ndim > 1 and id(entry) not in inside]
    if not found:
        raise ValueError("models must have weights, matrices or kernels, got one without any")
    return torch.cat([each.detach().flatten().cpu().double() for each in found])


def _density(values: np.ndarray[Any, Any], edges: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    import numpy as np

    counts, _ = np.histogram(values, edges)
    # Of all weights, those beyond the edges included.
    return counts / (len(values) * np.diff(edges))


def _check_some(models: Mapping[str, nn.Module]) -> None:
    if not models:
        raise ValueError("models must hold at least one model to draw, got none")
