"""What one training step costs: its time, the memory it holds, and the size of a graph.

Memory is what torch allocates: the most held at one time, of which `peak_bytes` counts the
parameters, the optimiser's averages and all that a step adds to them, on a GPU and on a CPU alike.
Time is the clock's on a GPU, waited for, and the process's own on a CPU, where other processes
take turns with this one.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

MOST_REPEATS = 15
Key = TypeVar("Key", bound=Hashable)


@dataclass
class TrainingStep:
    """One step of training: gradients cleared, the loss, its gradients, Adam.

    Attributes:
        loss: Returns the loss, and the KL in it where that has a graph of its own.
        model: What is trained.
    """

    loss: Callable[[], tuple[Tensor, Tensor | None]]
    model: nn.Module
    optimizer: torch.optim.Optimizer = field(init=False)

    def __post_init__(self) -> None:
        self.optimizer = torch.optim.Adam(self.model.parameters(), 1e-3)

    def __call__(self, look_at_kl: Callable[[Tensor], object] | None = None) -> None:
        """Take the step; `look_at_kl` sees the KL while its graph is there."""
        self.optimizer.zero_grad(set_to_none=True)
        total, kl = self.loss()
        if look_at_kl is not None and kl is not None:
            look_at_kl(kl)
        del kl
        total.backward()
        self.optimizer.step()

    def held_bytes(self) -> int:
        """Return the bytes of the parameters and of the optimiser's averages."""
        averages = [v for state in self.optimizer.state.values() for v in state.values()]
        tensors = [*self.model.parameters(), *(v for v in averages if isinstance(v, Tensor))]
        return sum(tensor.nbytes for tensor in tensors)


Make = Callable[[], TrainingStep]


def num_nodes(value: Tensor) -> int:
    """Return how many nodes the autograd graph of a value has, leaves included."""
    seen, waiting = set(), [value.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            waiting += [below for below, _ in node.next_functions]
    return len(seen)


@dataclass
class Peak:
    """The most memory held at one time; known once the watch is over."""

    peak_bytes: int = 0


@contextmanager
def watched(step: TrainingStep) -> Iterator[Peak]:
    """Watch the memory of the steps taken inside."""
    step.optimizer.zero_grad(set_to_none=True)
    held, peak = step.held_bytes(), Peak()
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        yield peak
        peak.peak_bytes = held + torch.cuda.max_memory_allocated() - before
        return
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        yield peak
    peak.peak_bytes = held + _most_added(profiler)


def _most_added(profiler: Any) -> int:
    added = most = 0
    for event in profiler.profiler.kineto_results.events():
        if event.name() == "[memory]":
            added += event.nbytes()
            most = max(most, added)
    return most


def timed(step: TrainingStep) -> float:
    """Return the milliseconds of one step."""
    if not torch.cuda.is_available():
        began = time.process_time()
        step()
        return 1e3 * (time.process_time() - began)
    torch.cuda.synchronize()
    began = time.perf_counter()
    step()
    torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - began)


def in_turns(steps: Mapping[Key, TrainingStep], seconds: float) -> Iterator[dict[Key, list[float]]]:
    """Time steps in rounds, so that a slow moment of the machine hits all alike.

    Yields the times so far after each round. A step leaves once it has had its seconds.
    """
    times: dict[Key, list[float]] = {key: [] for key in steps}
    while left := [key for key, taken in times.items() if sum(taken) < 1e3 * seconds]:
        for key in left:
            times[key].append(timed(steps[key]))
        yield times


def ratio_in_turns(own: list[float], other: list[float]) -> float:
    """Return the median over common rounds of one time over another."""
    return statistics.median(a / b for a, b in zip(own, other, strict=False))


def cost(make: Make, seconds: float) -> dict[str, Any]:
    """Return the median time and the peak memory of a step, or why there are none."""
    try:
        return _cost(make(), seconds)
    except torch.OutOfMemoryError:
        return {"error": "out of memory"}
    except Exception as error:
        return {"error": first_line(error)}
    finally:
        forget()


def _cost(step: TrainingStep, seconds: float) -> dict[str, Any]:
    first = timed(step)
    # A first step does more than the others; a long one is too dear to throw away.
    times = [first] if first > 1e3 * seconds else []
    num_repeats = 1 if times else min(MOST_REPEATS, max(2, int(1e3 * seconds / timed(step))))
    if torch.cuda.is_available():
        with watched(step) as peak:
            times += [timed(step) for _ in range(num_repeats)]
    else:
        times += [timed(step) for _ in range(num_repeats)]
        with watched(step) as peak:
            step()
    return {
        "milliseconds": round(statistics.median(times), 3),
        "num_repeats": len(times),
        "peak_mib": mib(peak.peak_bytes),
    }


def peak_or_none(make: Make, limit: int) -> int | None:
    """Return the peak memory of a step, None where it does not fit the limit."""
    try:
        peak = _peak(make())
        # A GPU refuses by itself; a CPU is held to the same limit afterwards.
        return peak if torch.cuda.is_available() or peak <= limit else None
    except RuntimeError:
        # Out of memory, in one of the words that torch, CUDA and cuDNN have for it.
        return None
    finally:
        forget()


def _peak(step: TrainingStep) -> int:
    step()
    with watched(step) as peak:
        step()
    return peak.peak_bytes


def largest_that_fits(
    peak_at: Callable[[int], int | None], limit: int
) -> tuple[int, dict[int, int | None]]:
    """Return the largest number of samples that fits, and the peak memory of all that were tried.

    The peaks of the first few say where to look; the answer fits and the next number does not.
    """
    tried: dict[int, int | None] = {}
    low, high = 0, None
    for number in (1, 2, 4):
        peak = tried[number] = peak_at(number)
        if peak is None:
            high = number
            break
        low = number
    guess, width = low + 1, 1
    if high is None:
        slope = max(1, ((tried[4] or 0) - (tried[2] or 0)) // 2)
        guess = max(low + 1, 4 + (limit - (tried[4] or 0)) // slope)
    lowest = low
    while high is None or high - low > 1:
        if guess not in tried:
            tried[guess] = peak_at(guess)
        low, high = (guess, high) if tried[guess] is not None else (low, guess)
        if high is None:
            guess = low + width
        elif low == lowest:
            guess = max(low + 1, high - width)
        else:
            guess = (low + high) // 2
        width *= 2
    return low, dict(sorted(tried.items()))


def limit_memory(gib: float) -> int:
    """Let this process have so much memory of the GPU, if there is one; return it in bytes."""
    limit = int(gib * 2**30)
    if torch.cuda.is_available():
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, limit / total))
    return limit


def forget() -> None:
    """Give back the memory of steps that are over."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def first_line(error: Exception) -> str:
    """Return what an error says first."""
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:300]


def mib(num_bytes: int | None) -> float | None:
    """Return bytes as MiB, to two decimals."""
    return None if num_bytes is None else round(num_bytes / 2**20, 2)
