"""Training through moments: one pass carries the mean and the variance of every activation.

The expected log-likelihood is taken over the outputs that the moments describe, not over sampled
weights, so its gradient has no noise from drawing weights. Of a squared error it is exact; of
classes it is an average over a few draws of the logits, which cost nothing beside the network.

Reference: Dera, Bouaynaya, Rasool, Shterenberg, Fathallah-Shaykh (2021), "PremiUm-CNN"; and its
extension VDP++, with the rules of `bayesify.moments` in the place of the first-order ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from bayesify.batches import output_tensor
from bayesify.conversion.method import methods
from bayesify.conversion.plan import Choices, Scale
from bayesify.conversion.select import Where
from bayesify.distributions import Normal, NormalPrior
from bayesify.methods.checks import check_choice
from bayesify.methods.described_outputs import expected_nll
from bayesify.methods.variational import Variational
from bayesify.moments import Moments, moment_rules, precise
from bayesify.moments.rule_table import RULES, Rules
from bayesify.training.settings import check_count
from bayesify.types import OutputMoments


@methods.register("moment_propagation")
@dataclass(frozen=True)
class MomentPropagation(Variational):
    """Normal posterior on every selected weight, trained and read by moments.

    Args:
        prior_std: Prior standard deviation.
        initial_std: Standard deviation the posterior starts from; None takes a tenth of each
            tensor's root mean square, a hundredth of the variance of its means.
        rules: "exact" moments of each operation, the first-order "taylor" ones of the papers,
            "shared", exact ones that carry what all positions of an image share, or "pooled", by
            which a layer sees the variances of its inputs as one sum: the fastest.
        num_logits: Draws of the logits that a training step averages over.
        scale: "weight" for one variance per weight, "out" for one per output unit.
        where: Which tensors become random (see `bayesify.conversion.select`).
        biases: Whether biases become random too.
    """

    name: ClassVar[str] = "moment_propagation"
    ways: ClassVar[Mapping[str, str]] = {
        "moments": Variational.ways["moments"],
        **{way: words for way, words in Variational.ways.items() if way != "moments"},
    }
    how: ClassVar[Literal["sample", "local"]] = "sample"  # pyright: ignore[reportIncompatibleVariableOverride]

    prior_std: float = 1.0
    initial_std: float | None = None
    rules: Rules = "exact"
    num_logits: int = 16
    scale: Scale = "weight"
    where: Where = "everything"
    biases: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("rules", self.rules, RULES)
        check_count("num_logits", self.num_logits)

    def choices(self) -> Choices:
        """Return the Normal family and the Normal prior."""
        prior = NormalPrior(std=self.prior_std)
        return Choices(Normal(), lambda *_: prior, self.initial_std, self.how, self.scale)

    def default_way(self) -> str:
        """Predict the way it was trained."""
        return "moments"

    def carries_moments(self) -> bool:
        """Let the moments of uncertain inputs go in as they are."""
        return True

    def gpu_compile_options(self, model: nn.Module) -> dict[str, Any]:
        """Have the gradients of networks with norms added up where they are found.

        Next to a norm a gradient is a sum of long terms, of a dozen tensors. The compiler, left to
        itself, writes the terms to memory, in float32, and what the norm gives: a quarter of what
        the kernels beside the products move in ResNet-18, 8 % in ViT-S.
        """
        norms = (_BatchNorm, nn.LayerNorm)
        if not any(isinstance(module, norms) for module in model.modules()):
            return {}
        return {
            "realize_reads_threshold": 8,
            "realize_opcount_threshold": 200,
            "realize_acc_reads_threshold": 24,
            # From torch 2.13 on: it plans long kernels over and over, to find the same ones.
            "loop_reindexing_after_fusion": False,
        }

    def nll(
        self, model: nn.Module, forward: Callable[[], Any], nll: Callable[..., Tensor]
    ) -> Tensor:
        """Return the expected negative log-likelihood of the outputs that moments describe."""
        with self.sampling(model, "moments"):
            output = forward()
        mean, variance = _pair(output)
        moments = OutputMoments(mean, variance)
        return expected_nll(model, nll, moments, lambda: _draws(mean, variance, self.num_logits))

    def outputs(self, model: nn.Module, forward: Callable[[], Any], number: int) -> list[Any]:
        """Return draws of the outputs that one pass describes."""
        del model
        return list(_draws(*_pair(forward()), number))

    @contextmanager
    def sampling(self, model: nn.Module, by: str) -> Iterator[None]:
        """Carry moments by the chosen rules; other ways draw weights or use their means."""
        with moment_rules(self.rules), super().sampling(model, by):
            yield


def _pair(output: Any) -> tuple[Tensor, Tensor]:
    found = output_tensor(output, (Tensor, Moments))
    return precise(found) if isinstance(found, Moments) else (found, torch.zeros_like(found))


def _draws(mean: Tensor, variance: Tensor, number: int) -> Tensor:
    # A root has no derivative at 0; what is added is below the resolution of any logit.
    std = (variance + 1e-20).sqrt()
    return mean + std * torch.randn(number, *mean.shape, dtype=std.dtype, device=std.device)
