"""Pictures of predictions: where a network is unsure, of what kind, and whether it is right to be.

Every function takes arrays and returns a matplotlib `Figure` of its own; nothing is shown, and no
global state of matplotlib is touched. `figure.savefig("name.png")` writes it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from bayesify.evaluation.scores import expected_calibration_error, reliability
from bayesify.prediction.predictive import ClassificationPredictive

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

PLAIN, BAYESIAN = "#9aa1ab", "#2f6db5"
ALEATORIC, EPISTEMIC = "#efb43f", "#c4472f"
INK, FAINT = "#22262b", "#6b7280"
_CLASS_COLOURS = ("#7d1f2c", "#12335c")
_PLANE_COLOURS = ("#b83a4b", "#e9a3a9", "#ffffff", "#9dbfe6", "#235a9c")


@dataclass(frozen=True, eq=False)
class Plane:
    """What a two-class network predicts over a rectangle of the plane.

    Attributes:
        title: What stands above the picture.
        probs: Probability of the second class on a grid, (rows, columns), from low to high.
        extent: Left, right, bottom and top of the grid.
    """

    title: str
    probs: Tensor
    extent: tuple[float, float, float, float]


@dataclass(frozen=True, eq=False)
class Example:
    """One image and what networks make of it.

    Attributes:
        image: Grey values, (height, width).
        title: What stands above the image; its class, say.
        prediction: The prediction for this one image.
        plain_probs: A plain network's probabilities, for comparison, or None.
    """

    image: Tensor
    title: str
    prediction: ClassificationPredictive
    plain_probs: Tensor | None = None


def plane_figure(planes: Sequence[Plane], points: Tensor, labels: Tensor) -> Figure:
    """Draw the probability of a class over the plane; white is where a network does not know.

    Args:
        planes: One picture each, side by side.
        points: Training points, (N, 2).
        labels: Their classes, 0 or 1, (N,).
    """
    figure = _figure(3.4 * len(planes), 3.4)
    _draw_planes(figure, planes, points, labels)
    return figure


def reliability_figure(
    predictions: Mapping[str, tuple[Tensor, Tensor]], num_bins: int = 10
) -> Figure:
    """Draw how often predictions are right against how sure they are; the diagonal is honest.

    Args:
        predictions: Probabilities (N, C) and targets (N,) of each network, by its name.
        num_bins: Number of bins of confidence.
    """
    figure = _figure(4.2, 4.2)
    _draw_reliability(figure.subplots(), predictions, num_bins)
    return figure


def examples_figure(groups: Mapping[str, Sequence[Example]], classes: Sequence[str]) -> Figure:
    """Draw images with their predicted probabilities and the two parts of their uncertainty.

    Args:
        groups: Images by the heading they stand under.
        classes: Name of each class.
    """
    figure = _figure(1.05 * sum(map(len, groups.values())) + 0.8, 3.3)
    _draw_examples(figure, groups, classes)
    return figure


def demo_figure(
    planes: Sequence[Plane],
    points: tuple[Tensor, Tensor],
    predictions: Mapping[str, tuple[Tensor, Tensor]],
    groups: Mapping[str, Sequence[Example]],
    classes: Sequence[str],
) -> Figure:
    """Draw the three pictures above in one: planes and reliability above, examples below."""
    figure = _figure(12.4, 7.3)
    figure.suptitle(
        "Where the Bayesian network is unsure", x=0.012, ha="left", size=16, weight="bold"
    )
    grid: Any = figure.subfigures(2, 1, height_ratios=(1.05, 1.0), hspace=0.03, squeeze=False)
    top, bottom = grid[:, 0]
    left, right = top.subfigures(1, 2, width_ratios=(2.1, 1.0), wspace=0.02)
    _draw_planes(left, planes, *points)
    _draw_reliability(right.subplots(), predictions, num_bins=6)
    _draw_examples(bottom, groups, classes)
    return figure


def _figure(width: float, height: float) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained", facecolor="white")


def _draw_planes(
    parent: Figure | SubFigure, planes: Sequence[Plane], points: Tensor, labels: Tensor
) -> None:
    from matplotlib.colors import LinearSegmentedColormap

    colours = LinearSegmentedColormap.from_list("two classes", list(_PLANE_COLOURS))
    columns = parent.subplots(1, len(planes), squeeze=False)[0]
    for axes, plane in zip(columns, planes, strict=True):
        grid = plane.probs.detach().cpu().numpy()
        left, right, bottom, top = plane.extent
        axes.imshow(
            grid,
            origin="lower",
            extent=plane.extent,
            cmap=colours,
            vmin=0,
            vmax=1,
            interpolation="bilinear",
            aspect="auto",
        )
        for label, colour in enumerate(_CLASS_COLOURS):
            chosen = points[labels == label].cpu()
            axes.scatter(
                chosen[:, 0], chosen[:, 1], s=16, color=colour, edgecolor="white", linewidth=0.6
            )
        axes.set(xlim=(left, right), ylim=(bottom, top), xticks=[], yticks=[])
        axes.set_title(plane.title, size=11, color=INK, loc="left")
        _frame(axes)


def _draw_reliability(
    axes: Axes, predictions: Mapping[str, tuple[Tensor, Tensor]], num_bins: int
) -> None:
    axes.plot([0, 1], [0, 1], color=FAINT, linewidth=1, linestyle=(0, (4, 3)))
    for (name, (probs, targets)), colour in zip(predictions.items(), _line_colours(), strict=False):
        bins = reliability(probs, targets, num_bins)
        filled = bins.count > 0
        confidence, accuracy = bins.confidence[filled], bins.accuracy[filled]
        error = expected_calibration_error(probs, targets)
        axes.plot(confidence, accuracy, color=colour, linewidth=1.6, zorder=3)
        # Area counts: a bin of two examples says little, however far off it lies.
        axes.scatter(
            confidence,
            accuracy,
            s=12 + 3.2 * bins.count[filled].double().sqrt() * 4,
            color=colour,
            edgecolor="white",
            linewidth=0.8,
            zorder=4,
            label=f"{name} (ECE {error:.3f})",
        )
    axes.set(xlim=(0, 1.02), ylim=(0, 1.04), xlabel="how sure it says it is", xticks=_QUARTERS)
    axes.set_ylabel("how often it is right")
    axes.set_yticks(_QUARTERS)
    axes.set_title("Reliability on test digits", size=11, color=INK, loc="left")
    axes.legend(loc="lower right", frameon=False, fontsize=9, handletextpad=0.3)
    axes.tick_params(labelsize=8, colors=FAINT, length=0)
    axes.grid(color="#e6e8eb", linewidth=0.8)
    axes.set_axisbelow(True)
    _frame(axes)


_QUARTERS = (0.0, 0.25, 0.5, 0.75, 1.0)


def _line_colours() -> tuple[str, ...]:
    return (PLAIN, BAYESIAN, EPISTEMIC, ALEATORIC)


def _draw_examples(
    parent: Figure | SubFigure, groups: Mapping[str, Sequence[Example]], classes: Sequence[str]
) -> None:
    groups = {heading: examples for heading, examples in groups.items() if examples}
    if not groups:
        raise ValueError("groups must hold at least one example to draw")
    widths = [len(examples) for examples in groups.values()]
    panels = parent.subfigures(1, len(groups), width_ratios=widths, squeeze=False)[0]
    _name_colours(parent, groups)
    limit = math.log(len(classes))
    for position, (panel, (heading, examples)) in enumerate(
        zip(panels, groups.items(), strict=True)
    ):
        panel.suptitle(heading, size=11, color=INK, x=0.02, ha="left")
        rows = panel.subplots(3, len(examples), squeeze=False, height_ratios=(1.0, 0.8, 0.36))
        for column, example in enumerate(examples):
            is_first = position == 0 and column == 0
            _draw_image(rows[0][column], example)
            _draw_probs(rows[1][column], example, classes, is_first=is_first)
            _draw_parts(rows[2][column], example, limit, is_first=is_first)


def _name_colours(parent: Figure | SubFigure, groups: Mapping[str, Sequence[Example]]) -> None:
    from matplotlib.patches import Patch

    has_plain = any(each.plain_probs is not None for group in groups.values() for each in group)
    words = {"plain": "#dde0e5"} if has_plain else {}
    words |= {"Bayesian": BAYESIAN, "noise (aleatoric)": ALEATORIC}
    words["ignorance (epistemic)"] = EPISTEMIC
    parent.legend(
        handles=[Patch(color=colour, label=word) for word, colour in words.items()],
        loc="outside lower right",
        ncols=len(words),
        frameon=False,
        fontsize=9,
        handlelength=1.0,
        handleheight=1.0,
        columnspacing=1.4,
        handletextpad=0.5,
    )


def _draw_image(axes: Axes, example: Example) -> None:
    axes.imshow(example.image.detach().cpu().numpy(), cmap="gray_r", interpolation="nearest")
    axes.set(xticks=[], yticks=[])
    axes.set_title(example.title, size=9, color=FAINT, pad=3)
    _frame(axes)


def _draw_probs(axes: Axes, example: Example, classes: Sequence[str], *, is_first: bool) -> None:
    positions = range(len(classes))
    if example.plain_probs is not None:
        axes.bar(positions, example.plain_probs.flatten().tolist(), width=0.95, color="#dde0e5")
    probs = example.prediction.probs[0].tolist()
    axes.bar(positions, probs, width=0.5, color=BAYESIAN)
    axes.set(ylim=(0, 1.03), yticks=[], xlim=(-0.7, len(classes) - 0.3))
    axes.set_xticks(list(positions), list(classes), fontsize=7, color=FAINT)
    axes.tick_params(length=0, pad=1)
    if is_first:
        axes.set_ylabel("probability", size=8, color=FAINT)
    _frame(axes, only=("bottom",))


def _draw_parts(axes: Axes, example: Example, limit: float, *, is_first: bool) -> None:
    aleatoric = float(example.prediction.aleatoric[0])
    epistemic = float(example.prediction.epistemic[0])
    axes.barh([0], [limit], height=0.55, color="#f1f2f4")
    axes.barh([0], [aleatoric], height=0.55, color=ALEATORIC)
    axes.barh([0], [epistemic], left=[aleatoric], height=0.55, color=EPISTEMIC)
    axes.set(xlim=(0, limit), ylim=(-0.95, 0.3), xticks=[], yticks=[])
    axes.text(0, -0.92, f"{aleatoric:.2f}", size=7.5, color=_darker(ALEATORIC), ha="left")
    axes.text(limit, -0.92, f"{epistemic:.2f}", size=7.5, color=EPISTEMIC, ha="right")
    if is_first:
        axes.set_ylabel("entropy", size=8, color=FAINT)
    _frame(axes, only=())


def _darker(colour: str) -> str:
    return {ALEATORIC: "#b27f0d"}.get(colour, colour)


def _frame(axes: Axes, only: Sequence[str] | None = None) -> None:
    spines: Any = axes.spines
    for side in ("left", "right", "top", "bottom"):
        spines[side].set_visible(only is None or side in only)
        spines[side].set_color("#c9cdd3")
