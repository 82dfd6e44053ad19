"""Maps of a study of segmentation: where each network is wrong, and where it is unsure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from bayesify.report.illustration import Illustration, illustration
from bayesify.report.panels import FAINT, INK, plain
from bayesify.report.results import CellGroup
from bayesify.report.segmentation_measurement import SegmentationMap
from bayesify.report.segmentation_tables import runs_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_PANEL_INCHES = 2.2


def segmentation_illustrations(groups: Sequence[CellGroup], under: str) -> list[Illustration]:
    """Return a figure for each image that was kept, its networks beside one another."""
    found: dict[int, dict[str, SegmentationMap]] = {}
    for group in groups:
        # One seed stands for all: maps have no mean that could be seen.
        for each in (map_ for run in runs_of(group)[:1] for map_ in run.maps):
            found.setdefault(each.image, {})[group.short_name] = each
    return [
        illustration(
            entropy_figure(maps),
            f"Test image {image}{under}. Above: pixels given a wrong class; below: entropy, from 0 "
            "(dark) to the largest in the row.",
            f"{'; '.join(f'{name}: {_words(each)}' for name, each in maps.items())}.",
        )
        for image, maps in found.items()
    ]


def entropy_figure(maps: Mapping[str, SegmentationMap]) -> Figure:
    """Draw the wrong pixels of one image and the entropy of all, a column for each network.

    Args:
        maps: The same image as each network sees it, by the network's name.
    """
    from matplotlib.figure import Figure

    largest = max(max(map(max, each.entropy)) for each in maps.values())
    first = next(iter(maps.values())).entropy
    height = _PANEL_INCHES * len(first) / len(first[0])
    size = (_PANEL_INCHES * len(maps) + 0.7, 2 * height + 0.5)
    figure = Figure(figsize=size, layout="constrained", facecolor="white")
    rows = figure.subplots(2, len(maps), squeeze=False)
    drawn = None
    for (name, each), wrong, unsure in zip(maps.items(), *rows, strict=True):
        wrong.imshow(each.is_wrong, cmap="gray_r", vmin=0, vmax=1, interpolation="nearest")
        drawn = unsure.imshow(
            each.entropy, cmap="inferno", vmin=0, vmax=largest or 1.0, interpolation="nearest"
        )
        wrong.set_title(plain(name), size=10, color=INK, loc="left")
        for axes in (wrong, unsure):
            axes.set(xticks=[], yticks=[])
    assert drawn is not None
    bar = figure.colorbar(drawn, ax=rows[1].tolist(), shrink=0.85)
    bar.set_label("nats", size=9, color=FAINT)
    bar.ax.tick_params(labelsize=8, colors=FAINT, length=0)
    return figure


def _words(each: SegmentationMap) -> str:
    wrong = [value for row in each.is_wrong for value in row]
    entropy = [value for row in each.entropy for value in row]
    share, mean = sum(wrong) / len(wrong), sum(entropy) / len(entropy)
    return f"{100 * share:.1f} % wrong, {mean:.3f} nats on average"
