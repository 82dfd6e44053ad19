"""Time and error of attention by moments on a GPU: fused, open, and plain beside them.

    python benchmarks/attention_gpu.py           # ViT-S/16: 128 images, 6 heads, 197 tokens, 64
    python benchmarks/attention_gpu.py --tune    # the sizes of tiles that are fastest
    python benchmarks/attention_gpu.py --rules pooled \
        --out results/vdp/attention_gpu_pooled.json

Errors are those of bfloat16 against the open form in float64, as a share of the largest entry.
"""

from __future__ import annotations

import argparse
import fcntl
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from gpu_turns import milliseconds
from provenance import provenance
from torch import Tensor

from bayesify.moments import (
    Moments,
    attention_rules,
    fused_attention,
    fused_pooled_attention,
    moment_rules,
)

SHAPE = (128, 6, 197, 64)
KERNELS = {
    "exact": ("sources_made", "targets_made", *fused_attention.TILES),
    "pooled": tuple(fused_pooled_attention.TILES),
}
MODULES: dict[str, Any] = {"exact": fused_attention, "pooled": fused_pooled_attention}
NUM_REPEATS = 20
TILES = [
    fused_attention.Tiles(targets, sources, warps, stages)
    for targets, sources in itertools.product((16, 32, 64, 128), (16, 32, 64, 128))
    for warps in (4, 8)
    for stages in (1, 2, 3)
    if 1024 <= targets * sources <= 4096 * (warps // 4)
]


def tensors(dtype: torch.dtype, shape: tuple[int, ...] = SHAPE) -> list[Tensor]:
    """Return queries, keys and values with their variances, as views of one projection each."""
    torch.manual_seed(0)
    batch, heads, tokens, features = shape
    packed = torch.randn(batch, tokens, 3, heads, features, device="cuda")
    spread = 0.1 * torch.randn_like(packed).square()
    parts = [each.to(dtype).permute(2, 0, 3, 1, 4).unbind(0) for each in (packed, spread)]
    return [part for pair in zip(*parts, strict=True) for part in pair]


def moments_of(given: list[Tensor]) -> tuple[Moments, Moments, Moments]:
    q, qv, k, kv, v, vv = given
    return Moments(q, qv), Moments(k, kv), Moments(v, vv)


def fused(given: list[Tensor]) -> tuple[Tensor, Tensor]:
    scale = given[0].shape[-1] ** -0.5
    return attention_rules.attend(*moments_of(given), None, 0.0, scale).pair()


def open_form(given: list[Tensor]) -> tuple[Tensor, Tensor]:
    scale = given[0].shape[-1] ** -0.5
    # A mask of zeros is one that no kernel takes.
    mask = torch.zeros((), dtype=given[0].dtype, device="cuda")
    return attention_rules.attend(*moments_of(given), mask, 0.0, scale).pair()


def plain(given: list[Tensor]) -> tuple[Tensor]:
    return (F.scaled_dot_product_attention(*given[::2]),)


def errors() -> dict[str, float]:
    """Return the largest errors of the fused form, of results and of gradients."""
    names = (
        "mean",
        "variance",
        *(f"gradient {name}" for name in ("q", "qv", "k", "kv", "v", "vv")),
    )
    given = [each.requires_grad_() for each in tensors(torch.bfloat16, (4, 6, 197, 64))]
    exact = [each.detach().double().requires_grad_() for each in given]
    found = []
    weights = None
    for call, inputs in ((fused, given), (open_form, exact)):
        results = call(inputs)
        if weights is None:
            weights = [torch.randn_like(each) for each in results]
        grads = torch.autograd.grad(
            results, inputs, [w.to(r.dtype) for w, r in zip(weights, results, strict=True)]
        )
        found.append([each.double() for each in (*results, *grads)])
    return {
        name: ((ours - true).abs().max() / true.abs().max()).item()
        for name, ours, true in zip(names, *found, strict=True)
    }


def timed(call: Callable[[], Any]) -> float:
    for _ in range(3):
        call()
    return statistics.median(milliseconds(call) for _ in range(NUM_REPEATS))


def row(name: str, call: Callable[[list[Tensor]], tuple[Tensor, ...]]) -> dict[str, Any]:
    given = [each.requires_grad_() for each in tensors(torch.bfloat16)]
    inputs = given[::2] if call is plain else given

    def step() -> None:
        results = call(given)
        torch.autograd.grad(results, inputs, [torch.ones_like(each) for each in results])

    with torch.no_grad():
        forward_ms = timed(lambda: call(given))
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    step_ms = timed(step)
    peak = torch.cuda.max_memory_allocated() - before
    return {
        "what": name,
        "forward_ms": round(forward_ms, 3),
        "step_ms": round(step_ms, 3),
        "peak_bytes": peak,
    }


def kernel_times(call: Callable[[], Any], rules: str) -> dict[str, float]:
    """Return the milliseconds that each kernel of attention takes on the GPU."""
    call()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as found:
        for _ in range(NUM_REPEATS):
            call()
        torch.cuda.synchronize()
    return {
        each.key: round(each.self_device_time_total / NUM_REPEATS / 1000, 4)
        for each in found.key_averages()
        if each.key in KERNELS[rules]
    }


def both_passes(given: list[Tensor], rules: str) -> None:
    scale = SHAPE[-1] ** -0.5
    if rules == "pooled":
        tokens = given[::2]
        numbers = [torch.rand(SHAPE[:3], device="cuda") for _ in range(5)]
        results = fused_pooled_attention.run_forward(*tokens, numbers, scale)
        given = (torch.ones(SHAPE, dtype=torch.bfloat16, device="cuda"), numbers[0])
        fused_pooled_attention.run_backward([*tokens, *numbers], list(results), *given, scale)
        return
    results = fused_attention.run_forward(*given, scale)
    ones = torch.ones(SHAPE, dtype=torch.bfloat16, device="cuda")
    saved = [results[0], *results[2:]]
    fused_attention.run_backward(given, saved, ones, ones, scale)


def tune_one(rules: str, kernel: str, tiles: fused_attention.Tiles) -> None:
    """Print how long a kernel takes with tiles of these sizes."""
    MODULES[rules].TILES[kernel] = tiles
    given = tensors(torch.bfloat16)
    both_passes(given, rules)
    torch.cuda.synchronize()
    with Path(tempfile.gettempdir(), "attention_gpu.turn").open("w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        found = kernel_times(lambda: both_passes(given, rules), rules)[kernel]
    print(json.dumps({"kernel": kernel, "tiles": tiles, "ms": found}))


def tune(rules: str, kernels: list[str]) -> dict[str, Any]:
    """Try all tiles, fourteen processes at a time, compiled side by side and timed in turn."""
    jobs = [(kernel, tiles) for tiles in TILES for kernel in kernels]
    running: list[Any] = []
    found: list[dict[str, Any]] = []
    while jobs or running:
        while jobs and len(running) < 14:
            kernel, tiles = jobs.pop(0)
            command = [sys.executable, __file__, "--rules", rules]
            command += ["--one", kernel, json.dumps(tiles)]
            running.append(
                subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
            )
        done = running.pop(0)
        lines = done.communicate()[0].decode().splitlines()
        if done.returncode == 0 and lines:
            found.append(json.loads(lines[-1]))
    fastest = {}
    for kernel in kernels:
        tried = sorted((each for each in found if each["kernel"] == kernel), key=lambda e: e["ms"])
        for each in tried[:6]:
            print(kernel, each["tiles"], each["ms"])
        fastest[kernel] = tried[0]["tiles"]
    return fastest


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rules", default="exact", choices=MODULES)
    parser.add_argument("--tune", nargs="*", help="some of the kernels; none for all of them")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, default=Path("results/vdp/attention_gpu.json"))
    wanted = parser.parse_args()
    if wanted.one is not None:
        kernel, tiles = wanted.one
        tune_one(wanted.rules, kernel, fused_attention.Tiles(*json.loads(tiles)))
        return
    tiles = MODULES[wanted.rules].TILES
    if unknown := set(wanted.tune or ()) - set(tiles):
        parser.error(f"--tune: no tiles of {', '.join(sorted(unknown))}; there are {list(tiles)}")
    if wanted.tune is not None:
        print(json.dumps(tune(wanted.rules, wanted.tune or list(tiles))))
        return
    with moment_rules(wanted.rules):
        report = measured(wanted.rules)
    wanted.out.parent.mkdir(parents=True, exist_ok=True)
    wanted.out.write_text(json.dumps(report, indent=2) + "\n")
    print(json.dumps(report["errors"]))
    print(json.dumps(report["kernels_ms"]))
    for each in report["rows"]:
        print(each)


def measured(rules: str) -> dict[str, Any]:
    given = tensors(torch.bfloat16)
    return {
        "provenance": provenance(__file__),
        "rules": rules,
        "shape": SHAPE,
        "errors": errors(),
        "kernels_ms": kernel_times(lambda: both_passes(given, rules), rules),
        "rows": [
            row("plain", plain),
            row("moments, fused", fused),
            row("moments, fused, compiled", torch.compile(fused)),
            row("moments, open form, compiled", torch.compile(open_form)),
        ],
    }


if __name__ == "__main__":
    main()
