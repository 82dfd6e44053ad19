"""What was measured in one cell of a study, by the kind of the study."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bayesify.report.json_value import JsonValue, scalars
from bayesify.report.noise_measurement import NoiseMeasurement, noise_measurement
from bayesify.report.segmentation_measurement import (
    SegmentationMeasurement,
    segmentation_measurement,
)

Scores = Mapping[str, float | None]
"""Accuracy, nll, ece and the like by name; None where one could not be measured."""


@dataclass(frozen=True)
class Pruning:
    """A network after weights were taken out of it.

    Attributes:
        by: The score by which weights were chosen.
        threshold: The score up to which they went, or None.
        keep: The fraction of weights that was to stay, or None.
        removed: Fraction of all weights that went.
        sparsity: Fraction that went of each site, by its path.
        principled: Scores after pruning by `by`.
        random: Scores after removing as many weights at random, or None.
        shrunk: Scores of the network that is really smaller, or None.
        shape_after: Widths of the network that is left, or None.
        file_ratio: Size of its file as a fraction of the one before, or None.
        loads_identical: Whether it predicts the same on a batch after loading, or None.
    """

    by: str
    threshold: float | None
    keep: float | None
    removed: float
    sparsity: Scores
    principled: Scores
    random: Scores | None
    shrunk: Scores | None
    shape_after: str | None
    file_ratio: float | None
    loads_identical: bool | None


@dataclass(frozen=True)
class ErrorBySamples:
    """The test error, a fraction, against the number of weight samples, over repeats."""

    num_samples: tuple[float, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]


@dataclass(frozen=True)
class ReliabilityBins:
    """How often predictions are right against how sure they are; None in an empty bin."""

    confidence: tuple[float | None, ...]
    accuracy: tuple[float | None, ...]
    count: tuple[float, ...]
    ece: float | None


@dataclass(frozen=True)
class PruningMeasurement:
    """A classifier before and after pruning; `plain` is the network that it was warmed up from."""

    not_pruned: Scores
    plain: Scores | None
    prunings: tuple[Pruning, ...]
    error_by_samples: ErrorBySamples | None
    reliability: ReliabilityBins | None


@dataclass(frozen=True)
class Bands:
    """A prediction along a line: its mean, its total and its epistemic std, and the truth."""

    x: tuple[float, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    epistemic_std: tuple[float, ...]
    truth: tuple[float, ...]


@dataclass(frozen=True)
class RegressionMeasurement:
    """A regression: its bands, what it was trained on, and how often the truth lies inside."""

    bands: Bands
    train_x: tuple[float, ...]
    train_y: tuple[float, ...]
    coverage: Scores
    rmse: float | None
    nll: float | None


@dataclass(frozen=True)
class ConfidenceMeasurement:
    """A classifier and the predictions that enough of its samples agree on.

    Attributes:
        scores: Accuracy, nll and the like on the whole test set.
        levels: Shares of the samples that must agree, ascending.
        accuracy: Accuracy where they do, at each level; None where they never do.
        size: Fraction of the test set on which they do, at each level.
        kl: KL in nats at the end of training, or None.
        mean_std: Mean standard deviation of a weight, or None.
    """

    scores: Scores
    levels: tuple[float, ...]
    accuracy: tuple[float | None, ...]
    size: tuple[float | None, ...]
    kl: float | None
    mean_std: float | None


@dataclass(frozen=True)
class UncertaintyMeasurement:
    """A classifier on its own data, on spoiled ones and on strangers, and what it costs.

    Attributes:
        scores: Accuracy, nll and the like on the whole test set.
        num_samples: Draws that a prediction was averaged over.
        ood: Measures of how well strangers are told apart, by their set, then by the score.
        corrupted: Scores on spoiled images, by what was done to them, then by severity.
        pruned: Scores after pruning, by the share of the weights that was kept.
        mean_std: Mean standard deviation of a weight, or None.
        num_weights: How many weights there are: all, live and random.
        file_ratios: Size of the file by number format, as a fraction of a dense one's, or None.
        rounded: Scores of the model as it comes back from a file in bfloat16, or None.
        flops: Multiplications and additions of inference and training, and of dense ones, or None.
    """

    scores: Scores
    num_samples: int
    ood: Mapping[str, Mapping[str, Scores]]
    corrupted: Mapping[str, Mapping[int, Scores]]
    pruned: Mapping[float, Scores]
    mean_std: float | None
    num_weights: Scores
    file_ratios: Scores | None
    rounded: Scores | None
    flops: Scores | None


@dataclass(frozen=True)
class SpeedRow:
    """The time of one layer in one mode, beside the paper's where it has one.

    Attributes:
        table: The table of the paper it belongs to, or what was timed where there is none.
        layer: The kind of layer.
        how: How it was sampled; empty where there is nothing to sample.
        mode: Such as eager or compiled.
        timed: What a time is that of, such as training or an epoch; may be empty.
        optimizer: The optimiser, or empty where none took part.
        median_us: Median time in microseconds.
        ratio: Time over that of the plain layer.
        paper_us: The paper's time.
        paper_ratio: The paper's ratio.
    """

    table: str
    layer: str
    how: str
    mode: str
    timed: str
    optimizer: str
    median_us: float | None
    ratio: float | None
    paper_us: float | None
    paper_ratio: float | None


@dataclass(frozen=True)
class SpeedMeasurement:
    """Times of layers."""

    rows: tuple[SpeedRow, ...]


@dataclass(frozen=True)
class OtherMeasurement:
    """Whatever a kind without a reader of its own holds: its scalars, by where they stand."""

    scalars: Mapping[str, Any]


Measurement = (
    PruningMeasurement
    | RegressionMeasurement
    | ConfidenceMeasurement
    | UncertaintyMeasurement
    | SpeedMeasurement
    | SegmentationMeasurement
    | NoiseMeasurement
    | OtherMeasurement
)


def read_measurement(kind: str, measured: JsonValue) -> Measurement:
    """Return what was measured, checked; a kind that is not known is read as scalars."""
    if kind == "pruning":
        return _pruning_measurement(measured)
    if kind == "regression":
        return _regression_measurement(measured)
    if kind == "confidence":
        return _confidence_measurement(measured)
    if kind == "uncertainty":
        return _uncertainty_measurement(measured)
    if kind == "segmentation":
        return segmentation_measurement(measured)
    if kind == "noise":
        return noise_measurement(measured)
    if kind == "speed":
        return SpeedMeasurement(tuple(map(_speed_row, measured.field("rows").items())))
    measured.fields()
    return OtherMeasurement(scalars(measured.value))


def _pruning_measurement(measured: JsonValue) -> PruningMeasurement:
    error = measured.optional("error_by_samples")
    reliability = measured.optional("reliability")
    return PruningMeasurement(
        not_pruned=measured.field("not_pruned").numbers_by_key(),
        plain=_optional_scores(measured, "plain"),
        prunings=tuple(map(_pruning, measured.field("prunings").items())),
        error_by_samples=None if error is None else _error_by_samples(error),
        reliability=None if reliability is None else _reliability(reliability),
    )


def _pruning(value: JsonValue) -> Pruning:
    shape_after = value.optional("shape_after")
    loads_identical = value.optional("loads_identical")
    return Pruning(
        by=value.field("by").text(),
        threshold=_optional_number(value, "threshold"),
        keep=_optional_number(value, "keep"),
        removed=value.field("removed").number(),
        sparsity=value.field("sparsity").numbers_by_key(),
        principled=value.field("principled").numbers_by_key(),
        random=_optional_scores(value, "random"),
        shrunk=_optional_scores(value, "scores_after_shrinking"),
        shape_after=None if shape_after is None else shape_after.text(),
        file_ratio=_optional_number(value, "file_ratio"),
        loads_identical=None if loads_identical is None else loads_identical.flag(),
    )


def _error_by_samples(value: JsonValue) -> ErrorBySamples:
    num_samples, mean, std = _columns(value, ("num_samples", "mean", "std"))
    return ErrorBySamples(num_samples, mean, std)


def _reliability(value: JsonValue) -> ReliabilityBins:
    count = value.field("count").numbers()
    confidence = value.field("confidence").numbers_or_none()
    accuracy = value.field("accuracy").numbers_or_none()
    if not len(count) == len(confidence) == len(accuracy):
        raise value.problem("lists of one length: confidence, accuracy and count")
    for index, (size, sure, right) in enumerate(zip(count, confidence, accuracy, strict=True)):
        if size > 0 and (sure is None or right is None):
            raise value.problem(f"given in every bin that is not empty; bin {index} is")
    return ReliabilityBins(confidence, accuracy, count, _optional_number(value, "ece"))


def _regression_measurement(measured: JsonValue) -> RegressionMeasurement:
    names = ("x", "mean", "std", "epistemic_std", "truth")
    x, mean, std, epistemic_std, truth = _columns(measured.field("bands"), names)
    train_x, train_y = _columns(measured.field("train"), ("x", "y"))
    return RegressionMeasurement(
        bands=Bands(x, mean, std, epistemic_std, truth),
        train_x=train_x,
        train_y=train_y,
        coverage=measured.field("coverage").numbers_by_key(),
        rmse=measured.field("rmse").number_or_none(),
        nll=measured.field("nll").number_or_none(),
    )


def _confidence_measurement(measured: JsonValue) -> ConfidenceMeasurement:
    sets = measured.field("sets")
    levels = sets.field("level").numbers()
    accuracy = sets.field("accuracy").numbers_or_none()
    size = sets.field("size").numbers_or_none()
    if not len(levels) == len(accuracy) == len(size):
        raise sets.problem("lists of one length: level, accuracy and size")
    in_order = sorted(zip(levels, accuracy, size, strict=True), key=lambda entry: entry[0])
    return ConfidenceMeasurement(
        scores=measured.field("scores").numbers_by_key(),
        levels=tuple(level for level, _, _ in in_order),
        accuracy=tuple(right for _, right, _ in in_order),
        size=tuple(share for _, _, share in in_order),
        kl=_optional_number(measured, "kl"),
        mean_std=_optional_number(measured, "mean_std"),
    )


def _uncertainty_measurement(measured: JsonValue) -> UncertaintyMeasurement:
    files = measured.optional("files")
    pruned = measured.optional("pruned")
    return UncertaintyMeasurement(
        scores=measured.field("scores").numbers_by_key(),
        num_samples=measured.field("num_samples").whole(),
        ood={
            name: {score: each.numbers_by_key() for score, each in found.fields().items()}
            for name, found in _optional_fields(measured, "ood").items()
        },
        corrupted={
            name: {each.field("severity").whole(): each.numbers_by_key() for each in found.items()}
            for name, found in _optional_fields(measured, "corrupted").items()
        },
        pruned={
            each.field("keep").number(): each.field("scores").numbers_by_key()
            for each in (() if pruned is None else pruned.items())
        },
        mean_std=_optional_number(measured, "mean_std"),
        num_weights=measured.field("weights").numbers_by_key(),
        file_ratios=None if files is None else _file_ratios(files),
        rounded=None if files is None else files.field("bfloat16_scores").numbers_by_key(),
        flops=_optional_scores(measured, "flops"),
    )


def _file_ratios(files: JsonValue) -> Scores:
    return {name: files.field(f"{name}_ratio").number() for name in ("float32", "bfloat16")}


def _speed_row(value: JsonValue) -> SpeedRow:
    how, timed, optimizer = (value.optional(key) for key in ("how", "pass", "optimizer"))
    return SpeedRow(
        table=value.field("table").text(),
        layer=value.field("layer").text(),
        how="" if how is None else how.text(),
        mode=value.field("mode").text(),
        timed="" if timed is None else timed.text(),
        optimizer="" if optimizer is None else optimizer.text(),
        median_us=value.field("median_us").number_or_none(),
        ratio=_optional_number(value, "ratio"),
        paper_us=_optional_number(value, "paper_us"),
        paper_ratio=_optional_number(value, "paper_ratio"),
    )


def _columns(value: JsonValue, names: tuple[str, ...]) -> list[tuple[float, ...]]:
    columns = [value.field(name).numbers() for name in names]
    if len({len(column) for column in columns}) > 1:
        raise value.problem(f"lists of one length: {', '.join(names)}")
    return columns


def _optional_number(value: JsonValue, key: str) -> float | None:
    found = value.optional(key)
    return None if found is None else found.number()


def _optional_fields(value: JsonValue, key: str) -> Mapping[str, JsonValue]:
    found = value.optional(key)
    return {} if found is None else found.fields()


def _optional_scores(value: JsonValue, key: str) -> Scores | None:
    found = value.optional(key)
    return None if found is None else found.numbers_by_key()
