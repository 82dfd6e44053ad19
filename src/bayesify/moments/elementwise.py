"""How a function of one number at a time becomes a rule, in both forms.

The exact form asks for the moments of f(z), z normal; the first-order form is f(m) and
f'(m)^2 v. Both are computed in float32 at least, and give a mean of the type that came in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bayesify.moments.gaussian_functions import hermite_moments
from bayesify.moments.moments import Moments, precise, rule
from bayesify.moments.rule_table import Rule, current_rules
from bayesify.moments.watched_functions import seen

Function = Callable[..., Tensor]


@dataclass(frozen=True)
class Elementwise:
    """An element-wise function, its derivative, and the moments it gives.

    Attributes:
        value: The function itself, value(x, *parameters).
        slope: Its derivative, slope(x, *parameters).
        moments: Exact moments, moments(m, v, *parameters); None takes 16-node quadrature.
        parameters: Names and defaults of what the torch function takes after its input.
        coarse: The same as `moments` for values in half precision, which it is given as they are.
    """

    value: Function
    slope: Function
    moments: Callable[..., tuple[Tensor, Tensor]] | None = None
    parameters: Sequence[tuple[str, Any]] = ()
    coarse: Callable[..., tuple[Tensor, Tensor]] | None = None

    def register(self, *functions: Any) -> None:
        """File the rule under the torch functions that are this one."""
        rule(*functions)(self.as_rule())

    def as_rule(self) -> Rule:
        """Return the rule, called as the torch function is."""
        names = [name for name, _ in self.parameters]
        defaults = dict(self.parameters)

        def implementation(x: Moments, *args: Any, **kwargs: Any) -> Moments:
            # Positional or by name: modules, functions and the compiler differ in this.
            given = {**defaults, **dict(zip([*names, "inplace"], args, strict=False)), **kwargs}
            is_in_place = given.pop("inplace", False)
            result = self.apply(x, *(given[name] for name in names))
            return x.assign(result) if is_in_place else result

        return implementation

    def apply(self, x: Moments, *parameters: Any) -> Moments:
        """Return the moments of the function under the current choice of rules."""
        if x.variance_or_none is None:
            return Moments(self.value(x.expected, *parameters))
        return seen(x, lambda x: self._apply(x, *parameters))

    def _apply(self, x: Moments, *parameters: Any) -> Moments:
        mean, v = x.pair()
        is_half = mean.dtype in (torch.bfloat16, torch.float16)
        if self.coarse is not None and is_half and current_rules() != "taylor":
            return Moments(*self.coarse(mean, v, *parameters))
        m, v = precise(x)
        if current_rules() == "taylor":
            return Moments(self.value(mean, *parameters), self.slope(m, *parameters).square() * v)
        if self.moments is None:
            first, second = hermite_moments(lambda z: self.value(z, *parameters), m, v)
        else:
            first, second = self.moments(m, v, *parameters)
        return Moments(first.to(mean.dtype), second)
