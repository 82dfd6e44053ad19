"""What a network's outputs mean: the likelihood of a target given an output.

The negative log-likelihood of one example is the sum over all its outputs (pixels, tokens,
targets); a batch's is the mean over its examples. That is the scale on which KL / N is exact.
"""

from __future__ import annotations

import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bayesify.batches import output_tensor
from bayesify.distributions import inverse_softplus, softplus
from bayesify.registry import Registry, unknown
from bayesify.types import OutputMoments

Task = Literal["classification", "regression", "custom"]

_LEAST_NOISE_VARIANCE = 1e-6

likelihoods: Registry[type[Likelihood]] = Registry("likelihood")


class Likelihood(nn.Module, ABC):
    """p(target | output), and the one-line score people watch while it trains."""

    task: ClassVar[Task]
    score_name: ClassVar[str]
    higher_is_better: ClassVar[bool]
    starts_from_targets = False
    """Whether `start` wants a look at some targets before training."""
    class_axis: int | None = None
    """Axis of the classes in an output, where there are classes and it is known."""
    takes_moments: ClassVar[bool] = False
    """Whether `nll` is defined for outputs known by their moments, beside draws of them."""

    @abstractmethod
    def nll(self, output: Any, targets: Tensor) -> Tensor:
        """Return the negative log-likelihood: summed over outputs, averaged over examples."""

    @abstractmethod
    def predictive_nll(self, outputs: list[Any], targets: Tensor) -> Tensor:
        """Return −log of the likelihood averaged over several posterior draws of the output."""

    @abstractmethod
    def score(self, outputs: list[Any], targets: Tensor) -> tuple[Tensor, Tensor | int]:
        """Return a batch's sum of scores, from the draws' average prediction, and their number.

        Sums of several batches are added before they are divided, so no batch counts too much.
        """

    def score_of_mean(self, mean: float) -> float:
        """Return the score people read, from the mean over all that was scored."""
        return mean

    def start(self, targets: Tensor) -> None:
        """Set what should start from the data; called once before training."""
        del targets

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready constructor arguments and the class's registered name."""
        raise TypeError(f"a {type(self).__name__} cannot be written to a file")


@likelihoods.register("classification")
class Classification(Likelihood):
    """Categorical likelihood of integer targets under logits.

    Outputs and targets are compared position by position. A causal language model that shifts its
    labels itself needs targets shifted by one, or its own loss as a `CustomLikelihood`.

    Args:
        class_axis: Axis of the classes in the output: 1 as in `cross_entropy`, or -1 as in
            language models; None finds it from the shape of the targets.
        ignore_index: Target value of outputs that do not count (unlabelled pixels, padding).
        class_weights: Factor on -log p of the outputs whose target is each class, for unbalanced
            data. They are used as they are: an example's nll is the weighted sum over its outputs,
            not divided by the sum of the weights. Weights of mean 1 over the training outputs
            leave as much nll as there is without them, so that KL / N keeps its meaning; larger
            ones would act like more data. `bayesify.data.median_frequency_weights` makes such
            weights. Scores and metrics count every output once.
    """

    task = "classification"
    score_name = "accuracy"
    higher_is_better = True
    class_weights: Tensor | None

    def __init__(
        self,
        class_axis: int | None = None,
        ignore_index: int = -100,
        class_weights: Sequence[float] | None = None,
    ) -> None:
        super().__init__()
        weights = None if class_weights is None else _weights(class_weights)
        self.class_axis = class_axis
        self.ignore_index = ignore_index
        self.register_buffer("class_weights", weights)

    def nll(self, output: Any, targets: Tensor) -> Tensor:
        """Return the cross-entropy, summed over an example's outputs."""
        if isinstance(output, OutputMoments):
            raise TypeError(
                "last_layer='exact' is exact under a squared error only: take last_layer='sample' "
                "for classification"
            )
        logits = self._classes_first(output_tensor(output), targets)
        return self._mean_over_examples(logits.float(), targets)

    def predictive_nll(self, outputs: list[Any], targets: Tensor) -> Tensor:
        """Return the cross-entropy of the averaged probabilities."""
        return self._mean_over_examples(self._log_mean_probs(outputs, targets), targets)

    def score(self, outputs: list[Any], targets: Tensor) -> tuple[Tensor, Tensor | int]:
        """Return how many counted outputs have the target as most probable class."""
        right = self._log_mean_probs(outputs, targets).argmax(1) == targets
        counted = targets != self.ignore_index
        return (right & counted).sum(), counted.sum()

    def to_dict(self) -> dict[str, Any]:
        """Return the constructor's arguments."""
        weights = None if self.class_weights is None else self.class_weights.tolist()
        return {
            "name": "classification",
            "class_axis": self.class_axis,
            "ignore_index": self.ignore_index,
            "class_weights": weights,
        }

    def _log_mean_probs(self, outputs: list[Any], targets: Tensor) -> Tensor:
        logits = [self._classes_first(output_tensor(output), targets) for output in outputs]
        log_probs = torch.stack([entry.float().log_softmax(1) for entry in logits])
        return log_probs.logsumexp(0) - math.log(len(outputs))

    def _mean_over_examples(self, logits: Tensor, targets: Tensor) -> Tensor:
        each = F.cross_entropy(
            logits,
            targets,
            weight=self.class_weights,
            ignore_index=self.ignore_index,
            reduction="sum",
        )
        return each / max(targets.shape[0], 1)

    def _classes_first(self, logits: Tensor, targets: Tensor) -> Tensor:
        if targets.is_floating_point():
            raise TypeError(
                f"targets must be integer classes for classification, got {targets.dtype}; pass "
                "likelihood=GaussianRegression() for regression"
            )
        if self.class_axis is None:
            self.class_axis = _class_axis(logits, targets)  # prediction has no targets to ask
        return logits.movedim(self.class_axis, 1)


@likelihoods.register("gaussian_regression")
@likelihoods.register("regression")
class GaussianRegression(Likelihood):
    """Normal likelihood of real targets.

    Args:
        noise: "learned" for one noise variance learned with the weights, "predicted" for a
            network whose last axis holds the means and then as many noise parameters, or a
            number: a known noise standard deviation.
    """

    task = "regression"
    score_name = "rmse"
    higher_is_better = False
    takes_moments = True

    def __init__(self, noise: Literal["learned", "predicted"] | float = "learned") -> None:
        super().__init__()
        if not (noise in ("learned", "predicted") or _is_positive(noise)):
            raise ValueError(
                f"noise must be 'learned', 'predicted' or a positive standard deviation, got "
                f"{noise!r}"
            )
        self.noise = noise
        self.starts_from_targets = noise == "learned"
        if noise == "learned":
            self.raw_noise_variance = nn.Parameter(inverse_softplus(torch.tensor(1.0)))

    def start(self, targets: Tensor) -> None:
        """Start a learned noise at the variance of the targets."""
        if self.noise == "learned" and targets.numel() > 1:
            variance = targets.detach().float().var().clamp_min(1e-4)
            with torch.no_grad():
                self.raw_noise_variance.copy_(inverse_softplus(variance))

    def split(self, output: Any) -> tuple[Tensor, Tensor]:
        """Return the mean and the noise variance of an output."""
        values = output_tensor(output)
        values = values if values.dtype == torch.float64 else values.float()
        if self.noise == "predicted":
            if values.shape[-1] % 2:
                raise ValueError(
                    "noise='predicted' needs an even last axis (means, then noise parameters), "
                    f"got an output of shape {tuple(values.shape)}"
                )
            mean, rho = values.chunk(2, dim=-1)
            return mean, softplus(rho) + _LEAST_NOISE_VARIANCE
        if self.noise == "learned":
            variance = softplus(self.raw_noise_variance.to(values.dtype)) + _LEAST_NOISE_VARIANCE
            return values, variance.to(values.device)
        return values, values.new_tensor(float(self.noise) ** 2)

    def nll(self, output: Any, targets: Tensor) -> Tensor:
        """Return ½ Σ [log 2πτ² + (y − m)²/τ²] per example.

        Of outputs known by their moments over some weights, its exact mean over those weights.
        """
        mean, noise = self.split(output)
        each = _gaussian_nll(mean, noise, match_shape(targets, mean))
        if isinstance(output, OutputMoments):
            if self.noise == "predicted":
                raise TypeError(
                    "outputs known by their moments need noise='learned' or a number: a predicted "
                    "noise is no square of the outputs"
                )
            each = each + 0.5 * output.variance / noise
        return each.sum() / max(mean.shape[0], 1)

    def predictive_nll(self, outputs: list[Any], targets: Tensor) -> Tensor:
        """Return −log mean over draws of the joint density of an example's outputs."""
        joint = []
        for output in outputs:
            mean, variance = self.split(output)
            each = _gaussian_nll(mean, variance, match_shape(targets, mean))
            joint.append(each.flatten(1).sum(1) if each.ndim > 1 else each)
        log_mean = torch.logsumexp(-torch.stack(joint), 0) - math.log(len(outputs))
        return -log_mean.sum() / max(targets.shape[0], 1)

    def score(self, outputs: list[Any], targets: Tensor) -> tuple[Tensor, Tensor | int]:
        """Return the squared error of the mean prediction."""
        mean = torch.stack([self.split(output)[0] for output in outputs]).mean(0)
        return (mean - match_shape(targets, mean)).square().sum(), mean.numel()

    def score_of_mean(self, mean: float) -> float:
        """Return the root of the mean squared error."""
        return math.sqrt(mean)

    def to_dict(self) -> dict[str, Any]:
        """Return the constructor's arguments."""
        return {"name": "gaussian_regression", "noise": self.noise}


class CustomLikelihood(Likelihood):
    """The user's own loss, read as a negative log-likelihood.

    Args:
        loss: Function of (output, targets) that returns the mean over the batch of a loss that is
            summed over each example's outputs.
    """

    task = "custom"
    score_name = "loss"
    higher_is_better = False

    def __init__(self, loss: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.loss = loss

    def nll(self, output: Any, targets: Tensor) -> Tensor:
        """Return the user's loss."""
        if isinstance(output, OutputMoments):
            raise TypeError(
                "last_layer='exact' needs likelihood='regression': of a loss function it is not "
                "known whether it is a squared error"
            )
        return self.loss(output, targets)

    def predictive_nll(self, outputs: list[Any], targets: Tensor) -> Tensor:
        """Return the loss averaged over draws: an upper bound on the predictive one."""
        return torch.stack([self.loss(output, targets) for output in outputs]).mean()

    def score(self, outputs: list[Any], targets: Tensor) -> tuple[Tensor, Tensor | int]:
        """Return the loss averaged over draws, once for every example."""
        count = targets.shape[0] if isinstance(targets, Tensor) and targets.ndim else 1
        return self.predictive_nll(outputs, targets) * count, count


def as_likelihood(value: Any, targets: Tensor | None) -> Likelihood:
    """Return a likelihood from one, a table, a loss function, or the type of the targets."""
    if isinstance(value, Likelihood):
        return value
    if isinstance(value, Mapping):
        return likelihood_from_dict(value)
    if isinstance(value, str):
        return likelihood_from_dict({"name": value})
    if callable(value):
        return CustomLikelihood(cast(Callable[[Any, Tensor], Tensor], value))
    if value is None and targets is not None:
        return GaussianRegression() if targets.is_floating_point() else Classification()
    raise TypeError(
        "likelihood must be a name such as 'classification', a table of a name and options, a "
        f"Likelihood or a function (output, targets) -> loss, got {value!r}"
    )


def likelihood_from_dict(fields: Mapping[str, Any]) -> Likelihood:
    """Return the likelihood that `to_dict` wrote, or that a table of a recipe describes.

    Args:
        fields: "name", as in `{"name": "classification", "class_weights": [0.5, 2.0]}`, and the
            arguments of its class.
    """
    name = str(fields.get("name"))
    kind = likelihoods[name]
    options = {key: value for key, value in fields.items() if key != "name"}
    known = inspect.signature(kind).parameters
    for option in options:
        if option not in known:
            raise TypeError(unknown(f"option of the likelihood {name!r}", option, known))
    return kind(**options)


def match_shape(targets: Tensor, output: Tensor) -> Tensor:
    """Return targets in the output's shape; a lone trailing axis may differ, nothing else."""
    if targets.shape == output.shape:
        return targets
    if targets.numel() == output.numel() and (
        targets.shape == output.shape[:-1] or targets.shape[:-1] == output.shape
    ):
        return targets.reshape(output.shape)
    raise ValueError(
        f"targets of shape {tuple(targets.shape)} do not fit outputs of shape "
        f"{tuple(output.shape)}; broadcasting them would train on the wrong pairs"
    )


def _class_axis(logits: Tensor, targets: Tensor) -> int:
    shape = tuple(logits.shape)
    if logits.ndim >= 2 and targets.shape == (*shape[:1], *shape[2:]):
        return 1
    if logits.ndim >= 2 and targets.shape == shape[:-1]:
        return -1
    raise ValueError(
        f"targets of shape {tuple(targets.shape)} fit no class axis of outputs of shape {shape}; "
        "a classifier needs one output per class (two for a binary one)"
    )


def _gaussian_nll(mean: Tensor, variance: Tensor, targets: Tensor) -> Tensor:
    return 0.5 * (torch.log(2 * math.pi * variance) + (targets - mean).square() / variance)


def _is_positive(value: object) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value) and value > 0


def _weights(values: Sequence[float]) -> Tensor:
    message = f"class_weights must be a list of numbers >= 0, one per class, got {values!r}"
    try:
        weights = torch.tensor(values, dtype=torch.float32)
    except (TypeError, ValueError) as error:
        raise ValueError(message) from error
    if weights.ndim != 1 or not (weights.isfinite() & (weights >= 0)).all():
        raise ValueError(message)
    return weights
