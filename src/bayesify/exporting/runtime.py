"""The runtime of exported files, under the library's own name."""

from __future__ import annotations

import bayesify_runtime


class Runtime(bayesify_runtime.Runtime):
    """Runs an ONNX file that `export` wrote; `Runtime(path)(array)` gives its outputs by name.

    It is `bayesify_runtime.Runtime`, which needs numpy and onnxruntime alone: where there is no
    torch, import it from there.

    Args:
        file: Path of the file, or its content.
        num_threads: Threads that one call may use.
    """
