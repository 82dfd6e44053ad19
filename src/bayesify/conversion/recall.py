"""Repeat a draw, for a gradient checkpoint that calls its layers again.

A checkpoint drops what a layer computed and calls the layer again in the backward pass, outside
the model's forward. The layer must then see the weights of the forward that is differentiated.
Keeping those would cost a copy of the network, so the state of the random generator before each
draw is kept instead, and the draw is made again.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch._compile import _disable_dynamo
from torch.autograd.graph import saved_tensors_hooks


class Pass:
    """One forward with gradients: alive while its graph is, running while that is walked."""

    def __init__(self) -> None:
        self.is_running = False

    def watch(self, output: Any) -> None:
        """Learn from the graph of the outputs when a backward pass goes through this forward."""
        for tensor in _tensors(output):
            if tensor.grad_fn is not None:
                tensor.grad_fn.register_prehook(self._begin)

    def _begin(self, gradients: object) -> None:
        del gradients
        if not self.is_running:
            self.is_running = True
            torch.autograd.Variable._execution_engine.queue_callback(self._end)

    def _end(self) -> None:
        self.is_running = False


@dataclass(frozen=True)
class Drawn:
    """How one tensor was read in one forward pass."""

    made_in: weakref.ref[Pass]
    how: str
    state: Tensor | None

    @property
    def is_alive(self) -> bool:
        """Whether a backward pass through that forward can still come."""
        return self.made_in() is not None

    @property
    def is_running(self) -> bool:
        """Whether a backward pass goes through that forward now."""
        made_in = self.made_in()
        return made_in is not None and made_in.is_running

    def is_same_draw(self, other: Drawn) -> bool:
        """Whether both forwards read the same value."""
        if self.state is None or other.state is None:
            return self.how == other.how and self.state is other.state
        return self.how == other.how and torch.equal(self.state, other.state)


def is_recomputing() -> bool:
    """Whether this runs inside a backward pass, where only a checkpoint calls a layer.

    Compiled code keeps the answer of the time it was compiled: a checkpoint calls a compiled
    layer again without the draw the forward held, so it is compiled anew.
    """
    return torch._C._current_graph_task_id() != -1


# What torch.compiler.assume_constant_result does, without importing the compiler.
vars(is_recomputing)["_dynamo_marked_constant"] = True


@_disable_dynamo
def refuse_compiled_code() -> NoReturn:
    """Say that a compiled layer cannot be called again by a checkpoint around it.

    It would be compiled anew, to save other tensors than the ones the checkpoint looks for.
    """
    raise RuntimeError(
        "a gradient checkpoint calls a compiled layer again, which cannot repeat its draw. Compile "
        "the whole model, or the function the checkpoint is in, so that the checkpoint is inside "
        "the compiled code"
    )


def draw_to_repeat(records: Sequence[Drawn], *, was_read_alone: bool) -> Drawn | None:
    """Return how the forward that is differentiated now read a tensor, None where it did not.

    Args:
        records: How earlier forwards read the tensor, the latest last.
        was_read_alone: Whether its latest read was a layer called by itself.

    Raises:
        RuntimeError: Two forwards with different draws are differentiated together.
    """
    alive = [record for record in records if record.is_alive]
    known = [record for record in alive if record.is_running]
    if not known and not was_read_alone:
        # No forward is seen to run where only an inner tensor, no output, is differentiated.
        known = alive or list(records[-1:])
    if not all(record.is_same_draw(known[-1]) for record in known):
        raise RuntimeError(
            "a gradient checkpoint calls a layer again, but this backward pass goes through two "
            "forward passes with different draws, so the draw to repeat is unknown. Call backward "
            "after every forward (gradients accumulate), or make both forwards inside "
            "one_sample(model)"
        )
    return known[-1] if known else None


def generator_state(device: torch.device) -> Tensor | None:
    """Return the state of a device's random generator, None where it cannot be read."""
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        return None
    generator = _generator(device)
    return None if generator is None else generator.get_state()


def repeat(draw: Callable[[], Tensor], state: Tensor, device: torch.device) -> Tensor:
    """Make a draw again from the state its generator had, and leave the generator as it is."""
    generator = _generator(device)
    assert generator is not None, "a state was read from it"
    now = generator.get_state()
    if torch.equal(now, state):
        # The checkpoint has rewound the generator to just here: the draw was made inside it, and
        # must use up as many random numbers, and save as many tensors, as it did then.
        return draw()
    generator.set_state(state)
    try:
        # Made outside the checkpoint, which counts what is saved: these hooks hide it.
        with saved_tensors_hooks(_unchanged, _unchanged):
            return draw()
    finally:
        generator.set_state(now)


def _generator(device: torch.device) -> torch.Generator | None:
    if device.type == "cpu":
        return torch.default_generator
    if device.type == "mps":
        return torch.mps._get_default_mps_generator()
    generators = getattr(torch.get_device_module(device), "default_generators", None)
    return None if generators is None else generators[device.index or 0]


def _unchanged(tensor: Tensor) -> Tensor:
    return tensor


def _tensors(output: Any, depth: int = 4) -> Iterator[Tensor]:
    if isinstance(output, Tensor):
        yield output
    elif depth == 0 or isinstance(output, (str, nn.Module)):
        return
    elif isinstance(output, Mapping):
        for entry in output.values():
            yield from _tensors(entry, depth - 1)
    elif isinstance(output, (tuple, list, set)):
        for entry in output:
            yield from _tensors(entry, depth - 1)
    elif hasattr(output, "__dict__"):
        for entry in vars(output).values():
            yield from _tensors(entry, depth - 1)
