"""Networks that give means and variances, ours and those of FastBNNs, of the same posterior."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
import torch.nn.functional as F
from fastbnns.bnn import inference, losses, priors, types, wrappers
from fastbnns.bnn.base import BNN
from moments_gpu import NUM_DATA, Reading, expected_nll
from torch import Tensor, nn

import bayesify as bf
from bayesify.conversion.posterior import posteriors
from bayesify.moments import moment_rules
from bayesify.moments.written_down import scales_written_down
from bayesify.training.subnormals import subnormals_as_zero

ON_GPU = torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"
# Every contestant, and the posterior it is timed with.
SCALES: dict[str, Any] = {
    "plain": "weight",
    "fastbnns": "weight",
    "fastbnns, by its rules": "weight",
    "exact": "weight",
    "exact, per unit": "out",
    "pooled, per unit": "out",
}
# FastBNNs' own arguments: means stay as they are, and norms have no variance, as with us.
KEPT = {"resample_mean": False}
BY_TYPE = {name: {"learn_var": False, **KEPT} for name in ("BatchNorm2d", "LayerNorm")}
FORMULA = {"moment_propagator": inference.ReLUa()}
RELU = wrappers.BayesianModule(nn.ReLU(), **FORMULA)
# The same of functions that are no modules.
HANDLERS: dict[Any, Callable[..., Any]] = {
    F.relu: lambda _, x, *__, **___: RELU(x),
    F.adaptive_avg_pool2d: lambda _, x, __: F.avg_pool2d(x, x.shape[-1]),
}


class Fast(BNN):
    """A network as FastBNNs converts it, with tensors at both of its ends."""

    def __init__(self, net: nn.Module, what: str = "fastbnns") -> None:
        by_type = {**BY_TYPE, "ReLU": {} if what == "fastbnns" else FORMULA}
        super().__init__(net, wrapper_kwargs_global=KEPT, wrapper_kwargs_type=by_type)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:  # pyright: ignore
        """Return the mean and the variance of every output."""
        output = super().forward(types.MuVar(images))
        return output.mu, output.var


def fast(posterior: nn.Module, what: str = "fastbnns") -> Fast:
    """Return a posterior in FastBNNs: the same means, standard deviations and norms."""
    network = copy.deepcopy(Fast(bf.revert(posterior), what))
    for path, module in network.bnn.named_modules():
        for name, rho in getattr(module, "_module_params", {}).items():
            if name.endswith("_rho") and rho is not None:
                site_name = f"{name.removesuffix('_rho')}_posterior"
                site = getattr(posterior.get_submodule(path), site_name)
                # Both libraries take a softplus of it.
                rho.data = site.rho.detach().expand_as(site.mean).clone()
    return network


def by_moments(network: nn.Module) -> nn.Module:
    for site in posteriors(network):
        site.how = "moments"
    return Reading(network)


class Contestant(NamedTuple):
    """A pass to means and variances (of a plain network: outputs), and the KL of its weights."""

    network: nn.Module
    kl: Callable[[], Tensor | float]
    rules: Any = "exact"
    is_by_rules: bool = False

    @contextmanager
    def as_chosen(self, precision: str) -> Iterator[None]:
        """Choose the precision, and how moments go through functions."""
        theirs = patch.dict(types.MUVAR_HANDLERS, HANDLERS) if self.is_by_rules else nullcontext()
        mixed = torch.autocast(DEVICE, torch.bfloat16, enabled=precision == "bfloat16")
        with moment_rules(self.rules), theirs, scales_written_down(), mixed:
            yield

    @torch.no_grad()
    def infer(self, network: Any, images: Tensor, precision: str) -> tuple[Tensor, ...]:
        """Return means and variances."""
        with self.as_chosen(precision):
            return network(images)

    def step(self, network: Any, batch: Any, precision: str, optimizer: Any) -> None:
        """Train on images and their classes."""
        with subnormals_as_zero(torch.device(DEVICE)):
            with self.as_chosen(precision):
                output = network(batch[0])
            (expected_nll(output, batch[1]) + self.kl() / NUM_DATA).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)


def contestant(what: str, posterior: nn.Module) -> Contestant:
    form: Any = torch.channels_last if ON_GPU else torch.preserve_format
    plain, rules = bf.revert(posterior).to(DEVICE, memory_format=form), what.split(",")[0]
    if what == "plain":
        return Contestant(Reading(plain), lambda: 0.0)
    if rules == "fastbnns":
        network = fast(posterior, what).to(DEVICE, memory_format=form)
        normal = torch.distributions.Normal(torch.zeros(1), torch.ones(1))
        kl = losses.KLDivergence(priors.Distribution(normal).to(DEVICE))
        return Contestant(network, partial(kl, network), "exact", what != "fastbnns")
    network = bf.convert(plain, bf.MomentPropagation(rules=rules, scale=SCALES[what]))  # pyright: ignore
    network.load_state_dict(posterior.state_dict())
    return Contestant(by_moments(network), partial(bf.kl, network), rules)
