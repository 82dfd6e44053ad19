"""Batches of examples: what a loader yields, how inputs are counted, moved, given to a model.

Inputs are a tensor, moments where they are uncertain, or a mapping or tuple of those.
"""

from __future__ import annotations

import copy
from collections import UserDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from bayesify.moments.moments import Moments, mean_of


def split_batch(batch: Any) -> tuple[Any, Tensor | None]:
    """Return (inputs, targets) of what a loader yields.

    A pair is (inputs, targets); a mapping gives its "labels", "label", "targets", "target" or "y"
    entry as targets and the rest as keyword inputs; a lone tensor, or moments, has no targets.
    """
    if isinstance(batch, (Tensor, Moments)):
        return batch, None
    if isinstance(batch, Mapping):
        inputs = dict(batch)
        for key in ("labels", "label", "targets", "target", "y"):
            if key in inputs:
                return inputs, inputs.pop(key)
        return inputs, None
    if isinstance(batch, Sequence) and len(batch) in (1, 2):
        if isinstance(batch[-1], Moments) and len(batch) == 2:
            raise TypeError("targets must be a tensor, got Moments: only inputs can be uncertain")
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
    if isinstance(inputs, (Tensor, Moments)):
        return inputs.shape[0]
    if isinstance(inputs, PackedSequence):
        return int(inputs.batch_sizes[0])
    values = inputs.values() if isinstance(inputs, Mapping) else inputs
    for value in values if isinstance(values, Iterable) else ():
        if isinstance(value, (Tensor, Moments)) and value.ndim:
            return value.shape[0]
    raise TypeError("inputs hold no tensor with a batch axis")


def cut(inputs: Any, number: int, start: int, end: int) -> Any:
    """Return some of a number of examples; what has no row for each of them belongs to all."""
    if start == 0 and end >= number:
        return inputs
    if isinstance(inputs, PackedSequence):
        rows, lengths = pad_packed_sequence(inputs, batch_first=True)
        some = rows[start:end], lengths[start:end]
        return pack_padded_sequence(*some, batch_first=True, enforce_sorted=False)

    def part(leaf: Tensor) -> Tensor:
        return leaf[start:end] if leaf.ndim and len(leaf) == number else leaf

    return map_tensors(inputs, part)


def to_device(value: Any, device: torch.device) -> Any:
    """Move every tensor in a nested batch to a device; refuse variances that are none."""

    def moved(leaf: Any) -> Any:
        if isinstance(leaf, Moments):
            leaf.check_variance()
            return leaf.with_each(lambda tensor: tensor.to(device, non_blocking=True))
        return leaf.to(device, non_blocking=True)

    return _map(value, moved)


def map_tensors(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Return a nested batch or output of the same kind with every tensor changed."""

    def changed(leaf: Any) -> Any:
        return leaf.with_each(change) if isinstance(leaf, Moments) else change(leaf)

    return _map(value, changed)


def map_moments(value: Any, change: Callable[[Moments], Any]) -> Any:
    """Return a nested batch of the same kind with all moments in it changed, and no tensor."""
    return _map(value, lambda leaf: change(leaf) if isinstance(leaf, Moments) else leaf)


def moments_in(value: Any) -> list[Moments]:
    """Return the moments in a nested batch: inputs that are uncertain."""
    found: list[Moments] = []

    def note(leaf: Moments) -> Moments:
        found.append(leaf)
        return leaf

    map_moments(value, note)
    return found


def drawn(inputs: Any) -> Any:
    """Return inputs with a draw, new each time, in the place of what is uncertain."""
    return map_moments(inputs, Moments.draw)


def at_mean(inputs: Any) -> Any:
    """Return inputs with the mean in the place of what is uncertain."""
    return map_moments(inputs, mean_of)


def as_read(inputs: Any, way: str) -> Any:
    """Return inputs as one pass of a way to predict reads them: with moments, drawn, or means."""
    if way in ("moments", "covariance"):
        return inputs
    return at_mean(inputs) if way in ("mean", "linearised") else drawn(inputs)


def settled(inputs: Any, model: nn.Module, *, is_carried: bool) -> Any:
    """Return inputs for one pass in training: what is uncertain drawn, or carried.

    Carried it has the type of the model's weights: Fabric casts tensors, and knows no moments.
    """
    if not moments_in(inputs):
        return inputs
    if not is_carried:
        return drawn(inputs)
    dtype = _one_type(model)
    return inputs if dtype is None else map_tensors(inputs, lambda tensor: _cast(tensor, dtype))


def in_short(inputs: Any, model: nn.Module) -> Any:
    """Return inputs of a model whose weights are of 16 bits, as `fit` leaves them in "bf16-true".

    Other inputs stay as they are.
    """
    dtype = _one_type(model)
    if dtype not in (torch.bfloat16, torch.float16):
        return inputs
    return map_tensors(inputs, lambda tensor: _cast(tensor, dtype))


def _one_type(model: nn.Module) -> torch.dtype | None:
    """Return the type of all of a model's parameters, None where they differ."""
    types = {parameter.dtype for parameter in model.parameters()}
    return types.pop() if len(types) == 1 else None


def _cast(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


def _map(value: Any, change: Callable[[Any], Any]) -> Any:
    # Moments that are there twice are one uncertain value, and stay one.
    done: dict[int, Any] = {}

    def changed(leaf: Any) -> Any:
        if isinstance(leaf, Tensor):
            return change(leaf)
        if id(leaf) not in done:
            done[id(leaf)] = change(leaf)
        return done[id(leaf)]

    return _each(value, changed)


def _each(value: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(value, (Tensor, Moments)):
        return change(value)
    if isinstance(value, PackedSequence):
        data = change(value.data)
        return cast(Any, value).to(data.device)._replace(data=data)  # its lengths stay on the CPU
    if isinstance(value, Mapping):
        entries = {key: _each(entry, change) for key, entry in value.items()}
        # A record that is also a mapping keeps its class: people read its fields by name. Of
        # others a copy may be the same storage.
        if not isinstance(value, (dict, UserDict)):
            return entries
        twin = copy.copy(value)
        for key, entry in entries.items():
            twin[key] = entry
        return twin
    if isinstance(value, (tuple, list)):
        entries = [_each(entry, change) for entry in value]
        # A named tuple takes its entries one by one, unless it is made this way.
        return getattr(type(value), "_make", type(value))(entries)
    return value
