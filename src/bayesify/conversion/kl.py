"""The KL of a whole model: a walk over its posteriors, never a by-product of forward."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from bayesify.conversion.posterior import Posterior, posteriors
from bayesify.distributions import Family, Normal, NormalPrior, Prior, estimators
from bayesify.distributions.shared_scales import kl_of_shared_scales
from bayesify.types import device_of


def kl(model: nn.Module) -> Tensor:
    """Return KL(posterior ‖ prior) of a model in nats: a sum over its random weights.

    Tied weights count once. A model without a posterior has KL 0. Divide by the number of
    training examples where the likelihood is a mean over examples; `elbo_loss` does.
    """
    sites = [site for site in posteriors(model) if site.num_random]
    if not sites:
        return torch.zeros((), device=device_of(model))
    shared, others = _with_shared_scales(sites)
    alike, terms = _grouped(others)
    for (prior, *_), members in shared.items():
        means, rhos = zip(*members, strict=True)
        terms.append(kl_of_shared_scales(means, rhos, prior))
    for (family, prior, estimator, num_samples, *_), members in alike.items():
        # One pass over all sites that share a family and a prior: a few kernels, not a few each.
        first = family.parameter_names[0]
        flat = [_end_to_end(member, member[first]) for member in members]
        parameters = {
            name: torch.cat([member[name] for member in flat]) for name in family.parameter_names
        }
        joined = family.joined(tuple(member[first].numel() for member in members))
        terms.append(estimators[estimator](joined, parameters, prior, num_samples))
    if len(terms) == 1:
        return terms[0]
    # A model spread over several devices has terms on each; one number needs one of them.
    device = next(sites[0].parameters()).device
    return torch.stack([term.to(device) for term in terms]).sum()


Shared = dict[tuple[NormalPrior, torch.dtype, torch.device], list[tuple[Tensor, Tensor]]]


def _with_shared_scales(sites: list[Posterior]) -> tuple[Shared, list[Posterior]]:
    """Return means and scales of Normal sites whose entries share scales, and the other sites."""
    found: Shared = {}
    others: list[Posterior] = []
    for site in sites:
        parameters = site.random_parameters()
        is_normal = type(site.family) is Normal and type(site.prior) is NormalPrior
        is_sharded = any(hasattr(each, "full_tensor") for each in parameters.values())
        if site.is_tied_scale and is_normal and site.estimator == "closed" and not is_sharded:
            mean, rho = parameters["mean"], parameters["rho"]
            key = (cast(NormalPrior, site.prior), mean.dtype, mean.device)
            found.setdefault(key, []).append((mean, rho))
        else:
            others.append(site)
    return found, others


Group = tuple[Family, Prior, str, int, torch.dtype, torch.device]


def _grouped(sites: list[Posterior]) -> tuple[dict[Group, list[dict[str, Tensor]]], list[Tensor]]:
    """Return the parameters of sites that can be taken together, and the KL of the others."""
    alike: dict[Group, list[dict[str, Tensor]]] = {}
    alone: list[Tensor] = []
    for site in sites:
        parameters = site.random_parameters()
        first = parameters[site.family.parameter_names[0]]
        is_sharded = hasattr(first, "full_tensor")
        is_tied_alone = site.is_tied_scale and not _joins_tied(first.device)
        if is_sharded or is_tied_alone or not site.prior.is_elementwise:
            alone.append(whole(site.kl()))
        else:
            how = (site.estimator, site.num_samples)
            key = (site.family, site.prior, *how, first.dtype, first.device)
            alike.setdefault(key, []).append(parameters)
    return alike, alone


def _joins_tied(device: torch.device) -> bool:
    """Whether a scale that weights share is better repeated for each of them than taken apart.

    On a CPU every entry costs; elsewhere the calls that a tensor of its own would take cost more.
    """
    return device.type != "cpu"


def _end_to_end(parameters: dict[str, Tensor], first: Tensor) -> dict[str, Tensor]:
    """Return the parameters of a site as vectors, their entries in the order of the memory.

    So a weight in channels last, and its gradient, are not copied to be joined with others. Shared
    scales are repeated.
    """
    order = sorted(range(first.ndim), key=first.stride, reverse=True)
    return {
        name: tensor.expand(first.shape).permute(order).flatten()
        for name, tensor in parameters.items()
    }


def whole(term: Tensor) -> Tensor:
    """Return a sum over the shards of a tensor: under FSDP each rank holds one."""
    gather = getattr(term, "full_tensor", None)
    return term if gather is None else gather()
