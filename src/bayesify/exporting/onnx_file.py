"""A graph as an .onnx file: names, a batch of any size, and the manifest in its metadata."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bayesify.exporting.quantised_file import quantised_content
from bayesify.exporting.sparse_weights import store_sparse
from bayesify.exporting.torch_file import batch_axes, quiet
from bayesify_runtime import MANIFEST_KEY, Runtime

# Longer files need a second file beside them, which could be lost.
_MOST_BYTES = 2**31 - 1
_LOGGERS = ("torch.onnx", "torch.onnx._internal.exporter", "onnxscript", "onnx_ir")


def require_onnx() -> None:
    """Check that what writes and runs .onnx files is installed."""
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise ImportError(
            f"exporting to .onnx needs onnx, onnxscript and onnxruntime ({error.name} is "
            "missing): pip install 'bayesify[export]', or export to a .pt2 file"
        ) from error


def onnx_content(
    program: Any, manifest: dict[str, Any], has_batch_axis: Sequence[bool], is_quantised: bool
) -> bytes:
    """Return the bytes of an .onnx file of an exported program.

    Args:
        program: What torch traced.
        manifest: What travels with it.
        has_batch_axis: Which inputs have one row per example.
        is_quantised: Whether its weights are stored in eight bits.
    """
    with quiet(), _quiet_loggers(), torch.no_grad():
        made = torch.onnx.export(
            program,
            dynamo=True,
            verbose=False,
            dynamic_shapes=batch_axes(has_batch_axis, "batch"),
        )
    assert made is not None
    graph = made.model.graph
    _name(graph, *([entry["name"] for entry in manifest[side]] for side in ("inputs", "outputs")))
    _strip(graph)
    _multiply_squares(graph)
    made.model.metadata_props.clear()
    made.model.metadata_props[MANIFEST_KEY] = json.dumps(manifest)
    proto = made.model_proto
    if proto.ByteSize() > _MOST_BYTES:
        raise ValueError(
            f"the model is too large for one .onnx file ({proto.ByteSize():,} bytes of at most "
            f"{_MOST_BYTES:,}): export to a .pt2 file, or compress it first"
        )
    if is_quantised:
        return quantised_content(proto.SerializeToString())
    store_sparse(proto)
    return proto.SerializeToString()


class OnnxRunner:
    """Runs the bytes of an .onnx file."""

    def __init__(self, content: bytes) -> None:
        self._runtime = Runtime(content)

    def __call__(self, inputs: Sequence[Tensor]) -> dict[str, Tensor]:
        """Return the outputs by name."""
        found = self._runtime(*(tensor.numpy() for tensor in inputs))
        return {name: torch.from_numpy(array) for name, array in found.items()}


def read_manifest_of_onnx(path: Path) -> dict[str, Any]:
    """Return the manifest inside an .onnx file."""
    return Runtime(path).manifest


def _name(graph: Any, inputs: Sequence[str], outputs: Sequence[str]) -> None:
    """Name what goes in and what comes out; the exporter may call a step "mean" too."""
    taken = {*inputs, *outputs}
    for node in graph:
        for value in node.outputs:
            if value.name in taken:
                value.name = f"{value.name}_inside"
    for value, name in zip((*graph.inputs, *graph.outputs), (*inputs, *outputs), strict=True):
        value.name = name


def _strip(graph: Any) -> None:
    """Remove where in which Python file each step comes from: most of a small file."""
    for node in graph:
        node.metadata_props.clear()
        node.doc_string = None
        for value in node.outputs:
            value.metadata_props.clear()
    for value in (*graph.inputs, *graph.initializers.values()):
        value.metadata_props.clear()


def _multiply_squares(graph: Any) -> None:
    """Write x^2 as x * x, which ONNX Runtime computes in half the time."""
    import onnx_ir

    for node in list(graph):
        if node.op_type != "Pow" or node.domain:
            continue
        base, exponent = node.inputs
        number = None if exponent is None else onnx_ir.convenience.get_const_tensor(exponent)
        if number is None or number.numpy().size != 1 or float(number.numpy().item()) != 2.0:
            continue
        product = onnx_ir.node("Mul", [base, base])
        result, old = product.outputs[0], node.outputs[0]
        result.name, result.shape, result.type = old.name, old.shape, old.type
        onnx_ir.convenience.replace_nodes_and_values(
            graph, node, [node], [product], [old], [result]
        )
    for name in [name for name, value in graph.initializers.items() if not value.uses()]:
        if not graph.initializers[name].is_graph_output():
            del graph.initializers[name]


@contextmanager
def _quiet_loggers() -> Iterator[None]:
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    before = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)
