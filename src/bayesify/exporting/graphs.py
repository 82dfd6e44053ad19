"""What an exported file computes: modules that return plain tensors by name.

- mean: the plain network, at the mean weights.
- moments: one pass of means and variances; classes are averaged over fixed points.
- samples: several networks drawn inside the graph, and what they agree and disagree on.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from bayesify.moments import Moments
from bayesify.prediction.by_moments import NUM_POINTS, logit_points
from bayesify.training.likelihood import Classification, GaussianRegression, Likelihood

Outputs = dict[str, Tensor]

# Logits of one example, times points, that are held at once; beyond it points come in parts.
_MOST_AT_ONCE = 2**18
_POINTS_OF_A_PART = 32


class MeanGraph(nn.Module):
    """Returns "mean", the output of the plain network."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, *inputs: Tensor) -> Outputs:
        """Return the output."""
        return {"mean": self.network(*inputs)}


class MomentsGraph(nn.Module):
    """Returns what a mean and a variance of the outputs say.

    Args:
        network: Returns moments, or a tensor where nothing is random.
        likelihood: What its outputs mean.
        example: A mean output, for its shape.
    """

    def __init__(self, network: nn.Module, likelihood: Likelihood, example: Tensor) -> None:
        super().__init__()
        self.network = network
        if isinstance(likelihood, Classification):
            self.reading: nn.Module = ClassesOfMoments(likelihood.class_axis or 1, example)
        elif isinstance(likelihood, GaussianRegression):
            self.reading = NumbersOfMoments(likelihood)
        else:
            self.reading = MomentsAlone()

    def forward(self, *inputs: Tensor) -> Outputs:
        """Return the outputs."""
        output = self.network(*inputs)
        mean, variance = (
            output.pair() if isinstance(output, Moments) else (output, torch.zeros_like(output))
        )
        return self.reading(mean, variance)


class SamplesGraph(nn.Module):
    """Returns what several draws of the network say together.

    Args:
        network: Returns another draw at every call.
        likelihood: What its outputs mean.
        num_samples: How many draws; the graph holds the network as many times, its weights once.
    """

    def __init__(self, network: nn.Module, likelihood: Likelihood, num_samples: int) -> None:
        super().__init__()
        self.network = network
        self.num_samples = num_samples
        if isinstance(likelihood, Classification):
            self.reading: nn.Module = ClassesOfDraws(likelihood.class_axis or 1)
        elif isinstance(likelihood, GaussianRegression):
            self.reading = NumbersOfDraws(likelihood)
        else:
            self.reading = DrawsAlone()

    def forward(self, *inputs: Tensor) -> Outputs:
        """Return the outputs."""
        draws: list[Any] = [self.network(*inputs) for _ in range(self.num_samples)]
        return self.reading(torch.stack(draws))


class ClassesOfMoments(nn.Module):
    """Class probabilities and their uncertainty from the moments of logits.

    Points lie on the last axis, where sums over classes run along memory. With z less its largest
    class, e = exp(z) and S its sum, the entropy of a point is log S - sum(p z): two terms that are
    both at least 0, and one logarithm for each point in the place of one for each class.

    Args:
        class_axis: Axis of the classes in the logits; they are moved to axis 1.
        example: Logits, for their shape.
    """

    points: Tensor

    def __init__(self, class_axis: int, example: Tensor) -> None:
        super().__init__()
        self.axis = check_classes(example, class_axis)
        points = logit_points(example, class_axis).movedim(0, -1).contiguous()
        self.register_buffer("points", points)
        is_small = NUM_POINTS * example[:1].numel() <= _MOST_AT_ONCE
        self.part = NUM_POINTS if is_small else _POINTS_OF_A_PART

    def forward(self, mean: Tensor, variance: Tensor) -> Outputs:
        """Return the moments of the logits, probabilities, and entropies in nats."""
        std = variance.clamp_min(0.0).sqrt().unsqueeze(-1)
        centre = mean.unsqueeze(-1)
        # Not split where it is one part: a split would be a step of its own.
        is_whole = self.part == NUM_POINTS
        parts = (self.points,) if is_whole else self.points.split(self.part, -1)
        probs, expected = self._averages(centre + std * parts[0])
        for points in parts[1:]:
            more = self._averages(centre + std * points)
            probs, expected = probs + more[0], expected + more[1]
        if not is_whole:
            probs, expected = probs / len(parts), expected / len(parts)
        read = _classes(probs.movedim(self.axis, 1), expected)
        return {"mean": mean, "variance": variance, **read}

    def _averages(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Return the averages over points of the probabilities and of the entropy."""
        below = logits - logits.amax(self.axis, keepdim=True)
        weights = below.exp()
        total = weights.sum(self.axis, keepdim=True)
        probs = weights / total
        entropy = total.log() - (probs * below).sum(self.axis, keepdim=True)
        # Counted from the front: ONNX Runtime gives an empty batch a wrong shape else.
        last = logits.ndim - 1
        return probs.mean(last), entropy.mean((self.axis, last))


class NumbersOfMoments(nn.Module):
    """A prediction, its epistemic variance and the variance of the noise, from moments."""

    def __init__(self, likelihood: GaussianRegression) -> None:
        super().__init__()
        self.likelihood = likelihood

    def forward(self, mean: Tensor, variance: Tensor) -> Outputs:
        """Return the mean, the variance and the noise, each of the shape of the prediction."""
        value, noise = self.likelihood.split(mean)
        # The noise, where a network gives it, is read at its mean.
        spread = variance[..., : value.shape[-1]] if value.ndim else variance
        return {"mean": value, "variance": spread, "noise_variance": _spread(noise, value)}


class MomentsAlone(nn.Module):
    """The mean and the variance of an output whose meaning only the user knows."""

    def forward(self, mean: Tensor, variance: Tensor) -> Outputs:
        """Return both."""
        return {"mean": mean, "variance": variance}


class ClassesOfDraws(nn.Module):
    """Class probabilities and their uncertainty from draws of logits."""

    def __init__(self, class_axis: int) -> None:
        super().__init__()
        self.class_axis = class_axis

    def forward(self, draws: Tensor) -> Outputs:
        """Return probabilities, their variance over the draws, and entropies in nats."""
        axis = check_classes(draws[0], self.class_axis)
        each = draws.softmax(axis + 1).movedim(axis + 1, 2)
        mean, variance = _moments_over_draws(each)
        return {**_classes(mean, _entropy(each, 2).mean(0)), "probs_variance": variance}


class NumbersOfDraws(nn.Module):
    """A prediction, its epistemic variance and the variance of the noise, from draws."""

    def __init__(self, likelihood: GaussianRegression) -> None:
        super().__init__()
        self.likelihood = likelihood

    def forward(self, draws: Tensor) -> Outputs:
        """Return the mean, the variance over the draws, and the mean noise."""
        values, noise = self.likelihood.split(draws)
        mean, variance = _moments_over_draws(values)
        averaged = noise.mean(0) if noise.ndim else noise
        return {"mean": mean, "variance": variance, "noise_variance": _spread(averaged, mean)}


class DrawsAlone(nn.Module):
    """The mean and the variance over draws of an output whose meaning only the user knows."""

    def forward(self, draws: Tensor) -> Outputs:
        """Return both."""
        mean, variance = _moments_over_draws(draws)
        return {"mean": mean, "variance": variance}


def check_classes(logits: Tensor, class_axis: int) -> int:
    """Return the axis of the classes, counted from the front."""
    axis = class_axis % logits.ndim if -logits.ndim <= class_axis < logits.ndim else 0
    if axis == 0 or logits.shape[axis] < 2:
        raise ValueError(
            f"the model must give logits (N, C, ...) with two classes or more on axis "
            f"{class_axis}, got shape {tuple(logits.shape)}; for one logit z per example give "
            "(0, z)"
        )
    return axis


def _classes(probs: Tensor, expected_entropy: Tensor) -> Outputs:
    entropy = _entropy(probs, 1)
    return {
        "probs": probs,
        "entropy": entropy,
        "expected_entropy": expected_entropy,
        "mutual_information": (entropy - expected_entropy).clamp_min(0.0),
    }


def _entropy(probs: Tensor, axis: int) -> Tensor:
    # The floor makes 0 log 0 the 0 that it is.
    return -(probs * probs.clamp_min(torch.finfo(probs.dtype).tiny).log()).sum(axis)


def _moments_over_draws(draws: Tensor) -> tuple[Tensor, Tensor]:
    mean = draws.mean(0)
    return mean, (draws - mean).square().sum(0) / (draws.shape[0] - 1)


def _spread(noise: Tensor, value: Tensor) -> Tensor:
    return noise + torch.zeros_like(value)
