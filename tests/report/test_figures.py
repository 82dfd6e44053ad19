"""Figures say what the arrays say, and leave matplotlib's global state alone."""

import io
import math
import subprocess
import sys

import numpy as np
import pytest
import torch

from bayesify.prediction.predictive import ClassificationAccumulator, ClassificationPredictive
from bayesify.report import (
    Example,
    Plane,
    demo_figure,
    examples_figure,
    plane_figure,
    reliability_figure,
)

CLASSES = ["a", "b", "c"]
EXTENT = (-1.0, 2.0, -3.0, 4.0)


def prediction(logits: torch.Tensor) -> ClassificationPredictive:
    accumulator = ClassificationAccumulator()
    accumulator.update(logits)
    return accumulator.result("test samples")


def example(plain: bool = True) -> Example:
    logits = torch.tensor([[[2.0, 0.0, 0.0]], [[0.0, 1.0, 0.0]]])
    probs = torch.tensor([0.7, 0.2, 0.1]) if plain else None
    return Example(torch.rand(8, 8), "a thing", prediction(logits), probs)


def planes() -> list[Plane]:
    grid = torch.linspace(0, 1, 12).view(3, 4)
    return [Plane("first", grid, EXTENT), Plane("second", 1 - grid, EXTENT)]


def points() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.rand(6, 2), torch.tensor([0, 1, 0, 1, 1, 1])


def drawn(figure) -> np.ndarray:
    """Return the pixels of a figure."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())


def heights(axes) -> list[float]:
    return [patch.get_height() for patch in axes.patches]


def test_plane_figure_shows_the_grid_and_every_point():
    first, second = plane_figure(planes(), *points()).axes
    assert np.array_equal(first.images[0].get_array(), planes()[0].probs.numpy())
    assert np.array_equal(second.images[0].get_array(), planes()[1].probs.numpy())
    assert tuple(first.images[0].get_extent()) == EXTENT
    assert [len(dots.get_offsets()) for dots in first.collections] == [2, 4]
    assert first.get_title(loc="left") == "first"


def test_reliability_figure_puts_bins_at_their_confidence_and_accuracy():
    probs = torch.tensor([[0.9, 0.1], [0.9, 0.1], [0.4, 0.6], [0.45, 0.55]])
    targets = torch.tensor([0, 1, 1, 1])
    (axes,) = reliability_figure({"net": (probs, targets)}, num_bins=10).axes
    line = axes.lines[1]
    # 0.6 and 0.55 share the bin (0.5, 0.6] and are right; half of those at 0.9 are.
    np.testing.assert_allclose(line.get_xdata(), [0.575, 0.9], rtol=1e-6)
    np.testing.assert_allclose(line.get_ydata(), [1.0, 0.5])
    assert axes.get_legend().texts[0].get_text().startswith("net (ECE 0.4")


def test_examples_figure_draws_probabilities_and_both_parts_of_the_entropy():
    each = example()
    figure = examples_figure({"group": [each]}, CLASSES)
    image, probs, parts = figure.axes
    assert np.array_equal(image.images[0].get_array(), each.image.numpy())
    np.testing.assert_allclose(heights(probs)[:3], [0.7, 0.2, 0.1], rtol=1e-6)
    np.testing.assert_allclose(heights(probs)[3:], each.prediction.probs[0], rtol=1e-6)
    limit, aleatoric, epistemic = parts.patches
    assert limit.get_width() == pytest.approx(math.log(3))
    assert aleatoric.get_width() == pytest.approx(float(each.prediction.aleatoric[0]))
    assert epistemic.get_width() == pytest.approx(float(each.prediction.epistemic[0]))
    assert epistemic.get_x() == pytest.approx(aleatoric.get_width())


def test_examples_figure_works_without_a_plain_network_and_skips_empty_groups():
    figure = examples_figure({"empty": [], "group": [example(plain=False)]}, CLASSES)
    assert len(figure.axes) == 3
    assert len(heights(figure.axes[1])) == 3
    with pytest.raises(ValueError, match="at least one example"):
        examples_figure({"empty": []}, CLASSES)


def test_prediction_from_one_sample_can_be_drawn():
    each = Example(torch.rand(4, 4), "x", prediction(torch.zeros(1, 1, 3)))
    assert drawn(examples_figure({"group": [each]}, CLASSES)).std() > 0


def test_demo_figure_holds_all_three_pictures_and_is_a_png():
    probs, targets = torch.rand(30, 3).softmax(1), torch.randint(0, 3, (30,))
    groups = {"sure": [example()], "unsure": [example(), example()]}
    predictions = {"plain": (probs, targets), "Bayesian": (probs, targets)}
    figure = demo_figure(planes(), points(), predictions, groups, CLASSES)
    assert len(figure.axes) == 2 + 1 + 3 * 3
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=50)
    assert file.getvalue().startswith(b"\x89PNG")
    pixels = drawn(figure)
    # Every quarter of the page has something on it.
    height, width = (size // 2 for size in pixels.shape[:2])
    for rows in (slice(None, height), slice(height, None)):
        for columns in (slice(None, width), slice(width, None)):
            assert pixels[rows, columns, :3].std() > 5


def test_drawing_never_imports_pyplot():
    code = (
        "import io, sys, torch\n"
        "from bayesify.report import plane_figure, Plane\n"
        "assert 'matplotlib' not in sys.modules\n"
        "plane = Plane('x', torch.rand(3, 3), (0, 1, 0, 1))\n"
        "figure = plane_figure([plane], torch.rand(2, 2), torch.tensor([0, 1]))\n"
        "figure.savefig(io.BytesIO(), format='png')\n"
        "assert 'matplotlib.pyplot' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
