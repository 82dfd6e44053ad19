"""Training through the whole covariance of the outputs, to first order: the slow reference.

What variational density propagation was before its covariances became variances: to first order
in the noise of the weights outputs have the covariance J diag(s) J' at the mean weights, which is
what first-order rules give that carry every covariance from layer to layer, and it is found here
from one derivative per output (`prediction.by_linearisation`). A step takes the derivatives of
these derivatives: a hundred plain ones and more. For networks of the size of LeNet, and for
knowing what faster rules leave out.

Reference: Dera, Rasool, Bouaynaya (2019), "Extended variational inference for propagating
uncertainty in convolutional neural networks".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from bayesify.conversion.method import methods
from bayesify.conversion.plan import Choices, Scale
from bayesify.conversion.select import Where
from bayesify.distributions import Normal, NormalPrior
from bayesify.methods.described_outputs import expected_nll
from bayesify.methods.variational import Variational
from bayesify.prediction.by_linearisation import root_of
from bayesify.prediction.linearised_calls import linearised_calls
from bayesify.training.settings import check_count
from bayesify.types import OutputMoments


@methods.register("full_covariance")
@dataclass(frozen=True)
class FullCovariance(Variational):
    """Normal posterior on every selected weight, trained and read by the outputs' covariance.

    While it trains, batch norms keep the statistics they have and dropout is off: the covariance
    is that of one example, which others must not change.

    Args:
        prior_std: Prior standard deviation.
        initial_std: Standard deviation the posterior starts from; None takes a tenth of each
            tensor's root mean square.
        num_logits: Draws of the logits that a training step averages over.
        scale: "weight" for one variance per weight, "out" for one per output unit.
        where: Which tensors become random (see `bayesify.conversion.select`).
        biases: Whether biases become random too.
    """

    name: ClassVar[str] = "full_covariance"
    ways: ClassVar[Mapping[str, str]] = {
        "linearised": Variational.ways["linearised"],
        **{way: words for way, words in Variational.ways.items() if way != "linearised"},
    }
    can_be_compiled: ClassVar[bool] = False
    how: ClassVar[Literal["sample", "local"]] = "sample"  # pyright: ignore[reportIncompatibleVariableOverride]

    prior_std: float = 1.0
    initial_std: float | None = None
    num_logits: int = 16
    scale: Scale = "weight"
    where: Where = "everything"
    biases: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("num_logits", self.num_logits)

    def choices(self) -> Choices:
        """Return the Normal family and the Normal prior."""
        prior = NormalPrior(std=self.prior_std)
        return Choices(Normal(), lambda *_: prior, self.initial_std, self.how, self.scale)

    def default_way(self) -> str:
        """Predict the way it was trained."""
        return "linearised"

    def nll(
        self, model: nn.Module, forward: Callable[[], Any], nll: Callable[..., Tensor]
    ) -> Tensor:
        """Return the expected negative log-likelihood of outputs of this covariance."""
        mean, covariance = _described(model, forward)
        variance = covariance.diagonal(dim1=1, dim2=2).clamp_min(0.0)
        moments = OutputMoments(mean, variance.view(mean.shape))
        return expected_nll(model, nll, moments, lambda: _draws(mean, covariance, self.num_logits))

    def outputs(self, model: nn.Module, forward: Callable[[], Any], number: int) -> list[Any]:
        """Return draws of outputs that one pass describes."""
        return list(_draws(*_described(model, forward), number))


def _described(model: nn.Module, forward: Callable[[], Any]) -> tuple[Tensor, Tensor]:
    with linearised_calls(model):
        mean, covariance = forward()
    return mean, covariance


def _draws(mean: Tensor, covariance: Tensor, number: int) -> Tensor:
    points = torch.randn(number, *covariance.shape[:2], dtype=mean.dtype, device=mean.device)
    spread = torch.einsum("nbc,bkc->nbk", points, root_of(covariance))
    return mean + spread.view(number, *mean.shape)
