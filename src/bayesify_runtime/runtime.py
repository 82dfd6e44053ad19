"""One ONNX file as a function of arrays, with the manifest that travels inside it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

MANIFEST_KEY = "bayesify"
_BRIGHTEST_PIXEL = 255.0


class Runtime:
    """Runs an ONNX file that `bayesify.export` wrote; neither torch nor bayesify is needed.

    Noise of a file of samples is drawn at every call. ONNX Runtime has no input for its seed;
    `onnxruntime.set_seed` seeds every Runtime that the process makes after it.

    Args:
        file: Path of the file, or its content.
        num_threads: Threads that one call may use.
    """

    def __init__(self, file: str | os.PathLike[str] | bytes, *, num_threads: int = 1) -> None:
        try:
            import onnxruntime
        except ImportError as error:
            raise ImportError(
                "running an exported model needs ONNX Runtime: pip install onnxruntime"
            ) from error
        if num_threads < 1:
            raise ValueError(f"num_threads must be at least 1, got {num_threads}")
        if not isinstance(file, bytes):
            file = os.fspath(file)
            if not os.path.isfile(file):
                raise FileNotFoundError(f"there is no file {file}")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = num_threads
        # Weights that are stored in eight bits for their size are made floats once, not per call.
        options.add_session_config_entry("session.disable_quant_qdq", "1")
        # What it would say at lower levels is about its own optimisations.
        options.log_severity_level = 3
        name = "the content" if isinstance(file, bytes) else file
        try:
            self._session: Any = onnxruntime.InferenceSession(
                file, options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # ONNX Runtime's own errors share no class
            raise ValueError(f"{name} cannot be run as an ONNX file: {error}") from error
        text = self._session.get_modelmeta().custom_metadata_map.get(MANIFEST_KEY)
        if text is None:
            raise ValueError(f"{name} holds no manifest: it was not written by bayesify.export")
        self.manifest: dict[str, Any] = json.loads(text)

    def __call__(self, *arrays: Any, **named: Any) -> dict[str, np.ndarray]:
        """Return every output of the file by its name.

        Args:
            arrays: The inputs in the order of the manifest, one row per example.
            named: Inputs by the names of the manifest.
        """
        inputs = self.manifest["inputs"]
        names = [entry["name"] for entry in inputs]
        given = {**dict(zip(names, arrays, strict=False)), **named}
        if len(arrays) > len(names) or set(given) != set(names):
            raise TypeError(
                f"the model takes {len(names)} inputs ({', '.join(names)}), got {len(arrays)} "
                f"by position and {sorted(named)} by name"
            )
        feed = {entry["name"]: _checked(entry, given[entry["name"]]) for entry in inputs}
        outputs = [entry["name"] for entry in self.manifest["outputs"]]
        return dict(zip(outputs, self._session.run(outputs, feed), strict=True))

    def normalise(self, images: Any) -> np.ndarray:
        """Return images as the network was trained on them.

        Integer images are first scaled from 0..255 to 0..1, as in training.

        Args:
            images: Stored images of shape (batch, channels, ...).
        """
        preprocessing = self.manifest.get("preprocessing")
        if not preprocessing:
            raise ValueError(
                "the manifest knows no preprocessing: give the model inputs as it was trained on"
            )
        values = np.asarray(images)
        mean, std = (np.asarray(preprocessing[key], np.float32) for key in ("mean", "std"))
        if values.ndim < 2 or values.shape[1] != len(mean):
            raise ValueError(
                f"images must have shape (batch, {len(mean)}, ...) to be normalised by "
                f"{len(mean)} means, got {values.shape}"
            )
        brightest = 1.0 if np.issubdtype(values.dtype, np.floating) else _BRIGHTEST_PIXEL
        per_channel = (-1,) + (1,) * (values.ndim - 2)
        scaled = values.astype(np.float32) / np.float32(brightest)
        return (scaled - mean.reshape(per_channel)) / std.reshape(per_channel)


def _checked(entry: Mapping[str, Any], value: Any) -> np.ndarray:
    array = np.asarray(value)
    expected = entry["shape"]
    fits = array.ndim == len(expected) and all(
        wanted in ("batch", size) for wanted, size in zip(expected, array.shape, strict=True)
    )
    if not fits:
        raise ValueError(
            f"input {entry['name']} must have shape {expected}, got {list(array.shape)}"
        )
    kind = np.dtype(entry["dtype"])
    if not np.can_cast(array.dtype, kind, "same_kind") and not (
        kind.kind == "f" and array.dtype.kind in "iu"
    ):
        raise TypeError(f"input {entry['name']} must be {kind}, got {array.dtype}")
    return np.ascontiguousarray(array, dtype=kind)
