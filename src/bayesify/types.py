"""The nouns every stage shares: what a batch is, what a loss is, what can go wrong."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence


class ConversionError(ValueError):
    """A model cannot be converted as asked; every failing site is listed, nothing was changed."""

    def __init__(self, failures: Sequence[tuple[str, str]]) -> None:
        self.failures = tuple(failures)
        lines = "\n".join(f"  {path}: {reason}" for path, reason in self.failures)
        count = len(self.failures)
        super().__init__(
            f"the model was not converted: {count} problem{'s' * (count != 1)} found\n{lines}"
        )


class Loss(NamedTuple):
    """A training objective and the two parts it is made of, each in nats."""

    total: Tensor
    nll: Tensor
    kl: Tensor


class OutputMoments(NamedTuple):
    """Outputs known by their mean and variance over some of the weights, in place of a draw."""

    mean: Tensor
    variance: Tensor


def split_batch(batch: Any) -> tuple[Any, Tensor | None]:
    """Return (inputs, targets) of what a loader yields.

    A pair is (inputs, targets); a mapping gives its "labels", "label", "targets", "target" or "y"
    entry as targets and the rest as keyword inputs; a lone tensor has no targets.
    """
    if isinstance(batch, Tensor):
        return batch, None
    if isinstance(batch, Mapping):
        inputs = dict(batch)
        for key in ("labels", "label", "targets", "target", "y"):
            if key in inputs:
                return inputs, inputs.pop(key)
        return inputs, None
    if isinstance(batch, Sequence) and len(batch) in (1, 2):
        return batch[0], (batch[1] if len(batch) == 2 else None)
    raise TypeError(
        "batch must be a tensor, a mapping, or an (inputs, targets) pair, got "
        f"{type(batch).__name__}"
        + (f" of {len(batch)} entries" if isinstance(batch, Sequence) else "")
        + "; wrap the loader so that it yields one of those"
    )


def call_model(model: Any, inputs: Any) -> Any:
    """Call a model on inputs: a mapping by keyword, a tuple or list by position."""
    if isinstance(inputs, Mapping):
        return model(**inputs)
    if isinstance(inputs, (tuple, list)) and not isinstance(inputs, PackedSequence):
        return model(*inputs)
    return model(inputs)


def output_tensor(output: Any, kinds: type | tuple[type, ...] = Tensor) -> Any:
    """Return the one tensor of a model's output that a likelihood is about.

    A tensor is itself; a mapping or record gives "logits", "prediction_logits" or "output";
    a tuple gives its first entry.

    Args:
        output: What a model returned.
        kinds: What counts as a tensor.
    """
    if isinstance(output, kinds):
        return output
    for key in ("logits", "prediction_logits", "output"):
        value = output.get(key) if isinstance(output, Mapping) else getattr(output, key, None)
        if isinstance(value, kinds):
            return value
    if isinstance(output, (tuple, list)) and output and isinstance(output[0], kinds):
        return output[0]
    raise TypeError(
        "the model's output must be a tensor, a tuple that starts with one, or a mapping with "
        f"'logits' or 'output', got {type(output).__name__}"
    )


def batch_size(inputs: Any) -> int:
    """Return how many examples a batch of inputs holds."""
    if isinstance(inputs, Tensor):
        return inputs.shape[0]
    if isinstance(inputs, PackedSequence):
        return int(inputs.batch_sizes[0])
    values = inputs.values() if isinstance(inputs, Mapping) else inputs
    for value in values if isinstance(values, Iterable) else ():
        if isinstance(value, Tensor) and value.ndim:
            return value.shape[0]
    raise TypeError("inputs hold no tensor with a batch axis")


def to_device(value: Any, device: torch.device) -> Any:
    """Move every tensor in a nested batch to a device."""
    if isinstance(value, PackedSequence):
        return cast(Any, value).to(device)  # its lengths stay on the CPU
    return map_tensors(value, lambda tensor: tensor.to(device, non_blocking=True))


def map_tensors(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Return a nested batch or output of the same kind with every tensor changed."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, Mapping):
        entries = {key: map_tensors(entry, change) for key, entry in value.items()}
        if not isinstance(value, MutableMapping):
            return entries
        # A record that is also a mapping keeps its class: people read its fields by name.
        twin = copy.copy(value)
        for key, entry in entries.items():
            twin[key] = entry
        return twin
    if isinstance(value, (tuple, list)):
        entries = [map_tensors(entry, change) for entry in value]
        # A named tuple takes its entries one by one, unless it is made this way.
        return getattr(type(value), "_make", type(value))(entries)
    return value


def device_of(model: nn.Module) -> torch.device:
    """Return the device of a model's first parameter or buffer, the CPU when it has none."""
    for tensor in model.parameters():
        return tensor.device
    for tensor in model.buffers():
        return tensor.device
    return torch.device("cpu")
