"""How good are explanations of a network's predictions: infidelity and largest sensitivity.

An explanation is the saliency of the predicted class, the absolute gradient of its logit. Its
infidelity is the mean squared difference between what it says a perturbation of the input does to
the logit and what it does; its sensitivity is how much it changes, at most, under a small shift of
the input, relative to its norm. Lower is better for both.

Reference: Yeh, Hsieh, Suggala, Inouye, Ravikumar (2019), "On the (in)fidelity and sensitivity of
explanations". The measures are captum's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from bayesify.batches import output_tensor
from bayesify.conversion.convert import require_record
from bayesify.moments import Moments


@dataclass(frozen=True)
class ExplanationQuality:
    """Of each example: infidelity and largest sensitivity of its explanation."""

    infidelity: Tensor
    sensitivity: Tensor


def explanation_quality(
    model: nn.Module,
    inputs: Tensor,
    *,
    by: str | None = None,
    noise_std: float = 0.1,
    radius: float = 0.02,
    num_perturbations: int = 20,
    batch_size: int | None = None,
    seed: int = 0,
) -> ExplanationQuality:
    """Explain the predicted classes of some inputs, and measure the explanations.

    Args:
        model: A converted classifier of one output row per example.
        inputs: Examples, of floating-point numbers.
        by: The way whose mean logits are explained: "moments" or "mean"; None takes moments for
            a model that predicts by them, and mean weights for all others, where nothing is drawn.
        noise_std: Standard deviation of the perturbations that infidelity is averaged over.
        radius: Largest shift of any number of an input that sensitivity looks at.
        num_perturbations: Perturbations per example, of either measure.
        batch_size: Perturbed examples per pass, no fewer than there are inputs; None takes all
            perturbations of all inputs in one.
        seed: Decides the perturbations.
    """
    metrics, attribution = _captum()
    method = require_record(model).method
    default = method.default_way()
    way = by if by is not None else (default if default == "moments" else "mean")
    if way not in ("moments", "mean"):
        raise ValueError(f"by must be 'moments' or 'mean', which draw nothing, got {way!r}")
    if batch_size is not None and batch_size < len(inputs):
        raise ValueError(
            f"batch_size must be at least the number of inputs, {len(inputs)}, got {batch_size}"
        )
    if batch_size is not None:
        batch_size = min(batch_size, len(inputs) * num_perturbations)  # captum warns of more
    modes = [(module, module.training) for module in model.modules()]
    try:
        model.eval()
        with method.sampling(model, way), torch.random.fork_rng(_devices(inputs)):
            torch.manual_seed(seed)
            return _measured(
                model,
                inputs,
                metrics,
                attribution,
                noise_std,
                radius,
                num_perturbations,
                batch_size,
            )
    finally:
        for module, mode in modes:
            module.training = mode


def _measured(
    model: nn.Module,
    inputs: Tensor,
    metrics: Any,
    attribution: Any,
    noise_std: float,
    radius: float,
    num_perturbations: int,
    batch_size: int | None,
) -> ExplanationQuality:
    passes = {"n_perturb_samples": num_perturbations, "max_examples_per_batch": batch_size}
    logits = _mean_logits(model)
    with torch.no_grad():
        classes = logits(inputs).argmax(1)
    explain = attribution.Saliency(logits).attribute

    def signed(examples: Any, target: Tensor = classes) -> Any:
        if isinstance(examples, tuple):  # as captum hands over what it has shifted
            return tuple(signed(each, target) for each in examples)
        found = explain(examples.detach().requires_grad_(), target=target, abs=False)
        return found.contiguous()  # captum takes views of them, which channels last has not

    def perturb(these: Tensor) -> tuple[Tensor, Tensor]:
        noise = noise_std * torch.randn_like(these)
        return noise, these - noise

    infidelity = metrics.infidelity(
        logits,
        perturb,
        inputs,
        signed(inputs).detach(),
        target=classes,
        **passes,
    )
    sensitivity = metrics.sensitivity_max(
        signed,
        inputs,
        perturb_radius=radius,
        target=classes,
        **passes,
    )
    return ExplanationQuality(infidelity.detach().cpu(), sensitivity.detach().cpu())


def _mean_logits(model: nn.Module) -> Callable[[Tensor], Tensor]:
    def logits(inputs: Tensor) -> Tensor:
        output = output_tensor(model(inputs), (Tensor, Moments))
        return output.expected if isinstance(output, Moments) else output

    return logits


def _devices(inputs: Tensor) -> list[torch.device]:
    return [inputs.device] if inputs.is_cuda else []


def _captum() -> tuple[Any, Any]:
    try:
        from captum import attr, metrics
    except ImportError as error:
        raise ImportError(
            'explanation_quality needs captum: pip install "bayesify[explain]"'
        ) from error
    return metrics, attr
