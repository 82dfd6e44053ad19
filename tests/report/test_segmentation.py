"""The picture of a segmented image shows the arrays it was given."""

import io
import math
import subprocess
import sys

import numpy as np
import pytest
import torch

from bayesify.prediction.predictive import ClassificationAccumulator, ClassificationPredictive
from bayesify.report import Scene, segmentation_figure
from bayesify.report.segmentation import class_colours

CLASSES = ["sky", "road", "_car", "$tree"]
SIZE = (36, 48)


def prediction(num_samples: int = 3) -> ClassificationPredictive:
    accumulator = ClassificationAccumulator()
    accumulator.update(2 * torch.randn(num_samples, 1, len(CLASSES), *SIZE))
    return accumulator.result("samples")


def scene(**changes) -> Scene:
    targets = torch.randint(len(CLASSES), SIZE)
    targets[:4] = -100
    given = {
        "image": torch.randint(256, (3, *SIZE), dtype=torch.uint8),
        "targets": targets,
        "prediction": prediction(),
        "title": "a street",
    }
    return Scene(**{**given, **changes})


def panels(figure):
    return [axes for axes in figure.axes if axes.images]


def test_figure_shows_image_labels_prediction_and_entropy():
    each = scene()
    figure = segmentation_figure([each], CLASSES)
    image, labels, classes, entropy = panels(figure)
    shown = [axes.get_title(loc="left") for axes in (image, labels, classes, entropy)]
    assert shown == ["image", "labels", "prediction", "entropy"]
    pixels = each.image.permute(1, 2, 0).numpy() / 255
    np.testing.assert_allclose(image.images[0].get_array(), pixels, rtol=1e-6)
    colours = torch.tensor([*class_colours(len(CLASSES)), (1.0, 1.0, 1.0)])
    expected = colours[torch.where(each.targets < 0, len(CLASSES), each.targets)]
    np.testing.assert_allclose(labels.images[0].get_array(), expected)
    np.testing.assert_allclose(
        classes.images[0].get_array(), colours[each.prediction.classes[0]], rtol=1e-6
    )
    below, above = entropy.images
    np.testing.assert_allclose(below.get_array(), pixels.mean(2), rtol=1e-5)
    np.testing.assert_allclose(above.get_array(), each.prediction.entropy[0])
    assert above.get_clim() == pytest.approx((0.0, math.log(len(CLASSES))))
    assert 0 < above.get_alpha() < 1
    assert image.get_ylabel() == "a street"


def test_figure_names_every_class_and_what_is_not_labelled():
    figure = segmentation_figure([scene(), scene(title="")], CLASSES)
    assert len(panels(figure)) == 8
    names = [text.get_text().strip() for text in figure.legends[0].get_texts()]
    assert names == ["sky", "road", "_car", r"\$tree", "not labelled"]
    all_labelled = scene(targets=torch.zeros(SIZE).long())
    names = segmentation_figure([all_labelled], CLASSES).legends[0].get_texts()
    assert len(names) == len(CLASSES)


@pytest.mark.parametrize(
    "image", [torch.rand(1, *SIZE), torch.full((3, *SIZE), 1.5), torch.rand(3, *SIZE).bfloat16()]
)
def test_figure_takes_grey_bright_and_low_precision_images(image):
    first = panels(segmentation_figure([scene(image=image)], CLASSES))[0]
    shown = first.images[0].get_array()
    assert shown.shape == (*SIZE, 3)
    assert 0.0 <= shown.min() <= shown.max() <= 1.0


def test_figure_of_one_sample_is_a_png():
    file = io.BytesIO()
    segmentation_figure([scene(prediction=prediction(1))], CLASSES).savefig(file, dpi=40)
    assert file.getvalue().startswith(b"\x89PNG")


@pytest.mark.parametrize("num_classes", [2, 11, 20, 34])
def test_class_colours_are_all_different(num_classes):
    assert len(set(class_colours(num_classes))) == num_classes


def test_mistakes_are_named():
    with pytest.raises(ValueError, match="scenes must hold at least one image"):
        segmentation_figure([], CLASSES)
    with pytest.raises(ValueError, match=r"classes must hold 4 names, .* got 2"):
        segmentation_figure([scene()], ["sky", "road"])
    with pytest.raises(ValueError, match=r"image must fit targets .* \(3, 5, 5\) .* \(36, 48\)"):
        scene(image=torch.rand(3, 5, 5))
    with pytest.raises(ValueError, match="prediction must fit targets"):
        scene(prediction=ClassificationPredictive.cat([prediction(), prediction()]))


def test_drawing_never_imports_pyplot():
    code = (
        "import sys, torch\n"
        "import bayesify.report.segmentation as segmentation\n"
        "assert 'matplotlib' not in sys.modules\n"
        "segmentation.class_colours(3)\n"
        "assert 'matplotlib.pyplot' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
