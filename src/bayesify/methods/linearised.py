"""A network linearised at its weights, with a Gaussian over some of them.

f(x; mean) + J(x) (w − mean) is the model that a Laplace posterior belongs to, and is what it is
predicted by (Immer, Korzepa, Bauer, 2021).
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from bayesify.batches import output_tensor
from bayesify.conversion.select import candidates
from bayesify.prediction.by_linearisation import derivable_attention


class Linearised(nn.Module):
    """A network and a Gaussian over some of its weights; called, it is the network.

    In a sampling context each call draws the weights w and returns f(x; mean) + J(x) (w − mean),
    by one forward-mode derivative: J is never formed.

    Args:
        network: The trained network.
        paths: Names of the tensors whose weights take part.
        shape: Shape of `scale`.

    Attributes:
        index: Positions of the random weights, ascending, in those tensors one after another.
        scale: Lower triangular factor of their covariance, or their standard deviations; NaN
            until it is found.
        prior_precision: Precision of the prior.
        noise_std: Standard deviation of the noise of a regression; 1 for classes.
    """

    index: Tensor
    scale: Tensor
    prior_precision: Tensor
    noise_std: Tensor

    def __init__(self, network: nn.Module, paths: Sequence[str], shape: tuple[int, ...]) -> None:
        super().__init__()
        self.network = network
        self.is_sampling = False
        # Every tensor's name in each module that has it; a module of two names counts once.
        places = {module: prefix for prefix, module in network.named_modules()}
        self.names = {
            each.path: [f"{places[module]}.{name}".lstrip(".") for module, name in each.owners]
            for each in candidates(network)
            if each.path in paths
        }
        like = next(network.parameters()).detach()
        self.register_buffer("index", torch.arange(shape[0], device=like.device))
        self.register_buffer("scale", like.new_full(shape, math.nan))
        for name in ("prior_precision", "noise_std"):
            self.register_buffer(name, like.new_full((), math.nan))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return the network's output, or in a sampling context one draw of the linearised one."""
        if not self.is_sampling:
            return self.network(*args, **kwargs)
        noise = torch.randn(len(self.index), dtype=self.scale.dtype, device=self.scale.device)
        shift = self.scale @ noise if self.scale.ndim == 2 else self.scale * noise
        mean = self.mean()
        with warnings.catch_warnings():
            # Of torch's own, about how it loads what forward-mode derivatives need.
            warnings.filterwarnings("ignore", message="`torch.jit.script` is deprecated")
            found = torch.func.jvp(self.outputs(*args, **kwargs), (mean,), (shift.to(mean.dtype),))
        return found[0] + found[1]

    def mean(self) -> Tensor:
        """Return the random weights as they are in the network."""
        return torch.cat([own.detach().flatten()[at] for _, own, at in self._places()])

    def outputs(self, *args: Any, **kwargs: Any) -> Callable[[Tensor], Tensor]:
        """Return the network's output for given inputs as a function of the random weights."""
        places = self._places()

        def output(weights: Tensor) -> Tensor:
            changed: dict[str, Tensor] = {}
            parts = weights.split([len(at) for *_, at in places])
            for (names, own, at), part in zip(places, parts, strict=True):
                new = own.flatten().index_copy(0, at, part.to(own.dtype)).view_as(own)
                changed |= dict.fromkeys(names, new)
            with derivable_attention():
                # Told to find other names itself, it would not put back a module that has two.
                options: dict[str, Any] = {"kwargs": kwargs, "tie_weights": False}
                found = torch.func.functional_call(self.network, changed, args, **options)
            return output_tensor(found)

        return output

    def _places(self) -> list[tuple[list[str], Tensor, Tensor]]:
        """Return the names, the values and the random positions of each tensor that has any."""
        tensors = [self.network.get_parameter(path) for path in self.names]
        starts = [0, *itertools.accumulate(tensor.numel() for tensor in tensors)]
        bounds = torch.tensor(starts[1:-1], dtype=torch.long, device=self.index.device)
        parts = self.index.tensor_split(torch.searchsorted(self.index, bounds).tolist())
        places = zip(self.names.values(), tensors, parts, starts[:-1], strict=True)
        return [(names, own, part - start) for names, own, part, start in places if len(part)]
