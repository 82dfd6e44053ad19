"""The average over M draws with the graph of one: sums over the noise, then one expression.

Covers every prior whose log density is made of statistics that the family can part into parameters
and noise (`Family.averaged`): polynomials of a location and a scale, any power of a single scale,
polynomials of a logarithm. The noise is drawn M times, one draw in memory at a time, without a
graph; the value and its gradients are those of the direct average over the same draws.

Reference: Nazarovs, Mehta, Lokhande, Singh (2021), "Graph reparameterizations for enabling 1000+
Monte Carlo iterations in Bayesian deep neural networks".
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from bayesify.distributions.estimator import repar
from bayesify.distributions.family import Family, Parameters, Prior
from bayesify.distributions.precision import at_least_float32


def _problem(family: Family, prior: Prior) -> str | None:
    names = f"the {family.name!r} family and the {prior.name!r} prior"
    found = prior.terms()
    if family.averaged(None) is None:
        return (
            f"estimator='repar' does not cover {names}: the {family.name!r} family has no noise "
            "of a fixed law"
        )
    if found is None:
        return (
            f"estimator='repar' does not cover {names}: the prior's log density is no sum of "
            "powers or logarithms"
        )
    for _, statistic in found[1]:
        if family.averaged(statistic) is None:
            return f"estimator='repar' does not cover {names}: {statistic} does not part"
    return None


@repar.register(Family, Prior, _problem)
def reparameterised(
    family: Family, parameters: Parameters, prior: Prior, num_samples: int
) -> Tensor:
    """Return the average of log q(w) − log p(w) over M draws."""
    # Cast once: what is cast in every term has its gradients rounded in every term.
    parameters = {name: at_least_float32(value) for name, value in parameters.items()}
    found = prior.terms()
    assert found is not None
    constant, terms = found
    parts = [family.averaged(None), *(family.averaged(statistic) for _, statistic in terms)]
    functions = list(dict.fromkeys(f for part in parts if part for f in part.of_noise))
    averages = _averages(family, parameters, functions, num_samples)
    total = -constant * parameters[family.parameter_names[0]].numel()
    for weight, part in zip((1.0, *(-weight for weight, _ in terms)), parts, strict=True):
        assert part is not None
        assembled = part.assemble(parameters, [averages[f] for f in part.of_noise])
        total = total + weight * assembled.sum()
    assert isinstance(total, Tensor)
    return total.to(parameters[family.parameter_names[0]].dtype)


@torch.no_grad()
def _averages(
    family: Family,
    parameters: Parameters,
    functions: list[Callable[[Tensor], Tensor]],
    num_samples: int,
) -> dict[Callable[[Tensor], Tensor], Tensor]:
    fixed = {name: value.detach() for name, value in parameters.items()}
    sums: dict[Callable[[Tensor], Tensor], Tensor] = {}
    for _ in range(num_samples):
        noise = family.noise(fixed)
        for function in functions:
            value = function(noise)
            if function not in sums:
                # A function may return the noise itself, which the next draw must not add to.
                sums[function] = value / num_samples
            else:
                sums[function].add_(value, alpha=1.0 / num_samples)
    return sums
