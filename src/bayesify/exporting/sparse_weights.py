"""Weights that are mostly zero, stored by their other entries.

ONNX Runtime makes sparse constants dense when it loads a file: the file is smaller, memory and
speed are those of the dense one. A stored entry takes a value and a place of 64 bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np

_BYTES_OF_A_VALUE, _BYTES_OF_A_PLACE = 4, 8
# Below this the saving is not worth a form that fewer programs read.
_LEAST_SAVED_BYTES = 1024
_LARGEST_SHARE = 0.5


def store_sparse(model: Any) -> int:
    """Store the float constants of a model as sparse ones where that takes half the bytes or less.

    Args:
        model: An ONNX model, which is changed.

    Returns:
        How many were.
    """
    import onnx

    graph = model.graph
    dense, sparse = [], []
    for tensor in graph.initializer:
        found = _sparse(onnx, tensor) if tensor.data_type == onnx.TensorProto.FLOAT else None
        (dense if found is None else sparse).append(tensor if found is None else found)
    if sparse:
        kept = [onnx.TensorProto.FromString(each.SerializeToString()) for each in dense]
        del graph.initializer[:]
        graph.initializer.extend(kept)
        graph.sparse_initializer.extend(sparse)
    return len(sparse)


def _sparse(onnx: Any, tensor: Any) -> Any:
    size = int(np.prod(tensor.dims))
    if size * _BYTES_OF_A_VALUE < 2 * _LEAST_SAVED_BYTES:
        return None
    values = onnx.numpy_helper.to_array(tensor)
    places = np.flatnonzero(values)
    num_bytes = len(places) * (_BYTES_OF_A_VALUE + _BYTES_OF_A_PLACE)
    if num_bytes > _LARGEST_SHARE * size * _BYTES_OF_A_VALUE:
        return None
    entries = onnx.numpy_helper.from_array(values.reshape(-1)[places], tensor.name)
    indices = onnx.numpy_helper.from_array(places.astype(np.int64), f"{tensor.name}_places")
    return onnx.helper.make_sparse_tensor(entries, indices, list(tensor.dims))
