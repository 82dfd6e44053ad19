"""A graph as a .pt2 file: what `torch.export.load` reads back, without this library."""

from __future__ import annotations

import io
import json
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

_MANIFEST = "bayesify.json"


def trace(graph: nn.Module, inputs: Sequence[Tensor], has_batch_axis: Sequence[bool]) -> Any:
    """Return the exported program of a graph, for any size of the batch.

    Args:
        graph: The module.
        inputs: Inputs of the right shapes, two examples or more; their values are not kept.
        has_batch_axis: Which of them have one row per example.
    """
    shapes = batch_axes(has_batch_axis, torch.export.Dim("batch", min=1))
    blank = tuple(torch.zeros_like(tensor) for tensor in inputs)
    with quiet(), torch.no_grad():
        # Not strict: moments are a plain class, which is run as Python and leaves its tensors.
        program = torch.export.export(graph, blank, dynamic_shapes=shapes, strict=False)
    for module in program.graph_module.modules():
        if isinstance(module, torch.fx.GraphModule):
            for node in module.graph.nodes:
                node.meta.pop("stack_trace", None)  # names folders of this machine
    return program


def batch_axes(has_batch_axis: Sequence[bool], size: Any) -> tuple[Any, ...]:
    """Return the dynamic shapes of a graph's inputs, which it takes as `*inputs`."""
    return (tuple({0: size} if has_axis else None for has_axis in has_batch_axis),)


def torch_content(program: Any, manifest: dict[str, Any]) -> bytes:
    """Return the bytes of a .pt2 file."""
    file = io.BytesIO()
    with quiet():
        torch.export.save(program, file, extra_files={_MANIFEST: json.dumps(manifest)})
    return file.getvalue()


class TorchRunner:
    """Runs the bytes of a .pt2 file."""

    def __init__(self, content: bytes) -> None:
        with quiet():
            self._module = torch.export.load(io.BytesIO(content)).module()

    def __call__(self, inputs: Sequence[Tensor]) -> dict[str, Tensor]:
        """Return the outputs by name."""
        with torch.no_grad():
            return self._module(*inputs)


def read_manifest_of_torch(path: Path) -> dict[str, Any]:
    """Return the manifest inside a .pt2 file."""
    extra = {_MANIFEST: ""}
    with quiet():
        torch.export.load(path, extra_files=extra)
    if not extra[_MANIFEST]:
        raise ValueError(f"{path} holds no manifest: it was not written by bayesify.export")
    return json.loads(extra[_MANIFEST])


@contextmanager
def quiet() -> Iterator[None]:
    """Keep torch's exporter from warning about code of its own."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        warnings.simplefilter("ignore", DeprecationWarning)
        # A recurrent layer's list of its weights; the weights themselves are constants already.
        warnings.filterwarnings("ignore", message="The tensor attributes? self")
        # Several inputs share the size of the batch, as they should.
        warnings.filterwarnings("ignore", message="# The axis name: batch will not be used")
        yield
