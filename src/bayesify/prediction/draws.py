"""Many posterior draws of one batch's outputs, several at a time under a memory bound.

Where it is faster, draws are vectorised: one pass through the network carries a chunk of them.
Small batches gain most (they are bound by calls, not arithmetic); a convolution with weights of
its own for every draw is slow once the batch itself keeps the machine busy.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from bayesify.batches import batch_size, call_model, drawn, moments_in, output_tensor
from bayesify.conversion.posterior import posteriors
from bayesify.types import device_of

_CPU_LIMIT = 512 * 2**20
_BYTES_OF_OUTPUTS = 16 * 2**20
_LARGEST_BATCH_FOR_CONVOLUTIONS = {"cpu": 8, "cuda": 64}


@dataclass
class Draws:
    """Draws the outputs of a model, and remembers how.

    Attributes:
        model: The model, already in the mode in which every call is one draw.
        memory_limit: Bytes that a chunk of draws may take; None takes 512 MiB on a CPU and a
            quarter of the free memory on a GPU.
        is_vectorised: False makes one pass per draw.
    """

    model: nn.Module
    memory_limit: int | None = None
    is_vectorised: bool = True
    how: str = "one pass per draw"
    _bytes_per_example: int | None = None

    @torch.no_grad()
    def outputs(self, inputs: Any, num_samples: int) -> Iterator[Tensor]:
        """Yield stacks of outputs, (chunk, examples, ...), until there are `num_samples`."""
        if num_samples < 2 or not self._pays(inputs):
            yield from self._one_by_one(inputs, num_samples)
            return
        done = 0
        if self._bytes_per_example is None:
            yield self._measured(inputs).unsqueeze(0)
            done = 1
        chunk = max(
            1,
            min(
                num_samples,
                bytes_to_take(self.model, self.memory_limit) // self._bytes_per_draw(inputs),
            ),
        )
        while done < num_samples:
            size = min(chunk, num_samples - done)
            stack = self._vectorised(inputs, size) if size > 1 else None
            if stack is None:
                yield from self._one_by_one(inputs, num_samples - done)
                return
            self.how = f"vectorised in chunks of {chunk}"
            yield stack
            done += size

    def _pays(self, inputs: Any) -> bool:
        if not self.is_vectorised:
            return False
        if not any(isinstance(module, _ConvNd) for module in self.model.modules()):
            return True
        largest = _LARGEST_BATCH_FOR_CONVOLUTIONS.get(device_of(self.model).type, 8)
        return batch_size(inputs) <= largest

    def _once(self, inputs: Any) -> Tensor:
        return output_tensor(call_model(self.model, drawn(inputs)))

    def _one_by_one(self, inputs: Any, num_samples: int) -> Iterator[Tensor]:
        kept: list[Tensor] = []
        for _ in range(num_samples):
            kept.append(self._once(inputs))
            # Outputs are small: summing up several at a time saves most of the summing up.
            if len(kept) * kept[0].numel() * kept[0].element_size() > _BYTES_OF_OUTPUTS:
                yield torch.stack(kept)
                kept = []
        if kept:
            yield torch.stack(kept)

    def _vectorised(self, inputs: Any, size: int) -> Tensor | None:
        """Return a chunk of draws, or None where the model cannot be vectorised."""
        try:
            with warnings.catch_warnings():
                # torch loops over an operation without a batching rule, attention on a CPU for
                # one, and warns; what is around it gains all the same.
                warnings.filterwarnings("ignore", message="There is a performance drop")
                once = torch.vmap(lambda _: self._once(inputs), randomness="different")
                return once(torch.empty(size))
        except Exception:
            # Control flow on values and in-place writes fail here; the plain loop works for them
            # and repeats any error of the model's own.
            self.is_vectorised = False
            self.how = "one pass per draw (the model cannot be vectorised)"
            return None

    def _measured(self, inputs: Any) -> Tensor:
        """Return one draw, and measure how much its activations take per example."""
        sizes: list[int] = []

        def add(module: nn.Module, args: Any, output: Any) -> None:
            del module, args
            if isinstance(output, Tensor):
                sizes.append(output.numel() * output.element_size())

        leaves = [m for m in self.model.modules() if not any(True for _ in m.children())]
        handles = [leaf.register_forward_hook(add) for leaf in leaves]
        try:
            output = self._once(inputs)
        finally:
            for handle in handles:
                handle.remove()
        self._bytes_per_example = 2 * sum(sizes) // max(batch_size(inputs), 1) + 1
        return output

    def _bytes_per_draw(self, inputs: Any) -> int:
        # A sampled weight exists as noise, as scaled noise and as the weight.
        weights = 3 * 4 * sum(site.num_random for site in posteriors(self.model))
        # So does an input that is drawn.
        weights += 3 * 4 * sum(each.shape.numel() for each in moments_in(inputs))
        return weights + (self._bytes_per_example or 0) * max(batch_size(inputs), 1)


def bytes_to_take(model: nn.Module, memory_limit: int | None) -> int:
    """Return how many bytes may be held at once where nobody said how many."""
    if memory_limit is not None:
        return memory_limit
    device = device_of(model)
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0] // 4
    return _CPU_LIMIT
