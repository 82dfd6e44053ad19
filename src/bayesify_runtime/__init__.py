"""Run a network that `bayesify.export` wrote, with numpy and ONNX Runtime alone: no torch.

from bayesify_runtime import Runtime

runtime = Runtime("model.onnx")
prediction = runtime(images)         # {"probs": ..., "entropy": ..., ...}
runtime.manifest["classes"]
"""

from bayesify_runtime.runtime import MANIFEST_KEY, Runtime

__all__ = ["MANIFEST_KEY", "Runtime"]
