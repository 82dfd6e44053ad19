"""Segmentation of a study: every number is that of a prediction made by hand, ready for JSON."""

import json
from dataclasses import replace

import pytest
import torch
from torch import nn

import bayesify as bf
from bayesify.data import TensorData, loader
from bayesify.evaluation.segmentation import class_iou
from bayesify.recipes.measure_segmentation import measure_segmentation
from bayesify.recipes.recipe import make_recipe
from bayesify.recipes.run import Parts, build

TABLES = {
    "model": {"name": "unet", "width": 4, "depth": 2},
    "data": {"name": "digit_pixels", "batch_size": 180, "validation": 0},
    "method": {"name": "partial_bayes", "fraction": 0.3, "score": "magnitude"},
    "fit": {"epochs": 3, "learning_rate": 0.01, "progress": False, "accelerator": "cpu"},
    "seed": 3,
}


@pytest.fixture(scope="module")
def parts() -> Parts:
    made = build(make_recipe(TABLES))
    bf.fit(made.model, made.train, **vars(made.recipe.settings()))
    return made


def test_numbers_are_those_of_a_prediction_made_by_hand(parts: Parts) -> None:
    found = measure_segmentation(parts, {"num_samples": 3, "maps": [7], "map_step": 2})
    test = parts.data.test
    own = bf.predict(parts.model, loader(test, 180), num_samples=3, seed=3)
    counted = test.targets != -100
    is_right = (own.classes == test.targets)[counted]
    scores = found["scores"]
    assert scores["accuracy"] == pytest.approx(float(is_right.float().mean()))
    right = test.targets.clamp_min(0)[:, None]
    nll = -own.probs.gather(1, right)[:, 0].log()[counted].mean()
    assert scores["nll"] == pytest.approx(float(nll), rel=1e-5)
    overlap = class_iou(own.classes, test.targets, 11)
    assert scores["mean_iou"] == pytest.approx(float(overlap.nanmean()))
    assert found["class_iou"]["paper"] == pytest.approx(float(overlap[10]))
    assert list(found["class_iou"]) == [*"0123456789", "paper"]
    assert found["num_samples"] == 3
    assert found["weights"]["random"] == round(0.3 * found["weights"]["all"])
    assert found["wrong"]["share"] == pytest.approx(1 - scores["accuracy"])
    entropy = own.entropy[counted]
    mean = float(entropy[is_right].mean())
    assert found["wrong"]["entropy_where_right"] == pytest.approx(mean, rel=1e-4)
    (drawn,) = found["maps"]
    assert drawn["image"] == 7
    assert drawn["targets"] == test.targets[7, ::2, ::2].tolist()
    torch.testing.assert_close(
        torch.tensor(drawn["entropy"]), own.entropy[7, ::2, ::2], atol=6e-4, rtol=0
    )
    json.dumps(found, allow_nan=False)


class Told(nn.Module):
    """Knows every pixel, and is unsure of those it gets wrong: the brightest row."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return logits for "paper", weak ones in the first row."""
        logits = images.new_zeros(len(images), 11, 8, 8)
        logits[:, 10] = 20.0
        logits[:, 10, 0] = 1.0
        return logits


def test_uncertainty_that_knows_the_wrong_pixels_finds_them_all(parts: Parts) -> None:
    test = parts.data.test
    targets = torch.full_like(test.targets, 10)
    targets[:, 0] = 3
    targets[:, 1] = -100  # these are not asked
    model = bf.convert(Told(), bf.Deterministic())
    data = replace(parts.data, test=TensorData(test.inputs, targets, test.transform))
    found = measure_segmentation(replace(parts, model=model, data=data), {"num_pixels": 5000})
    assert found["wrong"]["auroc_by_entropy"] == 1
    assert found["wrong"]["entropy_where_wrong"] > found["wrong"]["entropy_where_right"]
    assert found["wrong"]["share"] == pytest.approx(1 / 7, abs=5 * (0.123 / 5000) ** 0.5)
    assert found["scores"]["accuracy"] == pytest.approx(6 / 7)
    assert found["mean_std"] is None
    assert found["class_iou"]["5"] is None


def test_a_slip_in_the_options_is_named(parts: Parts) -> None:
    with pytest.raises(TypeError, match="num_sample"):
        measure_segmentation(parts, {"num_sample": 3})
