"""The variance of a product of independent factors, for any bilinear operation.

Nothing cancels in it, all terms are positive: bfloat16 products are as good as those of the mean.
float16 is another matter. Its least number, 6e-8, is a usual variance, so its products are taken
in float32.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from bayesify.moments.moments import mean_of, precise_dtype, variance_dtype, variance_of

Product = Callable[[Tensor, Tensor], Tensor]


def product_variance(product: Product, left: Any, right: Any) -> Tensor | None:
    """Return (m_l^2 + v_l) * v_r + v_l * m_r^2, * the product; None where both are certain."""
    left_variance, right_variance = variance_of(left), variance_of(right)
    if left_variance is None and right_variance is None:
        return None
    right_mean = mean_of(right)
    dtype = product_dtype(mean_of(left), right_mean)
    terms: list[Tensor] = []
    with product_precision(right_mean):
        if right_variance is not None:
            terms.append(product(second_moment(left).to(dtype), right_variance.to(dtype)))
        if left_variance is not None:
            squares = right_mean.to(precise_dtype(right_mean.dtype)).square()
            terms.append(product(left_variance.to(dtype), squares.to(dtype)))
        return terms[0] if len(terms) == 1 else terms[0] + terms[1]


def second_moment(x: Any) -> Tensor:
    """Return m^2 + v, in float32 at least."""
    mean, variance = mean_of(x), variance_of(x)
    squares = mean.to(precise_dtype(mean.dtype)).square()
    return squares if variance is None else squares + variance


def product_dtype(left: Tensor, right: Tensor) -> torch.dtype:
    """Return the type of the factors of a variance."""
    return variance_dtype(torch.promote_types(left.dtype, right.dtype))


def product_precision(like: Tensor) -> AbstractContextManager[Any]:
    """Return a context in which autocast brings variances to bfloat16, but not to float16."""
    kind = like.device.type
    is_safe = torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind) == torch.bfloat16
    return nullcontext() if is_safe else full_precision(like)


def full_precision(like: Tensor) -> AbstractContextManager[Any]:
    """Return a context in which autocast does not bring variances to half precision."""
    kind = like.device.type
    if torch.is_autocast_enabled(kind):
        return torch.autocast(kind, enabled=False)
    return nullcontext()
