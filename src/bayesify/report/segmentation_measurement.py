"""What was measured in one cell of a study of segmentation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bayesify.report.json_value import JsonValue


@dataclass(frozen=True)
class SegmentationMap:
    """One image of a segmentation study, row by row.

    Attributes:
        image: Which of the test images.
        entropy: Entropy of each pixel, in nats.
        is_wrong: Whether each pixel that has a label was given another.
    """

    image: int
    entropy: tuple[tuple[float, ...], ...]
    is_wrong: tuple[tuple[bool, ...], ...]


@dataclass(frozen=True)
class SegmentationMeasurement:
    """Classes of pixels.

    Attributes:
        scores: Over all pixels of the test set.
        class_iou: Overlap of each class with the truth.
        wrong: How uncertainty tells wrong pixels apart.
        num_random: How many weights are random.
        maps: Some of the test images.
    """

    scores: Mapping[str, float | None]
    class_iou: Mapping[str, float | None]
    wrong: Mapping[str, float | None]
    num_random: float
    maps: tuple[SegmentationMap, ...]


def segmentation_measurement(measured: JsonValue) -> SegmentationMeasurement:
    """Return what was measured of a network that gives every pixel a class, checked."""
    return SegmentationMeasurement(
        scores=measured.field("scores").numbers_by_key(),
        class_iou=measured.field("class_iou").numbers_by_key(),
        wrong=measured.field("wrong").numbers_by_key(),
        num_random=measured.field("weights").field("random").number(),
        maps=tuple(map(_segmentation_map, measured.field("maps").items())),
    )


def _segmentation_map(value: JsonValue) -> SegmentationMap:
    entropy, targets, classes = (
        [row.numbers() for row in value.field(key).items()]
        for key in ("entropy", "targets", "classes")
    )
    is_wrong = tuple(
        tuple(true >= 0 and true != found for true, found in zip(*rows, strict=True))
        for rows in zip(targets, classes, strict=True)
    )
    return SegmentationMap(value.field("image").whole(), tuple(entropy), is_wrong)
