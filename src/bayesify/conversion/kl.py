"""The KL of a whole model: a walk over its posteriors, never a by-product of forward."""

from __future__ import annotations

from typing import NamedTuple

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
    alike, shared, terms = _grouped(sites)
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


Group = tuple[Family, Prior, str, int, torch.dtype, torch.device]
Shared = tuple[NormalPrior, torch.dtype, torch.device]


class _Groups(NamedTuple):
    alike: dict[Group, list[dict[str, Tensor]]]
    """Parameters of sites that can be laid end to end."""
    shared: dict[Shared, list[tuple[Tensor, Tensor]]]
    """Means and scales of Normal sites whose entries share scales."""
    alone: list[Tensor]
    """The KL of each other site."""


def _grouped(sites: list[Posterior]) -> _Groups:
    """Return what of the sites can be taken together, and how."""
    groups = _Groups({}, {}, [])
    for site in sites:
        parameters = site.random_parameters()
        first = parameters[site.family.parameter_names[0]]
        is_normal = type(site.family) is Normal and site.estimator == "closed"
        if hasattr(first, "full_tensor") or not site.prior.is_elementwise:
            groups.alone.append(whole(site.kl()))
        elif not site.is_tied_scale:
            how = (site.estimator, site.num_samples)
            key = (site.family, site.prior, *how, first.dtype, first.device)
            groups.alike.setdefault(key, []).append(parameters)
        elif is_normal and isinstance(site.prior, NormalPrior):
            pair = parameters["mean"], parameters["rho"]
            groups.shared.setdefault((site.prior, first.dtype, first.device), []).append(pair)
        else:
            groups.alone.append(site.kl())
    return groups


def _end_to_end(parameters: dict[str, Tensor], first: Tensor) -> dict[str, Tensor]:
    """Return the parameters of a site as vectors, their entries in the order of the memory.

    So a weight in channels last, and its gradient, are not copied to be joined with others.
    """
    order = sorted(range(first.ndim), key=first.stride, reverse=True)
    return {name: tensor.permute(order).flatten() for name, tensor in parameters.items()}


def whole(term: Tensor) -> Tensor:
    """Return a sum over the shards of a tensor: under FSDP each rank holds one."""
    gather = getattr(term, "full_tensor", None)
    return term if gather is None else gather()
