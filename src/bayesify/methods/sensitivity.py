"""How much a trained network's outputs hang on each of its weights.

Sums of squares over examples ("fisher") or over examples and outputs ("jacobian") would take a
backward pass for each of them. One pass per batch is enough on average: weigh every term with a
random sign, and the square of the gradient of the sum has the sum of the squares as its mean,
because signs of different terms cancel. It works for every layer, and the noise of a whole loader
is small: with B batches a score has a relative standard deviation of at most √(2 / B).

The derivation of partial Bayesian networks wants the Jacobian, since the variance of an output is
Σ (∂f/∂w)² std² to first order. The gradient of the loss over all data, which its algorithm names,
is near 0 at the end of training, or proportional to the weights where they decay: it ranks noise.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn

from bayesify.batches import (
    batch_size,
    call_model,
    drawn,
    map_tensors,
    output_tensor,
    split_batch,
    to_device,
)
from bayesify.conversion.select import Where, select
from bayesify.prediction.predict import shown
from bayesify.registry import Registry
from bayesify.training.likelihood import Likelihood, as_likelihood
from bayesify.training.run_state import RandomState, loader_generators
from bayesify.types import device_of


@dataclass(frozen=True, eq=False)
class Scored:
    """The tensors that are scored.

    Attributes:
        weights: The tensors.
        generator: Where random numbers come from.
    """

    weights: Sequence[Tensor]
    generator: torch.Generator


@dataclass(frozen=True, eq=False)
class Batch(Scored):
    """What a network made of a batch, in evaluation mode.

    Attributes:
        size: Number of examples.
        output: The network's output.
        targets: Targets, where there are any.
        likelihood: What outputs mean, where it is known.
    """

    size: int
    output: Any
    targets: Tensor | None
    likelihood: Likelihood | None

    def signs(self, shape: Sequence[int]) -> Tensor:
        """Return random signs; drawn on the CPU, the same on every device."""
        drawn = torch.randint(0, 2, tuple(shape), generator=self.generator)
        return (2.0 * drawn - 1.0).to(output_tensor(self.output).device)

    def nll(self, chosen: Tensor | None = None) -> Tensor:
        """Return the mean negative log-likelihood of the examples, or of some of them."""
        if self.targets is None or self.likelihood is None:
            raise ValueError("data must yield targets beside the inputs for this score")
        if chosen is None:
            return self.likelihood.nll(self.output, self.targets)
        output = map_tensors(self.output, lambda tensor: tensor[chosen])
        return self.likelihood.nll(output, self.targets[chosen])

    def gradient(self, of: Tensor) -> list[Tensor]:
        """Return the gradient by every scored tensor, 0 where it has no part in it."""
        found = torch.autograd.grad(of, self.weights, allow_unused=True)
        pairs = zip(found, self.weights, strict=True)
        return [torch.zeros_like(w) if g is None else g.detach() for g, w in pairs]


class Score(ABC):
    """One way to tell how much each weight matters."""

    needs_data: ClassVar[bool] = True
    num_batches: ClassVar[int | None] = None
    """How many batches it looks at; None for all."""

    @abstractmethod
    def of_batch(self, batch: Batch) -> list[Tensor]:
        """Return what a batch adds to the score of every tensor.

        A score that needs no data is given the weights alone, once.
        """


scores: Registry[type[Score]] = Registry("sensitivity score")


@scores.register("fisher")
class Fisher(Score):
    """Mean over examples of the squared gradient of their own negative log-likelihood."""

    def of_batch(self, batch: Batch) -> list[Tensor]:
        """Return an estimate of the sum over the examples."""
        is_plus = batch.signs([batch.size]) > 0
        total = torch.zeros((), device=is_plus.device)
        for chosen, sign in ((is_plus, 1.0), (~is_plus, -1.0)):
            if bool(chosen.any()):
                total = total + sign * chosen.sum() * batch.nll(chosen)
        return [gradient.square() for gradient in batch.gradient(total)]


@scores.register("jacobian")
class Jacobian(Score):
    """Mean over examples of the summed squared derivatives of every output."""

    def of_batch(self, batch: Batch) -> list[Tensor]:
        """Return an estimate of the sum over examples and outputs."""
        output = output_tensor(batch.output)
        total = (batch.signs(output.shape) * output.float()).sum()
        return [gradient.square() for gradient in batch.gradient(total)]


@scores.register("mean_abs_grad")
class MeanAbsGradient(Score):
    """Mean over batches of the absolute gradient of the loss."""

    def of_batch(self, batch: Batch) -> list[Tensor]:
        """Return the absolute gradient, weighed by the size of the batch."""
        return [batch.size * gradient.abs() for gradient in batch.gradient(batch.nll())]


@scores.register("grad")
class Gradient(MeanAbsGradient):
    """Absolute gradient of the loss of one batch, as the paper's algorithm has it."""

    num_batches = 1


@scores.register("magnitude")
class Magnitude(Score):
    """Absolute value of the weight."""

    needs_data = False

    def of_batch(self, batch: Scored) -> list[Tensor]:
        """Return the absolute values."""
        return [weight.detach().abs() for weight in batch.weights]


@scores.register("random")
class Random(Score):
    """A random number, for comparison."""

    needs_data = False

    def of_batch(self, batch: Scored) -> list[Tensor]:
        """Return random numbers, the same on every device."""
        return [
            torch.rand(weight.shape, generator=batch.generator).to(weight.device)
            for weight in batch.weights
        ]


def sensitivity(
    model: nn.Module,
    data: Iterable[Any] | None = None,
    score: str = "jacobian",
    *,
    where: Where = "everything",
    biases: bool = False,
    likelihood: Likelihood | str | Callable[[Any, Tensor], Tensor] | None = None,
    num_batches: int | None = None,
    seed: int = 0,
) -> dict[str, Tensor]:
    """Return how much each weight of a trained network matters, tensor by tensor.

    The network is asked in evaluation mode and left as it was; so are the random generators.

    Args:
        model: A trained network, not converted.
        data: A loader; "jacobian" needs inputs only, "magnitude" and "random" nothing at all.
        score: "jacobian", "fisher", "mean_abs_grad", "grad", "magnitude" or "random".
        where: Which tensors are scored (see `bayesify.conversion.select`).
        biases: Whether biases are scored too.
        likelihood: What outputs mean, as in `fit`; None decides by the type of the targets.
        num_batches: How many batches to look at; None for all.
        seed: Seed of the random signs and of the order of batches.
    """
    chosen = select(model, where, biases=biases).chosen
    tensors = {candidate.path: candidate.tensor for candidate in chosen}
    return score_tensors(model, tensors, data, score, likelihood, num_batches, seed=seed)


def score_tensors(
    model: nn.Module,
    tensors: Mapping[str, nn.Parameter],
    data: Iterable[Any] | None,
    score: str,
    likelihood: Any = None,
    num_batches: int | None = None,
    *,
    seed: int = 0,
) -> dict[str, Tensor]:
    """Return the score of every entry of some tensors of a model (see `sensitivity`)."""
    kind = scores[score]()
    weights, generator = list(tensors.values()), torch.Generator().manual_seed(seed)
    if not kind.needs_data:
        alone = cast(Batch, Scored(weights, generator))
        return dict(zip(tensors, kind.of_batch(alone), strict=True))
    if data is None:
        raise ValueError(f"data must be given, a loader of training examples: score={score!r}")
    limits = [limit for limit in (num_batches, kind.num_batches) if limit is not None]
    totals, count = [torch.zeros_like(weight) for weight in weights], 0
    with _as_scored(model), _repeatable(data, seed):
        batches = itertools.islice(data, min(limits)) if limits else data
        for entry in shown(batches, f"scoring weights by {score}", None):
            inputs, targets = split_batch(drawn(to_device(entry, device_of(model))))
            if likelihood is None or not isinstance(likelihood, Likelihood):
                likelihood = None if targets is None else as_likelihood(likelihood, targets)
            output, size = call_model(model, inputs), batch_size(inputs)
            batch = Batch(weights, generator, size, output, targets, likelihood)
            for total, part in zip(totals, kind.of_batch(batch), strict=True):
                total += part
            count += size
    if not count:
        raise ValueError("data gave no examples to score the weights by")
    return {path: total / count for path, total in zip(tensors, totals, strict=True)}


@contextmanager
def _as_scored(model: nn.Module) -> Iterator[None]:
    """Hold a model in evaluation mode, then put it back."""
    modes = {module: module.training for module in model.modules()}
    try:
        model.eval()
        # A fused recurrent layer has no backward pass in evaluation mode.
        with torch.backends.cudnn.flags(enabled=not _is_recurrent(model)), torch.enable_grad():
            yield
    finally:
        for module, mode in modes.items():
            module.training = mode


def _is_recurrent(model: nn.Module) -> bool:
    return any(isinstance(module, nn.RNNBase) for module in model.modules())


@contextmanager
def _repeatable(data: Iterable[Any], seed: int) -> Iterator[None]:
    """Let a loader go through its data in an order that the seed fixes, and leave no trace."""
    generators = loader_generators(data)
    before = RandomState.capture(generators)
    try:
        torch.manual_seed(seed)
        for generator in generators:
            generator.manual_seed(seed)
        yield
    finally:
        before.restore(generators)
