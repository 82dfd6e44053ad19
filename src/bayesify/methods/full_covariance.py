"""Training through the whole covariance of the outputs: the slow reference.

What variational density propagation was before its covariances became variances. A covariance of
all activations need not be carried to have that of the outputs: noise enters at layers, and
derivatives of the outputs tell what becomes of it (`prediction.by_covariance`). A step takes the
derivatives of these derivatives, one for each output: for networks of the size of LeNet, and for
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

from bayesify.batches import output_tensor
from bayesify.conversion.method import methods
from bayesify.conversion.sites import named_posteriors
from bayesify.methods.checks import check_choice
from bayesify.methods.described_outputs import expected_nll
from bayesify.methods.moment_propagation import MomentPropagation
from bayesify.methods.variational import Variational
from bayesify.moments import Moments
from bayesify.prediction.by_covariance import covariance_of
from bayesify.prediction.correlated_outputs import CorrelatedOutputs, root_of
from bayesify.prediction.evaluation_mode import evaluating
from bayesify.prediction.noisy_calls import noted, without_checkpoints
from bayesify.types import OutputMoments


@methods.register("full_covariance")
@dataclass(frozen=True)
class FullCovariance(MomentPropagation):
    """Normal posterior on every selected weight, trained and read by the outputs' covariance.

    While it trains, batch norms keep the statistics they have and dropout is off: the covariance
    is that of one example, which others must not change.

    Args:
        prior_std: Prior standard deviation.
        initial_std: Standard deviation the posterior starts from; None takes a tenth of each
            tensor's root mean square.
        rules: Those of the moments; "taylor" are the papers'.
        num_logits: Draws of the logits that a training step averages over.
        scale: "weight" for one variance per weight, "out" for one per output unit.
        where: Which tensors become random (see `bayesify.conversion.select`): weights of nn.Linear,
            nn.Conv1d and nn.Conv2d can.
        biases: Whether biases become random too.
        through: What the derivatives are taken through: a pass of "moments", or one of the "mean"
            weights, to first order in their noise. Trained by that, a network learns variances
            that first order does not see: its weights must then not be drawn.
    """

    name: ClassVar[str] = "full_covariance"
    ways: ClassVar[Mapping[str, str]] = {
        "covariance": Variational.ways["covariance"],
        **{way: words for way, words in Variational.ways.items() if way != "covariance"},
    }
    can_be_compiled: ClassVar[bool] = False

    through: Literal["moments", "mean"] = "moments"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("through", self.through, ("moments", "mean"))

    def default_way(self) -> str:
        """Predict the way it was trained."""
        return "covariance" if self.through == "moments" else "linearised"

    def carries_moments(self) -> bool:
        """Let the moments of uncertain inputs go in; the mean weights see draws of them."""
        return self.through == "moments"

    def nll(
        self, model: nn.Module, forward: Callable[[], Any], nll: Callable[..., Tensor]
    ) -> Tensor:
        """Return the expected negative log-likelihood of outputs of this covariance."""
        outputs = self._described(model, forward, create_graph=True)
        variance = outputs.covariance.diagonal(dim1=1, dim2=2).clamp_min(0.0)
        moments = OutputMoments(outputs.mean, variance.view(outputs.mean.shape))
        return expected_nll(model, nll, moments, lambda: _draws(outputs, self.num_logits))

    def outputs(self, model: nn.Module, forward: Callable[[], Any], number: int) -> list[Any]:
        """Return draws of outputs that one pass describes."""
        return list(_draws(self._described(model, forward, create_graph=False), number))

    def _described(
        self, model: nn.Module, forward: Callable[[], Any], *, create_graph: bool
    ) -> CorrelatedOutputs:
        returned: list[Any] = []
        with (
            torch.enable_grad(),
            evaluating(model),
            self.sampling(model, self.through),
            without_checkpoints(),
            noted(model, has_derivatives=create_graph) as found,
        ):
            # What wraps the model may do things to its output that forbid derivatives of it.
            handle = model.register_forward_hook(lambda *call: returned.append(call[-1]))
            try:
                forward()
            finally:
                handle.remove()
        if rest := found.out_of_reach():
            names = [name for name, site in named_posteriors(model).items() if site in rest]
            raise ValueError(
                "FullCovariance trains weights that are read by nn.Linear, nn.Conv1d and "
                f"nn.Conv2d padded with zeros, got {', '.join(names)}: leave them out by `where`"
            )
        output = output_tensor(returned[-1], (Tensor, Moments))
        if not found.lead_with(len(output)):
            raise ValueError(
                "FullCovariance trains models whose layers have a row for each example, the first "
                "axis of what they return; in this one positions come first, or examples are cut"
            )
        return covariance_of(output, found)


def _draws(outputs: CorrelatedOutputs, number: int) -> Tensor:
    mean, covariance, _ = outputs
    points = torch.randn(number, *covariance.shape[:2], dtype=mean.dtype, device=mean.device)
    spread = torch.einsum("nbc,bkc->nbk", points, root_of(covariance))
    return mean + spread.view(number, *mean.shape)
