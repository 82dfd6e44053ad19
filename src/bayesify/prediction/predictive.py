"""What a Bayesian network predicts: the average, and how sure it is, split into its parts.

`Predictive` is the contract; a classification, a regression and a custom output each have their
own record. Accumulators build them from posterior samples, a chunk of samples at a time.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Self, SupportsIndex

import torch
from torch import Tensor

from bayesify.distributions.precision import at_least_float32
from bayesify.prediction.gaussian_mixture import (
    mixture_log_density,
    mixture_quantile,
    spread_variance,
)
from bayesify.prediction.running_moments import RunningMoments

Task = Literal["classification", "regression", "custom"]


@dataclass(frozen=True, eq=False, repr=False)
class Predictive:
    """The prediction for a batch of N examples, averaged over the posterior.

    Attributes:
        num_samples: How many samples of weights (or of propagated logits) it averages, or 0.
        made_by: How it was made, in words: "30 weight samples, vectorised in chunks of 10".
        mean: Mean class probabilities (N, C, ...), predictive mean, or mean output (N, ...).
        variance: Variance over samples, 1/(T-1), of the probabilities or of the output; for a
            regression the total predictive variance. NaN when it rests on one sample.
    """

    task: ClassVar[Task]

    num_samples: int
    made_by: str
    mean: Tensor
    variance: Tensor

    @staticmethod
    def cat(predictives: Sequence[Predictive]) -> Predictive:
        """Join predictions for different examples, made in the same way, into one."""
        _check_joinable(predictives)
        first = predictives[0]
        joined = {
            name: torch.cat([vars(each)[name] for each in predictives], _example_axis(name))
            for name in _tensors(first)
        }
        made_by = "; ".join(dict.fromkeys(each.made_by for each in predictives))
        return replace(first, made_by=made_by, **joined)

    @property
    def std(self) -> Tensor:
        """The square root of `variance`."""
        return self.variance.sqrt()

    def to(self, device: torch.device | str) -> Self:
        """Return the same prediction on another device."""
        return self._map(lambda tensor, _: tensor.to(device))

    def __len__(self) -> int:
        return self.mean.shape[0]

    def __getitem__(self, index: SupportsIndex | slice | Sequence[int] | Tensor) -> Self:
        """Return some of the examples; a single index keeps the example axis, with length 1."""
        if isinstance(index, tuple):
            raise TypeError(
                f"a Predictive is indexed by example only, got {len(index)} indices; index its "
                "tensors for more, for example prediction.mean[0, 1]"
            )
        if isinstance(index, SupportsIndex) and getattr(index, "ndim", 0) == 0:
            index = operator.index(index)
            if not -len(self) <= index < len(self):
                raise IndexError(f"example {index} does not exist: there are {len(self)}")
            index = slice(index, index + 1 or None)
        return self._map(lambda tensor, axis: tensor[(slice(None),) * axis + (index,)])

    # Only reached for names that are not there; Any lets `predict(...).probs` type-check.
    def __getattr__(self, name: str) -> Any:
        owners = [kind.task for kind in Predictive.__subclasses__() if _defines(kind, name)]
        if not owners:
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        raise AttributeError(
            f"{name} is defined for {' and '.join(owners)}; this Predictive is a {self.task} one"
        )

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({len(self)} examples of shape {tuple(self.mean.shape[1:])}, "
            f"made by {self.made_by}, on {self.mean.device})"
        )

    def _map(self, change: Callable[[Tensor, int], Tensor]) -> Self:
        tensors = _tensors(self).items()
        return replace(self, **{name: change(each, _example_axis(name)) for name, each in tensors})


@dataclass(frozen=True, eq=False, repr=False)
class ClassificationPredictive(Predictive):
    """Class probabilities p = mean_t p_t, classes on axis 1, entropies in nats.

    Attributes:
        expected_entropy: mean_t H(p_t), the aleatoric part, (N, ...).
        votes: How many of the T samples had their largest probability in each class, (N, C, ...).
    """

    task = "classification"

    expected_entropy: Tensor
    votes: Tensor

    @property
    def probs(self) -> Tensor:
        """Mean class probabilities, (N, C, ...)."""
        return self.mean

    @property
    def classes(self) -> Tensor:
        """The class of largest mean probability, (N, ...)."""
        return self.probs.argmax(1)

    @property
    def entropy(self) -> Tensor:
        """H(mean_t p_t), the total uncertainty, (N, ...)."""
        return _entropy(self.probs, 1)

    @property
    def mutual_information(self) -> Tensor:
        """Entropy less expected entropy, the epistemic part, at least 0, (N, ...)."""
        return (self.entropy - self.expected_entropy).clamp_min(0.0)

    @property
    def aleatoric(self) -> Tensor:
        """The expected entropy."""
        return self.expected_entropy

    @property
    def epistemic(self) -> Tensor:
        """The mutual information."""
        return self.mutual_information

    @property
    def total(self) -> Tensor:
        """The entropy."""
        return self.entropy

    @property
    def modal_class(self) -> Tensor:
        """The class most samples voted for, a tie going to the larger mean probability."""
        is_most = self.votes == self.votes.amax(1, keepdim=True)
        return self.probs.masked_fill(~is_most, -1.0).argmax(1)

    @property
    def confidence(self) -> Tensor:
        """The share of the samples that voted for the modal class."""
        return self.votes.amax(1) / self.num_samples


@dataclass(frozen=True, eq=False, repr=False)
class RegressionPredictive(Predictive):
    """The mixture mean_t N(mu_t, noise_variance_t + propagated_variance_t) of each output.

    From one weight sample the epistemic variance is unknown, so `epistemic`, `total`, `variance`
    and `std` are NaN; `mean`, `aleatoric`, `noise_variance`, quantiles and densities remain.

    Attributes:
        samples: Predicted means mu_t, (T, N, ...).
        noise_variance: Variance of the observation noise, (T, N, ...), 0 where there is none.
        propagated_variance: Variance of mu_t from propagated weights, (T, N, ...), or None.
    """

    task = "regression"

    samples: Tensor
    noise_variance: Tensor
    propagated_variance: Tensor | None = None

    @classmethod
    def build(
        cls,
        samples: Tensor,
        noise_variance: Tensor | float,
        made_by: str,
        propagated_variance: Tensor | float | None = None,
    ) -> RegressionPredictive:
        """Describe means (T, N, ...) and variances that broadcast to them.

        Args:
            samples: Predicted means; one row when the weights were propagated, not sampled.
            noise_variance: Observation noise, a variance; 0 for none.
            made_by: How the means were made, in words.
            propagated_variance: Epistemic variance carried by each mean (moment propagation).
        """
        samples = at_least_float32(samples)
        noise = spread_variance(samples, noise_variance, "noise_variance")
        propagated = None
        if propagated_variance is not None:
            propagated = spread_variance(samples, propagated_variance, "propagated_variance")
        num_samples = len(samples) if propagated is None or len(samples) > 1 else 0
        total = noise.mean(0) + _epistemic(samples, propagated)
        return cls(num_samples, made_by, samples.mean(0), total, samples, noise, propagated)

    @property
    def aleatoric(self) -> Tensor:
        """The mean noise variance, (N, ...)."""
        return self.noise_variance.mean(0)

    @property
    def epistemic(self) -> Tensor:
        """Var_t(mu_t) with 1/(T-1), plus the mean propagated variance, (N, ...)."""
        return _epistemic(self.samples, self.propagated_variance)

    @property
    def total(self) -> Tensor:
        """Aleatoric plus epistemic variance."""
        return self.variance

    def quantile(self, level: float) -> Tensor:
        """Return the smallest y with P(Y <= y) >= level, exact for the mixture, (N, ...).

        Without noise that is one of the sampled means.
        """
        return mixture_quantile(level, self.samples, self.component_variance).to(self.mean.dtype)

    def interval(self, level: float = 0.95) -> tuple[Tensor, Tensor]:
        """Return the central interval (low, high) that holds this share of the mixture."""
        if not 0.0 < level < 1.0:
            raise ValueError(f"level must lie strictly between 0 and 1, got {level}")
        tail = (1.0 - level) / 2
        return self.quantile(tail), self.quantile(1.0 - tail)

    def log_prob(self, targets: Tensor) -> Tensor:
        """Return the log density of each example's targets, jointly over its outputs, (N,).

        NaN where a component has no variance at all: a point mass has no density.
        """
        targets = self.match(targets).to(self.mean)
        return mixture_log_density(targets, self.samples, self.component_variance)

    def match(self, targets: Tensor) -> Tensor:
        """Return targets in the shape of `mean`, which may differ by a last axis of length 1."""
        shape = self.mean.shape
        if targets.shape in (shape, (*shape, 1)) or (*targets.shape, 1) == tuple(shape):
            return targets.reshape(shape)
        got = tuple(targets.shape)
        raise ValueError(f"targets must have the prediction's shape {tuple(shape)}, got {got}")

    @property
    def component_variance(self) -> Tensor:
        """Noise plus propagated variance, (T, N, ...)."""
        if self.propagated_variance is None:
            return self.noise_variance
        return self.noise_variance + self.propagated_variance


@dataclass(frozen=True, eq=False, repr=False)
class CustomPredictive(Predictive):
    """The mean and the variance over samples of an output whose meaning only the user knows."""

    task = "custom"


class ClassificationAccumulator:
    """Builds a classification from logits; memory does not grow with the number of samples.

    Args:
        class_axis: Where the classes lie in the logits (N, C, ...) of one sample; 1 or -1 for most
            models. They are moved to axis 1.
    """

    def __init__(self, class_axis: int = 1) -> None:
        self._class_axis = class_axis
        self._probs = RunningMoments()
        self._entropy = RunningMoments()
        self._votes = torch.zeros((), dtype=torch.int32)

    def update(self, logits: Tensor) -> None:
        """Add samples: logits (s, N, C, ...) of s samples for the same N examples."""
        logits = self._classes_second(logits)
        probs = at_least_float32(logits).softmax(2)
        self._probs.update(probs)
        self._entropy.update(_entropy(probs, 2))
        # From the logits: rounding can make two probabilities equal.
        choices = logits.argmax(2).movedim(0, 1)
        counted = torch.zeros(probs.shape[1:], dtype=torch.int32, device=probs.device)
        ones = torch.ones_like(choices, dtype=torch.int32)
        self._votes = counted.scatter_add_(1, choices, ones) + self._votes

    def result(self, made_by: str) -> ClassificationPredictive:
        """Return the prediction of all samples so far."""
        mean, variance = self._probs.result()
        expected_entropy, _ = self._entropy.result()
        return ClassificationPredictive(
            self._probs.count, made_by, mean, variance, expected_entropy, self._votes
        )

    def _classes_second(self, logits: Tensor) -> Tensor:
        axis = self._class_axis + (self._class_axis >= 0)
        if logits.ndim < 3 or not (2 <= axis < logits.ndim or 2 - logits.ndim <= axis < 0):
            raise ValueError(
                "logits must be (samples, N, C, ...) with the classes on axis "
                f"{self._class_axis} of (N, C, ...), got shape {tuple(logits.shape)}"
            )
        if logits.shape[axis] < 2:
            raise ValueError(
                f"logits must have at least two classes on axis {self._class_axis}, got shape "
                f"{tuple(logits.shape[1:])}; for one logit z per example pass (0, z)"
            )
        return logits.movedim(axis, 2)


class RegressionAccumulator:
    """Builds a regression from predicted means; keeps every sample, as quantiles need them."""

    def __init__(self) -> None:
        self._means: list[Tensor] = []
        self._noise: list[Tensor] = []

    def update(self, means: Tensor, noise_variance: Tensor | float = 0.0) -> None:
        """Add samples: means (s, N, ...) and the noise variance, which broadcasts to them."""
        means = at_least_float32(means)
        if self._means and means.shape[1:] != self._means[0].shape[1:]:
            raise ValueError(
                "every update must hold the same examples: expected (s, N, ...) as in "
                f"{tuple(self._means[0].shape)}, got {tuple(means.shape)}"
            )
        self._noise.append(spread_variance(means, noise_variance, "noise_variance"))
        self._means.append(means)

    def result(self, made_by: str) -> RegressionPredictive:
        """Return the prediction of all samples so far."""
        if not sum(map(len, self._means)):
            raise ValueError("there are no samples: call update before result")
        return RegressionPredictive.build(torch.cat(self._means), torch.cat(self._noise), made_by)


class CustomAccumulator:
    """Builds the mean and variance of any output; memory does not grow with the samples."""

    def __init__(self) -> None:
        self._outputs = RunningMoments()

    def update(self, outputs: Tensor) -> None:
        """Add samples: outputs (s, N, ...)."""
        self._outputs.update(at_least_float32(outputs))

    def result(self, made_by: str) -> CustomPredictive:
        """Return the prediction of all samples so far."""
        mean, variance = self._outputs.result()
        return CustomPredictive(self._outputs.count, made_by, mean, variance)


def _entropy(probs: Tensor, axis: int) -> Tensor:
    return torch.special.entr(probs).sum(axis)  # entr(0) is 0


def _epistemic(samples: Tensor, propagated: Tensor | None) -> Tensor:
    if len(samples) == 1 and propagated is not None:
        return propagated[0]
    moments = RunningMoments()
    moments.update(samples)
    _, variance = moments.result()
    return variance if propagated is None else variance + propagated.mean(0)


def _tensors(predictive: Predictive) -> dict[str, Tensor]:
    return {name: value for name, value in vars(predictive).items() if isinstance(value, Tensor)}


def _example_axis(name: str) -> int:
    return int(name in ("samples", "noise_variance", "propagated_variance"))


def _defines(kind: type[Predictive], name: str) -> bool:
    return not name.startswith("_") and (name in kind.__dataclass_fields__ or hasattr(kind, name))


def _check_joinable(predictives: Sequence[Predictive]) -> None:
    if not predictives:
        raise ValueError("predictives must hold at least one Predictive, got none")
    first, *others = [
        (each.task, each.num_samples, tuple(each.mean.shape[1:]), sorted(_tensors(each)))
        for each in predictives
    ]
    for other in others:
        if other != first:
            raise ValueError(
                "predictives must agree in task, num_samples, shape of one example and parts to "
                f"be joined, got {first} and {other}"
            )
