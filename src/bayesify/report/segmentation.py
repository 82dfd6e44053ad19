"""Pictures of segmented images: what is there, what a network sees, and where it is unsure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from bayesify.evaluation.scores import IGNORED_TARGET
from bayesify.prediction.predictive import ClassificationPredictive
from bayesify.report.panels import FAINT, INK, legend_below, plain

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TITLES = ("image", "labels", "prediction", "entropy")
_NOT_LABELLED = "#ffffff"
_PANEL_INCHES = 2.9
_MOST_NAMED_COLOURS = 20
_OPACITY = 0.7


@dataclass(frozen=True, eq=False)
class Scene:
    """One image, its labels, and what a network makes of it.

    Attributes:
        image: Pixels, (channels, height, width) with one or three channels: integers from 0 to
            255 or numbers from 0 to 1, not normalised.
        targets: Class of each pixel, (height, width); -100 where there is none.
        prediction: The prediction for this one image.
        title: What stands beside the row; may be empty.
    """

    image: Tensor
    targets: Tensor
    prediction: ClassificationPredictive
    title: str = ""

    def __post_init__(self) -> None:
        size = tuple(self.targets.shape)
        got = {
            "image": (tuple(self.image.shape), [(1, *size), (3, *size)]),
            "prediction": (tuple(self.prediction.classes.shape), [(1, *size)]),
        }
        for name, (shape, fitting) in got.items():
            if shape not in fitting or len(size) != 2:
                raise ValueError(
                    f"{name} must fit targets of shape (height, width): one image, got {name} of "
                    f"shape {shape} for targets of shape {size}"
                )


def segmentation_figure(scenes: Sequence[Scene], classes: Sequence[str]) -> Figure:
    """Draw each image, its labels, the predicted ones, and the entropy over the image.

    The entropy of a pixel's averaged probabilities is drawn from 0 to log C, all it can be.

    Args:
        scenes: One row each.
        classes: Name of each class.
    """
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    _check(scenes, classes)
    height, width = scenes[0].targets.shape
    figure = Figure(
        figsize=(
            _PANEL_INCHES * len(TITLES) + 0.6,
            (_PANEL_INCHES * height / width + 0.1) * len(scenes) + 0.3,
        ),
        layout="constrained",
        facecolor="white",
    )
    colours = class_colours(len(classes))
    rows = figure.subplots(len(scenes), len(TITLES), squeeze=False)
    drawn = [_draw_scene(row, scene, colours) for row, scene in zip(rows, scenes, strict=True)]
    for axes, title in zip(rows[0], TITLES, strict=True):
        axes.set_title(title, size=11, color=INK, loc="left")
    bar = figure.colorbar(drawn[0], ax=rows[:, -1].tolist(), shrink=0.85)
    bar.set_label("nats", size=9, color=FAINT)
    bar.ax.tick_params(labelsize=8, colors=FAINT, length=0)
    names = {
        plain(name): Patch(facecolor=colour) for name, colour in zip(classes, colours, strict=True)
    }
    if any((scene.targets == IGNORED_TARGET).any() for scene in scenes):
        names["not labelled"] = Patch(facecolor=_NOT_LABELLED, edgecolor="#c9cdd3")
    legend_below(figure, names)
    return figure


def class_colours(num_classes: int) -> list[tuple[float, float, float]]:
    """Return a colour for each class, all different."""
    from matplotlib import colormaps

    if num_classes <= _MOST_NAMED_COLOURS:
        # Strong colours first: the map lists each of ten followed by a pale one.
        order = [*range(0, _MOST_NAMED_COLOURS, 2), *range(1, _MOST_NAMED_COLOURS, 2)]
        chosen: list[Any] = [colormaps["tab20"](index) for index in order[:num_classes]]
    else:
        positions = [index / (num_classes - 1) for index in range(num_classes)]
        chosen = [colormaps["turbo"](position) for position in positions]
    return [(red, green, blue) for red, green, blue, _ in chosen]


def _check(scenes: Sequence[Scene], classes: Sequence[str]) -> None:
    if not scenes:
        raise ValueError("scenes must hold at least one image to draw, got none")
    for scene in scenes:
        if scene.prediction.probs.shape[1] != len(classes):
            raise ValueError(
                f"classes must hold {scene.prediction.probs.shape[1]} names, one per class of the "
                f"prediction, got {len(classes)}"
            )


def _draw_scene(row: Sequence[Axes], scene: Scene, colours: Sequence[Any]) -> Any:
    """Draw the four pictures and return the entropy's, which a colour bar explains."""
    image = _pixels(scene.image)
    entropy = scene.prediction.entropy[0].detach().cpu()
    row[0].imshow(image, interpolation="nearest")
    row[1].imshow(_painted(scene.targets, colours), interpolation="nearest")
    row[2].imshow(_painted(scene.prediction.classes[0], colours), interpolation="nearest")
    row[3].imshow(image.mean(2), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
    drawn = row[3].imshow(
        entropy.numpy(),
        cmap="inferno",
        vmin=0,
        vmax=math.log(len(colours)),
        alpha=_OPACITY,
        interpolation="nearest",
    )
    row[0].set_ylabel(plain(scene.title), size=10, color=FAINT)
    for axes in row:
        axes.set(xticks=[], yticks=[])
        spines: Any = axes.spines
        for side in ("left", "right", "top", "bottom"):
            spines[side].set_color("#c9cdd3")
    return drawn


def _pixels(image: Tensor) -> np.ndarray[Any, Any]:
    """Return red, green and blue from 0 to 1, (height, width, 3)."""
    image = image.detach().cpu()
    scaled = image.float() if image.is_floating_point() else image / 255
    return scaled.clamp(0.0, 1.0).expand(3, -1, -1).permute(1, 2, 0).numpy()


def _painted(labels: Tensor, colours: Sequence[Any]) -> np.ndarray[Any, Any]:
    """Return the colour of each pixel's class, white where it has none."""
    from matplotlib.colors import to_rgb

    table = torch.tensor([*colours, to_rgb(_NOT_LABELLED)])
    labels = labels.detach().cpu()
    return table[torch.where(labels == IGNORED_TARGET, len(colours), labels)].numpy()
