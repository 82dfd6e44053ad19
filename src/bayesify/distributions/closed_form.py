"""The exact KL of any pair whose entropy and averages are known: −entropy − E[log prior]."""

from __future__ import annotations

import torch
from torch import Tensor

from bayesify.distributions.estimator import closed
from bayesify.distributions.family import Family, Parameters, Prior
from bayesify.distributions.log_uniform import LogUniformPrior
from bayesify.distributions.precision import at_least_float32


def _problem(family: Family, prior: Prior) -> str | None:
    # What is known does not depend on the numbers: a tensor of one entry tells.
    trial = family.initial(torch.ones(1), torch.full((1,), 0.1))
    names = f"the {family.name!r} family and the {prior.name!r} prior"
    if isinstance(prior, LogUniformPrior) and prior.kl != "exact":
        return f"kl={prior.kl!r} is a fit for Normal posteriors: take kl='exact' for {names}"
    found = prior.terms()
    if family.entropy(trial) is None or found is None:
        return f"no closed form is known for {names}"
    for _, statistic in found[1]:
        if family.expected(statistic, trial) is None:
            return f"no closed form is known for {names}: it needs the average of {statistic}"
    return None


@closed.register(Family, Prior, _problem)
def closed_by_averages(
    family: Family, parameters: Parameters, prior: Prior, num_samples: int = 0
) -> Tensor:
    """Return −entropy − constant − Σ weight · E[statistic], summed over entries."""
    del num_samples
    # Once: where several terms of a gradient are rounded to bfloat16 their sum is not its rounding.
    parameters = {name: at_least_float32(value) for name, value in parameters.items()}
    entropy, found = family.entropy(parameters), prior.terms()
    assert entropy is not None
    assert found is not None
    constant, terms = found
    total = -entropy - constant * parameters[family.parameter_names[0]].numel()
    for weight, statistic in terms:
        average = family.expected(statistic, parameters)
        assert average is not None
        total = total - weight * average.sum()
    return total
