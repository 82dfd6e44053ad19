"""The KL of a Normal from the log-uniform prior as a logarithm and a polynomial.

With y = mean² / (2 std²) the KL is ∫₀ʸ D(√v)/√v dv, D the Dawson function. On s = y / (12 + y),
which takes [0, ∞] to [0, 1], it is −½ log(1 − s) + s E(s) with a smooth E, and twice its
derivative in log y is s (1 + 2 (1 − s)(E + s E′)).
"""

from __future__ import annotations

from torch import Tensor

# s = square / (square + SCALE), where square = mean² / std² = 2 y.
SCALE = 24.0
# E in powers of 2s − 1, lowest first: about the polynomial of its degree with the least largest
# error of KL and slope, which is 1.7e-7 at whatever ratio of mean and std. float32 adds as much.
_COEFFICIENTS = (
    3.710514347,
    -2.613451491,
    1.997227801,
    -1.517025876,
    1.072628081,
    -0.622305972,
    0.189106120,
    0.114208291,
    -0.163925426,
    0.018143322,
    0.081359025,
    -0.029852740,
    -0.031180942,
    0.016341921,
    0.006379508,
    -0.003957523,
)


def smooth_part(share: Tensor) -> Tensor:
    """Return E(s)."""
    centred = share.mul(2.0).sub_(1.0)
    value = centred.mul(_COEFFICIENTS[-1]).add_(_COEFFICIENTS[-2])
    for coefficient in _COEFFICIENTS[-3::-1]:
        # A number as a tensor: multiplied and added in one pass over memory.
        value = value.new_full((), coefficient).addcmul(value, centred)
    return value


def smooth_part_and_steepness(share: Tensor) -> tuple[Tensor, Tensor]:
    """Return E(s) and 1 + 2 (1 − s)(E + s E′), which is the slope over s."""
    centred = share.mul(2.0).sub_(1.0)
    value = centred.mul(_COEFFICIENTS[-1]).add_(_COEFFICIENTS[-2])
    halved = centred.new_full((), _COEFFICIENTS[-1]).expand_as(centred)  # E′ / 2
    for coefficient in _COEFFICIENTS[-3::-1]:
        halved = value.addcmul(halved, centred)
        value = value.new_full((), coefficient).addcmul(value, centred)
    steepness = value.addcmul(share, halved, value=2.0)
    steepness = steepness.addcmul_(share, steepness, value=-1.0)
    return value, steepness.mul_(2.0).add_(1.0)
