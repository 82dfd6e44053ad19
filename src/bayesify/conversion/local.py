"""Local reparameterisation: noise on a layer's outputs instead of its weights.

For a layer linear in its weights with a Gaussian posterior the output of one example is Gaussian,
so drawing it directly has the law of a sampled weight, with fresh noise per example and a lower
gradient variance. Two uses of a weight (two examples, two tokens, two positions of a convolution)
get independent noise: exact for the marginals, blind to the correlation between uses.

Reference: Kingma, Salimans, Welling (2015).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bayesify.conversion.live_rows import by_live_rows, live_rows
from bayesify.conversion.local_linear import can_be_one_step, local_linear, product
from bayesify.conversion.posterior import Posterior
from bayesify.conversion.sparse_linear import can_be_compressed, compressed_linear
from bayesify.registry import TypeRegistry

# Keeps the root differentiable at 0; its own noise, 1e-10, is below float32 resolution of any
# output that matters.
_LEAST_VARIANCE = 1e-20

FunctionalForm = Callable[..., Tensor]
"""form(layer, inputs, weight, bias, *args): the layer's forward with other weights."""

functional_forms: TypeRegistry[FunctionalForm] = TypeRegistry("functional form")


@functional_forms.register(nn.Linear)
def _linear(layer: nn.Linear, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    del layer
    return F.linear(inputs, weight, bias)


@functional_forms.register(nn.Conv1d)
@functional_forms.register(nn.Conv2d)
@functional_forms.register(nn.Conv3d)
def _convolution(layer: Any, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return layer._conv_forward(inputs, weight, bias)


def _transposed(num_dims: int, convolve: Callable[..., Tensor]) -> FunctionalForm:
    def form(
        layer: Any,
        inputs: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        output_size: list[int] | None = None,
    ) -> Tensor:
        shape = (layer.stride, layer.padding, layer.kernel_size)
        padding = layer._output_padding(inputs, output_size, *shape, num_dims, layer.dilation)
        options = (layer.stride, layer.padding, padding, layer.groups, layer.dilation)
        return convolve(inputs, weight, bias, *options)

    return form


functional_forms.register(nn.ConvTranspose1d)(_transposed(1, F.conv_transpose1d))
functional_forms.register(nn.ConvTranspose2d)(_transposed(2, F.conv_transpose2d))
functional_forms.register(nn.ConvTranspose3d)(_transposed(3, F.conv_transpose3d))


@functional_forms.register(nn.Embedding)
def _embedding(layer: nn.Embedding, inputs: Tensor, weight: Tensor, bias: None) -> Tensor:
    del bias
    by_frequency = layer.scale_grad_by_freq
    return F.embedding(inputs, weight, layer.padding_idx, scale_grad_by_freq=by_frequency)


def is_linear(form: FunctionalForm) -> bool:
    """Whether this is the functional form of a linear layer."""
    return form is _linear


def functional_form(kind: type[nn.Module]) -> FunctionalForm | None:
    """Return the functional form of a type of layer, or None where its forward is not known.

    A subclass that overrides `forward` is not known: what it does with the weight is its own.
    """
    registered = {key for (key,) in functional_forms}
    known = next((ancestor for ancestor in kind.__mro__ if ancestor in registered), None)
    if known is None or any(_differs(kind, known, name) for name in ("forward", "_conv_forward")):
        return None
    return functional_forms.find(known)


def _differs(kind: type, known: type, name: str) -> bool:
    return getattr(kind, name, None) is not getattr(known, name, None)


def local_forward(
    form: FunctionalForm,
    layer: nn.Module,
    weight: Posterior,
    bias: Posterior | Tensor | None,
    inputs: Tensor,
    *args: Any,
    **kwargs: Any,
) -> Tensor:
    """Return form(x, W, b) + sqrt(form(x², Var W, Var b)) · noise."""
    is_random = isinstance(bias, Posterior)
    if not is_random and (rows := live_rows(layer, weight, inputs)) is not None:
        part = tuple(moment.index_select(0, rows) for moment in weight.dense_moments())
        return by_live_rows(
            layer, rows, bias, lambda bias: _noisy(form, layer, part, (bias, None), inputs)
        )
    if form is _linear and not is_random and can_be_compressed(weight, inputs):
        return _compressed(weight, bias, inputs)
    if not is_random and (shared := _shared_variance(form, layer, weight)) is not None:
        return _with_shared_variance(form, layer, weight, bias, inputs, shared)
    moments = weight.dense_moments()
    bias_moments = bias.dense_moments() if is_random else (bias, None)
    return _noisy(form, layer, moments, bias_moments, inputs, *args, **kwargs)


def _noisy(
    form: FunctionalForm,
    layer: nn.Module,
    moments: tuple[Tensor, ...],
    bias_moments: tuple[Tensor | None, Tensor | None],
    inputs: Tensor,
    *args: Any,
    **kwargs: Any,
) -> Tensor:
    weight_mean, spread = moments
    bias_mean, bias_spread = bias_moments
    if form is _linear and can_be_one_step(inputs, weight_mean, bias_mean, spread, bias_spread):
        return local_linear(inputs, weight_mean, bias_mean, spread, bias_spread, _LEAST_VARIANCE)
    mean = form(layer, inputs, weight_mean, bias_mean, *args, **kwargs)
    if mean.dtype == torch.float16:
        # Squares leave the range of float16; bfloat16 keeps it and 0.4 % of the variance.
        with torch.autocast(mean.device.type, enabled=False):
            squares = _square(inputs, torch.float32)
            variance = form(layer, squares, spread, bias_spread, *args, **kwargs)
    else:
        if not torch.is_autocast_enabled(mean.device.type):
            spread = spread.to(mean.dtype)
            bias_spread = None if bias_spread is None else bias_spread.to(mean.dtype)
        squares = _square(inputs, inputs.dtype)
        variance = form(layer, squares, spread, bias_spread, *args, **kwargs)
    std = variance.to(_noise_type(mean)).clamp_min(_LEAST_VARIANCE).sqrt()
    return mean + (std * torch.randn_like(std)).to(mean.dtype)


def _compressed(weight: Posterior, bias: Tensor | None, inputs: Tensor) -> Tensor:
    """Return the noisy output of a linear layer by products with its live weights alone."""
    mean = compressed_mean(weight, bias, inputs)
    spread = weight.family.variance(weight.random_parameters()).to(inputs.dtype)
    variance = compressed_linear(weight, spread, inputs.square())
    std = variance.clamp_min(_LEAST_VARIANCE).sqrt()
    return mean + std * torch.randn_like(std)


def compressed_mean(weight: Posterior, bias: Tensor | None, inputs: Tensor) -> Tensor:
    """Return the output of a linear layer at its mean weights, by its live weights alone."""
    live = cast(Tensor, getattr(weight, weight.family.parameter_names[0]))
    output = compressed_linear(weight, live, inputs)
    return output if bias is None else output + bias


def _shared_variance(form: FunctionalForm, layer: nn.Module, weight: Posterior) -> Tensor | None:
    """Return the variance that all weights of an output unit share, shaped as its outputs are."""
    is_grouped = getattr(layer, "groups", 1) != 1
    if not weight.is_tied_scale or is_grouped or form not in (_linear, _convolution):
        return None
    variance = weight.family.variance(weight.random_parameters())
    if variance.shape != (weight.shape[0], *[1] * (len(weight.shape) - 1)):
        return None  # multiplicative noise: a shared rate is no shared variance
    return variance[:, 0]


def _with_shared_variance(
    form: FunctionalForm,
    layer: nn.Module,
    weight: Posterior,
    bias: Tensor | None,
    inputs: Tensor,
    shared: Tensor,
) -> Tensor:
    """Return the layer's noisy output with one sum of squares in place of a second product."""
    weight_mean, std = weight.dense_mean(), shared.clamp_min(_LEAST_VARIANCE).sqrt()
    if form is _linear:
        is_plain = can_be_one_step(inputs, weight_mean, bias)
        mean = (product if is_plain else F.linear)(inputs, weight_mean, bias)
        kind = _noise_type(mean)
        norm = torch.linalg.vector_norm(inputs, dim=-1, keepdim=True, dtype=kind)
    else:
        mean = form(layer, inputs, weight_mean, bias)
        kind = _noise_type(mean)
        with torch.autocast(mean.device.type, enabled=False):
            squares = inputs.to(kind).square()
            sums = form(layer, squares, squares.new_ones(1, *weight.shape[1:]), None)
            norm = sums.clamp_min(_LEAST_VARIANCE).sqrt()
    noise = torch.randn(mean.shape, dtype=kind, device=mean.device)
    return mean + (noise * norm * std.to(kind)).to(mean.dtype)


def _square(inputs: Tensor, dtype: torch.dtype) -> Tensor:
    # An embedding's inputs are indices: it selects rows, and rows of the variance likewise.
    return inputs.to(dtype).square() if inputs.is_floating_point() else inputs


def _noise_type(mean: Tensor) -> torch.dtype:
    return torch.float64 if mean.dtype == torch.float64 else torch.float32
