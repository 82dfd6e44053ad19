"""What a converted model costs to train: by the published model, and as it is here.

The published model counts a network with n parameters and f FLOPs in a forward pass, of which a
share r is random, trained with S draws per step: (1 + r) n parameters and (1 + r)(S + 2) f FLOPs
per example. r = 1 is variational inference; a plain network takes 3 f, an ensemble of M plain ones
M times that. It differs from what happens here in four ways:

- S forward passes are followed by one backward pass (2 f). Here every draw has its own, which
  costs what a plain network's does: 3 S f.
- A mean and a scale are taken for two products. Weights are drawn, then multiplied once, so that
  the products do not grow with r. Local reparameterisation does take two.
- Biases and norms are taken for random too. Here they have no scale, unless they are asked for.
- Where the random weights are is taken to be known. Here their positions are stored, in four bits
  each or more (see `bayesify/conversion/positions.py`), as are the positions of the weights that
  exist in a sparse model, in four bytes.

Memory is that of the training state: parameters, gradients, and what the optimisers keep (one
number per parameter in SGD with momentum and in RMSprop, two in Adam). Activations are
no part of it, nor are the drawn weights, which are there during a pass. Nor are the steps on which
a sparse subspace moves: they need the gradient of every weight.

Reference: partial Bayesian networks, after Abboud et al. (2024), table 1.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor, nn

from bayesify.batches import call_model, output_tensor, settled
from bayesify.compression.flops import count_flops
from bayesify.conversion.convert import require_record
from bayesify.conversion.posterior import posteriors
from bayesify.training.likelihood import Classification
from bayesify.training.objective import elbo_loss
from bayesify.training.optimiser import make_optimizers, unique
from bayesify.training.run_state import RandomState
from bayesify.training.settings import FitSettings

OptimizerName = Literal["sgd", "adam"]
ScaleOptimizerName = Literal["adam", "rmsprop"]
# Numbers that an optimiser keeps of each parameter.
_STATES = {"sgd": 1, "adam": 2}
_SCALE_STATES = {"adam": 2, "rmsprop": 1}
# Backward takes two products where forward takes one.
_BACKWARD = 2


@dataclass(frozen=True)
class Cost:
    """What training takes.

    Attributes:
        num_parameters: Numbers that are trained.
        num_buffers: Numbers that are stored beside them, of whatever size: averages of norms, and
            what positions are kept in.
        flops: FLOPs of one example in one step, forward and backward.
        num_bytes: Bytes of parameters, buffers, gradients and optimiser state.
        num_gradient_bytes: Those of the gradients among them, which exist during a step only.
    """

    num_parameters: float
    num_buffers: float
    flops: float
    num_bytes: float
    num_gradient_bytes: float


@dataclass(frozen=True)
class Costs:
    """A cost by the published model beside the one that was counted on the model's own tensors.

    Attributes:
        modelled: By the formulas of the published model.
        measured: By the tensors, after one step of the optimisers that `fit` would make.
        plain_flops: FLOPs of one example in one step of a plain network of the same layers.
    """

    modelled: Cost
    measured: Cost
    plain_flops: float

    def modelled_flops(self, epochs: int, warm_start_epochs: int = 0) -> float:
        """Return the published FLOPs of one example over a run, with its warm start."""
        return epochs * self.modelled.flops + warm_start_epochs * self.plain_flops

    def measured_flops(self, epochs: int, warm_start_epochs: int = 0) -> float:
        """Return the FLOPs of one example over a run, with its warm start."""
        return epochs * self.measured.flops + warm_start_epochs * self.plain_flops


def count_costs(
    model: nn.Module,
    inputs: Any,
    *,
    num_samples: int = 1,
    optimizer: OptimizerName = "adam",
    scale_optimizer: ScaleOptimizerName = "adam",
) -> Costs:
    """Count what it costs to train a converted model; it is left as it was.

    Args:
        model: A model from `convert`.
        inputs: A batch of inputs, as the model takes them; two examples or more where it has
            batch norms.
        num_samples: Draws of the weights per step. A model without a posterior takes one pass,
            an ensemble one per member.
        optimizer: What moves means and plain weights: "sgd" (with momentum) or "adam".
        scale_optimizer: What moves scales: "adam" or "rmsprop".
    """
    if optimizer not in _STATES:
        raise ValueError(f"optimizer must be 'sgd' or 'adam', got {optimizer!r}")
    if scale_optimizer not in _SCALE_STATES:
        raise ValueError(f"scale_optimizer must be 'adam' or 'rmsprop', got {scale_optimizer!r}")
    if not isinstance(num_samples, int) or num_samples < 1:
        raise ValueError(f"num_samples must be a whole number >= 1, got {num_samples!r}")
    settings = FitSettings(epochs=1, optimizer=optimizer, scale_optimizer=scale_optimizer)
    flops = count_flops(model, inputs)
    sites = posteriors(model)
    plain_flops = (1 + _BACKWARD) * flops.dense_inference
    modelled_flops, counted = (1 + _BACKWARD) * flops.inference, flops.training
    share = 0.0
    if sites:
        share = sum(s.num_random for s in sites) / max(sum(s.num_live for s in sites), 1)
        modelled_flops = (1 + share) * (num_samples + _BACKWARD) * flops.inference
        counted = num_samples * flops.training
    states = (_STATES[optimizer], _SCALE_STATES[scale_optimizer])
    return Costs(
        modelled=_modelled(model, share, modelled_flops, states),
        measured=_measured(model, inputs, counted, settings),
        plain_flops=plain_flops,
    )


def _modelled(model: nn.Module, share: float, flops: float, states: tuple[int, int]) -> Cost:
    scales = {id(entry) for site in posteriors(model) for entry in site.scale_parameters()}
    means = [entry for entry in unique(model.parameters()) if id(entry) not in scales]
    number, num_bytes = sum(map(Tensor.numel, means)), sum(entry.nbytes for entry in means)
    # The parameter, its gradient, and what its optimiser keeps of it.
    copies = (2 + states[0]) + share * (2 + states[1])
    gradients = (1 + share) * num_bytes
    return Cost((1 + share) * number, 0, flops, copies * num_bytes, gradients)


def _measured(model: nn.Module, inputs: Any, flops: float, settings: FitSettings) -> Cost:
    before = RandomState.capture()
    try:
        kept, gradients = _kept_after_step(copy.deepcopy(model).train(), inputs, settings)
    finally:
        before.restore()
    num_gradient_bytes = sum(entry.nbytes for entry in gradients)
    return Cost(
        num_parameters=sum(entry.numel() for entry in unique(model.parameters())),
        num_buffers=sum(entry.numel() for entry in model.buffers()),
        flops=flops,
        num_bytes=sum(entry.nbytes for entry in kept) + num_gradient_bytes,
        num_gradient_bytes=num_gradient_bytes,
    )


def _kept_after_step(
    model: nn.Module, inputs: Any, settings: FitSettings
) -> tuple[list[Tensor], list[Tensor]]:
    """Take one step and return every tensor that is held until the next, gradients apart."""
    method = require_record(model).method

    def nll(output: Any, *, is_logged: bool = True) -> Tensor:
        del is_logged
        # Which loss is of no account: every gradient has the size of its parameter.
        return output_tensor(output).float().square().mean()

    inputs = settled(inputs, model, is_carried=method.carries_moments())
    part = method.nll(model, lambda: call_model(model, inputs), nll)
    elbo_loss(part, model, num_data=1).total.backward()
    parameters = unique(model.parameters())
    gradients = [entry.grad for entry in parameters if entry.grad is not None]
    kept = [*parameters, *model.buffers()]
    for each in make_optimizers(model, Classification(), settings):
        each.step()
        states = (value for state in each.state.values() for value in state.values())
        kept += [value for value in states if isinstance(value, Tensor)]
    return kept, gradients
