"""The compiled model of a run, and its passes captured in CUDA graphs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from bayesify.conversion.kl import kl
from bayesify.conversion.posterior import posteriors

MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
_WITH_GRAPHS = ("reduce-overhead", "max-autotune")


def check_compile(choice: object) -> None:
    """Raise a ValueError unless this is a choice of `compile`."""
    if not isinstance(choice, bool) and choice not in MODES:
        raise ValueError(
            f"compile must be True, False or a mode of torch.compile, {', '.join(MODES)}; "
            f"got {choice!r}"
        )


class PassWithKL(nn.Module):
    """A model that returns its KL beside its output, for compiled code to see both.

    Their gradients are then added where those of the output are written; apart, each of a model's
    parameters takes two kernels more in every step, one to make a gradient and one to add it.

    Attributes:
        wants_kl: Whether passes compute it; where not, what they return has None in its place.
        divergence: The KL of the last pass that has a gradient of it, since it was set to None.
    """

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        super().__init__()
        self.model = model
        self.kind = device.type
        self.wants_kl = True
        self.divergence: Tensor | None = None

    def forward(self, *args: Any, **kwargs: Any) -> tuple[Any, Tensor | None]:
        """Return the output and the KL."""
        output = self.model(*args, **kwargs)
        if not self.wants_kl:
            return output, None
        with torch.autocast(self.kind, enabled=False):
            return output, kl(self.model)

    def output_of(self, result: tuple[Any, Tensor | None]) -> Any:
        """Return the output of what a pass returned, and keep the KL.

        A method may make passes without gradients too, whose KL is of no use.
        """
        output, found = result
        if found is not None and found.requires_grad:
            self.divergence = found
        return output


def with_kl(
    model: nn.Module, choice: bool | str, device: torch.device, strategy: str
) -> PassWithKL | None:
    """Return what to compile in the place of a model, or None: the model itself.

    The KL stays outside where it is an average over draws, many passes of its own, where a process
    has a part of the parameters only, and under torch 2.10, which cannot compile it.
    """
    estimators = {site.estimator for site in posteriors(model)}
    is_whole = strategy != "fsdp" and torch_release() >= (2, 11)
    is_inside = choice is not False and estimators == {"closed"} and is_whole
    return PassWithKL(model, device) if is_inside else None


def torch_release() -> tuple[int, ...]:
    """Return the first two numbers of torch's version."""
    return tuple(int(part) for part in torch.__version__.split(".")[:2])


def compiled(
    model: nn.Module,
    choice: bool | str,
    device: torch.device,
    on_gpu: Mapping[str, Any] | None = None,
) -> Any:
    """Return the model as it is to be called: compiled in this mode, or itself.

    Args:
        model: The model.
        choice: True, False or a mode.
        device: Where it will run.
        on_gpu: Options for a GPU, beside those the mode stands for.
    """
    if choice is False:
        return model
    return torch.compile(model, options=compile_options(choice, device, on_gpu))


def compile_options(
    choice: bool | str, device: torch.device, on_gpu: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return what a mode stands for on a device, and the rest that is to be set there.

    Of `on_gpu`, which is about speed alone, that part which this torch has.
    """
    from torch._inductor import list_mode_options, list_options

    usual = list_mode_options("default" if choice is True else str(choice))
    if device.type == "cpu":
        # Inductor's own random numbers take 70 ns each on a CPU, torch's a twentieth of that.
        return {**usual, "fallback_random": True}
    known = set(list_options())
    own = {name: value for name, value in (on_gpu or {}).items() if name in known}
    return {**usual, **_without_wrong_sums(), **own}


def _without_wrong_sums() -> dict[str, Any]:
    """Return an option without which some gradients come out wrong on a GPU.

    Of sums along both sides of a tensor in one kernel, torch 2.10 can return other numbers
    (pytorch issue 190796) and 2.11 other shapes (178080), as for the class token of a ViT; 2.13
    has what mends both.
    """
    return {"triton.mix_order_reduction": False} if torch_release() < (2, 13) else {}


def begin_pass(choice: bool | str, device: torch.device) -> None:
    """Say that nothing is needed any more of what captured passes have returned so far.

    Once said, the memory of a graph is used again only where it is said: passes between two of
    these, as those of several draws, keep their outputs and their gradients.
    """
    if choice in _WITH_GRAPHS and device.type == "cuda":
        torch.compiler.cudagraph_mark_step_begin()
