"""Whether a file computes what torch does, asked before the file is put in place."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

Run = Callable[[Sequence[Tensor]], dict[str, Tensor]]

TOLERANCE = 1e-4
"""Largest difference from torch, as a share of the largest entry of an output."""

QUANTISED_TOLERANCE = 0.1
"""The same for a file with weights of eight bits."""

# Of these a scale of 1 is meant: differences of entropies can be as small as rounding.
_OF_UNIT_SCALE = ("probs", "entropy", "expected_entropy", "mutual_information")
# Draws that the averages of a file of samples are compared over, and how many standard errors
# they may differ by: once in ten million exports by chance.
_FEWEST_DRAWS = 64
_MOST_ERRORS = 6.0


class ExportError(RuntimeError):
    """A model could not be exported, or its file computes something else; no file was written."""


def batches(inputs: Sequence[Tensor], has_batch_axis: Sequence[bool]) -> Iterator[list[Tensor]]:
    """Yield the inputs as they are, their first row alone, and one row more than they have."""
    sizes = [tensor.shape[0] for tensor, has in zip(inputs, has_batch_axis, strict=True) if has]
    for size in dict.fromkeys((sizes[0], 1, sizes[0] + 1)):
        yield rows(inputs, has_batch_axis, size)


def rows(inputs: Sequence[Tensor], has_batch_axis: Sequence[bool], size: int) -> list[Tensor]:
    """Return so many rows of the inputs, beginning again at the first where they end."""
    return [
        tensor[torch.arange(size) % tensor.shape[0]] if has_axis else tensor
        for tensor, has_axis in zip(inputs, has_batch_axis, strict=True)
    ]


def check_agreement(
    of_file: Run,
    of_torch: Run,
    inputs: Sequence[Tensor],
    num_draws: int,
    *,
    is_quantised: bool = False,
) -> None:
    """Raise an ExportError unless a file and torch agree on these inputs.

    Args:
        of_file: Runs the file.
        of_torch: Runs the module that the file was made from.
        inputs: The inputs.
        num_draws: Draws that one call averages; 0 where nothing is drawn.
        is_quantised: Whether weights were rounded, so that outputs differ by more than rounding.
    """
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        first = of_torch(inputs)
        is_random = num_draws > 0 and any(
            not torch.equal(value, first[name]) for name, value in of_torch(inputs).items()
        )
        if is_random:
            _check_draws(of_file, of_torch, inputs, num_draws)
        else:
            tolerance = QUANTISED_TOLERANCE if is_quantised else TOLERANCE
            _check_values(of_file(inputs), first, tolerance)


def _check_values(found: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float) -> None:
    _check_form(found, expected)
    for name, reference in expected.items():
        if not reference.numel():
            continue
        scale = float(reference.abs().max())
        if name in _OF_UNIT_SCALE:
            scale = max(scale, 1.0)
        difference = float((found[name] - reference).abs().max())
        share = difference / scale if scale else difference
        if not share <= tolerance:
            raise ExportError(
                f"the file's {name} differs from torch's by {difference:.2g}, {share:.2g} of its "
                f"scale (at most {tolerance:g} is allowed); no file was written"
            )


def _check_draws(of_file: Run, of_torch: Run, inputs: Sequence[Tensor], num_samples: int) -> None:
    """Compare averages, which may differ by chance: the spread of the draws says how much."""
    num_calls = max(2, math.ceil(_FEWEST_DRAWS / num_samples))
    calls = [[run(inputs) for _ in range(num_calls)] for run in (of_file, of_torch)]
    _check_form(calls[0][0], calls[1][0])
    name = "probs" if "probs" in calls[0][0] else "mean"
    means, errors = zip(*(_average(each, name, num_samples) for each in calls), strict=True)
    difference = float((means[0] - means[1]).square().mean().sqrt())
    chance = float((errors[0] + errors[1]).mean().sqrt())
    scale = float(means[1].abs().max())
    if not difference <= _MOST_ERRORS * chance + TOLERANCE * scale:
        raise ExportError(
            f"the file's average {name} differs from torch's by {difference:.2g}, with "
            f"{chance:.2g} to be expected by chance; no file was written"
        )
    if torch.equal(calls[0][0][name], calls[0][1][name]):
        raise ExportError(
            "the file draws the same at every call (ONNX Runtime leaves out what it takes for "
            "training, such as dropout); no file was written: export to a .pt2 file"
        )


def _average(
    calls: Sequence[dict[str, Tensor]], name: str, num_samples: int
) -> tuple[Tensor, Tensor]:
    """Return the mean over all draws, and the square of its standard error."""
    spread = "probs_variance" if name == "probs" else "variance"
    mean = torch.stack([call[name] for call in calls]).mean(0)
    variance = torch.stack([call[spread] for call in calls]).mean(0)
    return mean, variance / (len(calls) * num_samples)


def _check_form(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    for name, reference in expected.items():
        if found[name].shape != reference.shape:
            raise ExportError(
                f"the file's {name} has shape {tuple(found[name].shape)}, torch's "
                f"{tuple(reference.shape)}; no file was written"
            )
        if not bool(found[name].isfinite().all()) and bool(reference.isfinite().all()):
            raise ExportError(
                f"the file's {name} is not finite where torch's is; no file was written"
            )
