"""The variance of a product of independent factors, for any bilinear operation."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from bayesify.moments.moments import mean_of, variance_dtype, variance_of

Product = Callable[[Tensor, Tensor], Tensor]


def product_variance(product: Product, left: Any, right: Any) -> Tensor | None:
    """Return (m_l^2 + v_l) * v_r + v_l * m_r^2, * the product; None where both are certain."""
    left_variance, right_variance = variance_of(left), variance_of(right)
    if left_variance is None and right_variance is None:
        return None
    left_mean, right_mean = mean_of(left), mean_of(right)
    dtype = variance_dtype(torch.promote_types(left_mean.dtype, right_mean.dtype))
    with full_precision(left_mean):
        terms: list[Tensor] = []
        if right_variance is not None:
            second = left_mean.to(dtype).square()
            if left_variance is not None:
                second = second + left_variance
            terms.append(product(second, right_variance.to(dtype)))
        if left_variance is not None:
            terms.append(product(left_variance.to(dtype), right_mean.to(dtype).square()))
        return terms[0] if len(terms) == 1 else terms[0] + terms[1]


def full_precision(like: Tensor) -> AbstractContextManager[Any]:
    """Return a context in which autocast does not bring variances to half precision."""
    kind = like.device.type
    if torch.is_autocast_enabled(kind):
        return torch.autocast(kind, enabled=False)
    return nullcontext()
