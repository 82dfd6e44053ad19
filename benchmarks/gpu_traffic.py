"""Bytes that the kernels of a step by moments would move on a GPU, found without a GPU.

    pip install --no-deps triton
    python benchmarks/gpu_traffic.py                                       # ResNet-18
    python benchmarks/gpu_traffic.py --method plain --top 20               # the largest kernels
    python benchmarks/gpu_traffic.py --option realize_opcount_threshold=30
    python benchmarks/gpu_traffic.py --network vit_small --batch 8         # traffic grows with it

A training step is traced on the CPU, its tensors are said to lie on a GPU, and torch's compiler
plans the kernels, which are counted instead of compiled. What libraries do, the products, is left
out, and so are kernels of our own (attention, GELU). Bytes are no time, but plans of the same
network can be told apart by them: it takes minutes here and none of a GPU. What planning itself
takes, in seconds of one core, is the most of what a user waits for a step to compile, beside the
compilation of the kernels on all cores. It reaches into torch's private parts; known to work with
2.11 and 2.13.
"""

from __future__ import annotations

import argparse
import copy
import json
import time
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any
from unittest import mock

import moments_gpu
import torch
from torch._dynamo.device_interface import get_interface_for_device
from torch._guards import TracingContext, tracing
from torch._inductor import compile_fx, config
from torch._inductor.fx_passes import post_grad
from torch._inductor.graph import GraphLowering
from torch._inductor.virtualized import V
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.passes.fake_tensor_prop import FakeTensorProp

import bayesify as bf
from bayesify.conversion.scope import forward_by
from bayesify.moments import (
    attention_rules,
    fused_attention,
    fused_gelu,
    fused_pooled_attention,
    moment_rules,
    pooled_attention,
)
from bayesify.moments.written_down import scales_written_down
from bayesify.training.compiling import PassWithKL, compile_options

H200 = SimpleNamespace(
    name="NVIDIA H200",
    major=9,
    minor=0,
    multi_processor_count=132,
    regs_per_multiprocessor=65536,
    max_threads_per_multi_processor=2048,
    max_threads_per_block=1024,
    warp_size=32,
    total_memory=140 * 2**30,
    shared_memory_per_block=49152,
    shared_memory_per_block_optin=232448,
    L2_cache_size=50 * 2**20,
    gcnArchName="",
)


class PlannedError(Exception):
    """Ends a compilation once what was wanted of it is known."""


def captured(network: str, method: str, batch: int) -> list[tuple[Any, bool]]:
    """Return the graphs of forward and backward, and whether each is backward."""
    found: list[tuple[Any, bool]] = []

    def keep(graph: Any, inputs: Any, **options: Any) -> Any:
        del inputs
        found.append((graph, bool(options.get("is_backward"))))
        if found[-1][1]:
            raise PlannedError
        return graph.forward

    size = moments_gpu.NETWORKS[network][1]
    chosen = moments_gpu.METHODS[method]
    plain = bf.build_model(network, num_classes=10).to(memory_format=torch.channels_last)
    model = bf.convert(plain, chosen).train()
    images = torch.randn(batch, 3, size, size).to(memory_format=torch.channels_last)
    forward: Any = torch.compile(
        PassWithKL(moments_gpu.Reading(model), torch.device("cpu")),
        backend=lambda graph, inputs: compile_fx.compile_fx(graph, inputs, inner_compile=keep),
    )
    how = "moments" if isinstance(chosen, bf.MomentPropagation) else "sample"
    rules = getattr(chosen, "rules", "exact")
    with forward_by(model, how), moment_rules(rules), scales_written_down():
        try:
            with torch.autocast("cpu", torch.bfloat16):
                output, divergence = forward(images)
            (torch.stack([part.float().sum() for part in output]).sum() + divergence).backward()
        except Exception:
            # The compiler wraps what its parts raise.
            if len(found) < 2:
                raise
    return found


def pretend_kernels() -> None:
    """Take the operations that a GPU has kernels for, whatever they return here."""
    for operation, shapes in (
        (fused_attention._attention, fused_attention._attention_shapes),
        (fused_attention._attention_backward, fused_attention._gradient_shapes),
        (fused_pooled_attention._sums, fused_pooled_attention._shapes),
        (fused_pooled_attention._sums_backward, fused_pooled_attention._gradient_shapes),
        (fused_gelu._gelu, fused_gelu._gelu_shapes),
        (fused_gelu._gelu_backward, fused_gelu._gradient_shapes),
    ):
        torch.library.register_kernel(operation, "cpu", shapes)
    for module in (attention_rules, pooled_attention):
        module.can_fuse = lambda *parts: all(part.dtype == torch.bfloat16 for part in parts)
    fused_gelu.HAS_TRITON, fused_gelu.DEVICES = True, ("cpu",)


def pretend_gpu() -> None:
    """Have torch believe in a GPU, as far as planning kernels goes."""
    for name, value in {
        "is_available": True,
        "device_count": 1,
        "current_device": 0,
        "get_device_properties": H200,
        "_get_device_properties": H200,
        "get_device_capability": (9, 0),
        "is_bf16_supported": True,
        "get_rng_state": torch.get_rng_state(),
        "set_rng_state": None,
        "synchronize": None,
        "_lazy_init": None,
        "_exchange_device": 0,
        "_maybe_exchange_device": 0,
    }.items():
        setattr(torch.cuda, name, lambda *_, _value=value, **__: _value)
    torch.version.cuda = "13.0"
    torch.backends.cudnn.is_available = lambda: True
    torch.backends.cudnn.version = lambda: 91000
    torch._C._conv_determine_backend_memory_format = lambda *_: torch.channels_last
    interface: Any = get_interface_for_device("cuda")
    interface.Worker.get_device_properties = staticmethod(lambda *_: H200)
    interface.get_compute_capability = staticmethod(lambda *_: 90)
    interface.is_triton_capable = staticmethod(lambda *_: True)
    interface.raise_if_triton_unavailable = staticmethod(lambda *_: None)
    torch.utils._triton.has_triton = lambda *_: True
    torch._inductor.scheduler.has_triton = lambda *_: True
    torch.utils._triton.triton_hash_with_backend = lambda *_: ""
    fake_tensor.init_gpu_context = lambda *_: None
    # It writes to tensors, which those of no device cannot take.
    post_grad.reinplace_inplaceable_ops = lambda *_, **__: None


def on_gpu(graph: Any) -> tuple[Any, list[Any], FakeTensorMode]:
    """Return a graph, and its inputs, as they would be on a GPU."""
    graph, mode, gpu = copy.deepcopy(graph), FakeTensorMode(), torch.device("cuda", 0)

    def moved(tensor: Any) -> Any:
        if not isinstance(tensor, torch.Tensor):
            return tensor
        with mode:
            size, stride = tuple(tensor.size()), tuple(tensor.stride())
            return torch.empty_strided(size, stride, dtype=tensor.dtype, device=gpu)

    inputs = []
    for node in graph.graph.nodes:
        if node.op == "call_function" and "device" in node.kwargs:
            node.kwargs = {**node.kwargs, "device": gpu}
        if node.op == "get_attr":
            setattr(graph, node.target, moved(getattr(graph, node.target)))
        if node.op == "placeholder":
            inputs.append(moved(node.meta["val"]))
    graph.recompile()
    FakeTensorProp(graph, mode).propagate_dont_convert_inputs(*inputs)
    return graph, inputs, mode


def kernels(graph: Any, is_backward: bool, options: dict[str, Any]) -> list[tuple[float, str]]:
    """Return the megabytes of every kernel that is not a library's, and what it moves."""
    found: list[tuple[float, str]] = []

    def count(self: Any) -> None:
        self.codegen()
        for node, num_words in self.count_bytes()[1]:
            if "Extern" in type(node).__name__:
                continue
            reads = {each.name for each in node.read_writes.reads}
            writes = {each.name for each in node.read_writes.writes}
            parts = [
                word + " " + ", ".join(sorted(_described(self, name) for name in names))
                for word, names in (("reads", reads - writes), ("writes", writes))
            ]
            # It counts in units of four bytes.
            found.append((4e-6 * num_words, "; ".join(parts)))
        raise PlannedError

    graph, inputs, mode = on_gpu(graph)
    settings = {**options, "fx_graph_cache": False, "compile_threads": 1}
    ends = ("compile_to_module", "_compile_to_module")
    patches = [mock.patch.object(GraphLowering, name, count) for name in ends]
    with ExitStack() as scope:
        for each in (config.patch(settings), *patches):
            scope.enter_context(each)
        scope.enter_context(tracing(TracingContext(mode)))
        scope.enter_context(V.set_fake_mode(mode))
        try:
            compile_fx.compile_fx_inner(graph, inputs, is_backward=is_backward)
        except Exception:
            if not found:
                raise
    return found


def _described(graph: Any, name: str) -> str:
    buffer = graph.try_get_buffer(name) or graph.graph_inputs.get(name)
    if buffer is None:
        return name
    sizes = "x".join(str(size) for size in buffer.get_size())
    return f"{sizes} {str(buffer.get_dtype()).removeprefix('torch.')}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--network", default="resnet_18", choices=moments_gpu.NETWORKS)
    usual = "moments, exact, a variance per unit"
    parser.add_argument("--method", default=usual, choices=moments_gpu.METHODS)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--option", action="append", default=[], help="NAME=VALUE of inductor")
    parser.add_argument("--top", type=int, default=0, help="how many kernels to list")
    wanted = parser.parse_args()
    pretend_kernels()
    graphs = captured(wanted.network, wanted.method, wanted.batch)
    method, model = moments_gpu.METHODS[wanted.method], bf.build_model(wanted.network)
    own = method.gpu_compile_options(model)
    options = compile_options(True, torch.device("cuda"), own)
    options |= {name: json.loads(value) for name, value in (o.split("=") for o in wanted.option)}
    pretend_gpu()
    for graph, is_backward in graphs:
        start = time.process_time()
        found = kernels(graph, is_backward, options)
        seconds = time.process_time() - start
        side, moved = "backward" if is_backward else "forward", sum(each for each, _ in found) / 1e3
        print(f"{side}: {len(found)} kernels, {moved:.2f} GB, planned in {seconds:.0f} s")
        for megabytes, what in sorted(found, reverse=True)[: wanted.top]:
            print(f"  {megabytes:7.0f} MB {what}")


if __name__ == "__main__":
    main()
