"""What was measured in one cell of a study of noise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bayesify.report.json_value import JsonValue

Scores = Mapping[str, float | None]


@dataclass(frozen=True)
class NoiseMeasurement:
    """A classifier under noise.

    Attributes:
        scores: On the test set as it is.
        noisy: Scores, and the variance of the predicted class, by signal-to-noise ratio.
        pruned: Scores by the share of the weights that was kept.
        explained: Infidelity and sensitivity of explanations; empty where none were made.
    """

    scores: Scores
    noisy: Mapping[float, Scores]
    pruned: Mapping[float, Scores]
    explained: Scores


def noise_measurement(measured: JsonValue) -> NoiseMeasurement:
    """Return what was measured of a classifier under noise, checked."""
    explained = measured.optional("explained")
    return NoiseMeasurement(
        scores=measured.field("scores").numbers_by_key(),
        noisy=_by(measured.field("noisy"), "decibels"),
        pruned=_by(measured.field("pruned"), "keep"),
        explained={} if explained is None else explained.numbers_by_key(),
    )


def _by(rows: JsonValue, key: str) -> dict[float, Scores]:
    return {row.field(key).number(): row.numbers_by_key() for row in rows.items()}
