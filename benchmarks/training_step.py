"""Time of one training step of a Bayesian network over the plain one's, side by side.

    python benchmarks/training_step.py --out results/core/training_step.json

On a GPU: ResNet-18 (CIFAR stem), batch 512, bfloat16 autocast, channels-last, SGD with momentum,
each side eager, compiled, and compiled with CUDA graphs of its passes; ours and the plain network's
also with the whole step captured, which the peers are not. `ratio_best_to_best` is therefore hard
on the peers wherever "captured" is measured: compare them with the plain network mode by mode.
On a CPU: LeNet-5 and ResNet-20, float32, one thread, eager. Peers are measured when importable
(bayesian-torch, ivon-opt). Every figure is the median of several rounds, and all contestants take
turns within a round, so that a slow moment of the machine hits them alike.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from gpu_turns import graphed
from provenance import provenance, store
from torch import Tensor, nn

import bayesify as bf

NUM_DATA = 50_000
# "reduced": compiled, with CUDA graphs of the forward and the backward pass; "captured": compiled,
# and the whole step, optimisers included, in one CUDA graph.
MODES = ("eager", "compiled", "reduced", "captured")
# Every contestant is the same closure with other modules in it; none may evict another, because a
# captured CUDA graph still calls the kernels of its compiled code.
torch._dynamo.config.recompile_limit = 64
Step = Callable[[], Tensor]


def plain_step(net: nn.Module, x: Tensor, y: Tensor, *, mode: str) -> Step:
    optimizer = torch.optim.SGD(net.parameters(), 0.01, momentum=0.9, foreach=True)

    def loss() -> Tensor:
        with torch.autocast(x.device.type, torch.bfloat16, enabled=x.is_cuda):
            output = net(x)
        return F.cross_entropy(output.float(), y)

    return finish(compiled_as(loss, mode), [optimizer])


def bayesian_step(net: nn.Module, x: Tensor, y: Tensor, how: str, *, mode: str) -> Step:
    model = bf.convert(net, bf.MeanField(prior_std=0.1, how=how))
    scales = [p for n, p in model.named_parameters() if n.endswith(".rho")]
    others = [p for n, p in model.named_parameters() if not n.endswith(".rho")]
    optimizers = [
        torch.optim.SGD(others, 0.01, momentum=0.9, foreach=True),
        torch.optim.Adam(scales, 1e-2, fused=x.is_cuda or None, capturable=x.is_cuda),
    ]

    def loss() -> Tensor:
        with torch.autocast(x.device.type, torch.bfloat16, enabled=x.is_cuda):
            output = model(x)
        nll = F.cross_entropy(output.float(), y)
        return bf.elbo_loss(nll, model, num_data=NUM_DATA).total

    return finish(compiled_as(loss, mode, fullgraph=True), optimizers)


def finish(loss: Callable[[], Tensor], optimizers: list[torch.optim.Optimizer]) -> Step:
    def step() -> Tensor:
        for optimizer in optimizers:
            optimizer.zero_grad(set_to_none=True)
        value = loss()
        value.backward()
        for optimizer in optimizers:
            optimizer.step()
        return value

    return step


def bayesian_torch_step(net: nn.Module, x: Tensor, y: Tensor, kind: str, *, mode: str) -> Step:
    from bayesian_torch.models.dnn_to_bnn import dnn_to_bnn, get_kl_loss

    dnn_to_bnn(
        net,
        {
            "prior_mu": 0.0,
            "prior_sigma": 0.1,
            "posterior_mu_init": 0.0,
            "posterior_rho_init": -5.0,
            "type": kind,
            "moped_enable": False,
            "moped_delta": 0.5,
        },
    )
    net.to(x.device, memory_format=torch.channels_last if x.is_cuda else torch.preserve_format)
    optimizer = torch.optim.SGD(net.parameters(), 0.01, momentum=0.9, foreach=True)

    def loss() -> Tensor:
        with torch.autocast(x.device.type, torch.bfloat16, enabled=x.is_cuda):
            output = net(x)
        return F.cross_entropy(output.float(), y) + get_kl_loss(net) / NUM_DATA

    return finish(compiled_as(loss, mode), [optimizer])


def ivon_step(net: nn.Module, x: Tensor, y: Tensor, *, mode: str) -> Step:
    from ivon import IVON

    optimizer = IVON(net.parameters(), lr=0.1, ess=NUM_DATA)

    def loss() -> Tensor:
        with torch.autocast(x.device.type, torch.bfloat16, enabled=x.is_cuda):
            output = net(x)
        return F.cross_entropy(output.float(), y)

    inner = compiled_as(loss, mode)

    def step() -> Tensor:
        with optimizer.sampled_params(train=True):
            optimizer.zero_grad()
            value = inner()
            value.backward()
        optimizer.step()
        return value

    return step


def compiled_as(loss: Callable[[], Tensor], mode: str, **options: Any) -> Callable[[], Tensor]:
    """Return the loss as it is, compiled, or compiled with CUDA graphs of its two passes."""
    if mode == "eager":
        return loss
    return torch.compile(loss, mode="reduce-overhead" if mode == "reduced" else None, **options)


def timed(step: Step, repeats: int, *, on_gpu: bool) -> float:
    """Return milliseconds per step."""
    if on_gpu:
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(repeats):
            step()
        end.record()
        torch.cuda.synchronize()
        return start.elapsed_time(end) / repeats
    began = time.perf_counter()
    for _ in range(repeats):
        step()
    return 1e3 * (time.perf_counter() - began) / repeats


def contestants(
    build: Callable[[], nn.Module], x: Tensor, y: Tensor, wanted: argparse.Namespace
) -> dict[str, Step]:
    """Return every step that can be built here, by name and mode."""
    makers: dict[str, Callable[..., Step]] = {
        "deterministic": plain_step,
        "mean-field, sampled weights": lambda *a, **k: bayesian_step(*a, "sample", **k),
        "mean-field, local reparameterisation": lambda *a, **k: bayesian_step(*a, "local", **k),
        "bayesian-torch, reparameterisation": lambda *a, **k: bayesian_torch_step(
            *a, "Reparameterization", **k
        ),
        "bayesian-torch, flipout": lambda *a, **k: bayesian_torch_step(*a, "Flipout", **k),
        "ivon": ivon_step,
    }
    steps: dict[str, Step] = {}
    for name, make in makers.items():
        if not any(word in name for word in wanted.only.split(",")):
            continue
        for mode in wanted.modes.split(",") if x.is_cuda else MODES[:1]:
            if mode == "captured" and not name.startswith(("deterministic", "mean-field")):
                continue
            began = time.perf_counter()
            try:
                step = make(build(), x, y, mode=mode)
                for _ in range(5):
                    step()
                step = graphed(step) if mode == "captured" else step
                steps[f"{name} | {mode}"] = step
                took = time.perf_counter() - began
                alone = timed(step, 10, on_gpu=x.is_cuda)
                print(f"ready: {name} | {mode} in {took:.0f} s, alone {alone:.2f} ms", flush=True)
            except Exception as error:
                print(f"left out: {name} | {mode}: {type(error).__name__}: {str(error)[:300]}")
    return steps


def compare(
    build: Callable[[], nn.Module], x: Tensor, y: Tensor, wanted: argparse.Namespace
) -> dict[str, Any]:
    """Time every contestant in turns; return medians and best-to-best ratios."""
    steps = contestants(build, x, y, wanted)
    repeats = 20 if x.is_cuda else 2
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(wanted.rounds):
        for name, step in steps.items():
            times[name].append(timed(step, repeats, on_gpu=x.is_cuda))
    medians = {name: statistics.median(values) for name, values in times.items()}
    best: dict[str, float] = {}
    for name, value in medians.items():
        who = name.split(" | ")[0]
        best[who] = min(best.get(who, float("inf")), value)
    ratios = {who: value / best["deterministic"] for who, value in best.items()}
    return {"milliseconds": medians, "best_milliseconds": best, "ratio_best_to_best": ratios}


def on_gpu(wanted: argparse.Namespace) -> dict[str, Any]:
    device = torch.device("cuda")
    torch.backends.cudnn.benchmark = True
    x = torch.randn(512, 3, 32, 32, device=device).to(memory_format=torch.channels_last)
    y = torch.randint(0, 10, (512,), device=device)

    def build() -> nn.Module:
        torch.manual_seed(0)
        return bf.build_model("resnet_18").to(device, memory_format=torch.channels_last)

    return {"resnet_18, batch 512, bf16": compare(build, x, y, wanted)}


def on_cpu(wanted: argparse.Namespace) -> dict[str, Any]:
    torch.set_num_threads(1)
    results = {}
    for name, shape, size in (("lenet_5", (1, 28, 28), 128), ("resnet_20", (3, 32, 32), 64)):
        x, y = torch.randn(size, *shape), torch.randint(0, 10, (size,))
        results[f"{name}, batch {size}, float32, one thread"] = compare(
            lambda name=name: bf.build_model(name), x, y, wanted
        )
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--modes", default=",".join(MODES), help="modes to try on a GPU")
    parser.add_argument("--only", default="", help="comma-separated parts of names to measure")
    arguments = parser.parse_args()
    is_gpu = torch.cuda.is_available()
    began = time.perf_counter()
    results = (on_gpu if is_gpu else on_cpu)(arguments)
    report = {
        **provenance(__file__),
        "wall_seconds": round(time.perf_counter() - began, 1),
        "results": results,
    }
    for setting, values in results.items():
        print(f"\n{setting}")
        for name, value in values["milliseconds"].items():
            print(f"  {name:55s} {value:9.3f} ms")
        for name, value in values["ratio_best_to_best"].items():
            print(f"  best to best: {name:41s} {value:9.3f} x")
    store(arguments.out, report)


if __name__ == "__main__":
    main()
