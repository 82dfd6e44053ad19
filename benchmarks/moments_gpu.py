"""Time and memory of moment propagation on a GPU, over the plain network: ResNet-18 and ViT-S/16.

    python benchmarks/moments_gpu.py                          # some minutes, most of them compiling
    python benchmarks/moments_gpu.py --networks resnet_18     # one
    python benchmarks/moments_gpu.py --mode reduce-overhead   # passes captured in CUDA graphs
    python benchmarks/moments_gpu.py --mode captured          # as launched, and whole in a graph
    python benchmarks/moments_gpu.py --option realize_reads_threshold=4    # of torch's inductor
    python benchmarks/moments_gpu.py --only "per unit"        # variants whose names end so

A training step is forward, expected loss, KL, backward and fused SGD, compiled as `fit` would, in
bfloat16 autocast; an inference pass is what `predict` would run per batch, without reading off
classes, compiled without the options of a training step. Peak memory is the allocator's within a
step, which knows nothing of what graphs hold, and is left out there; "kernel_ms" is for how long
the GPU was busy in a step, whatever the processor beside it, and "longest" has the kernels. 30
sampled passes stand beside one moment pass.
Every variant has a process of its own; they compile side by side and are timed in turn.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from gpu_turns import give_row, graphed, in_turn, milliseconds, rows_of
from provenance import provenance
from torch import Tensor, nn

import bayesify as bf
from bayesify.conversion.scope import forward_by
from bayesify.moments import moment_rules
from bayesify.moments.written_down import scales_written_down
from bayesify.training.compiling import PassWithKL, compile_options

NETWORKS: dict[str, tuple[int, int]] = {"resnet_18": (512, 32), "vit_small": (128, 224)}
METHODS: dict[str, bf.Method] = {
    "plain": bf.Deterministic(),
    "moments, exact": bf.MomentPropagation(rules="exact"),
    "moments, taylor": bf.MomentPropagation(rules="taylor"),
    "moments, exact, a variance per unit": bf.MomentPropagation(scale="out"),
    "moments, taylor, a variance per unit": bf.MomentPropagation(rules="taylor", scale="out"),
    "moments, pooled": bf.MomentPropagation(rules="pooled"),
    "moments, pooled, a variance per unit": bf.MomentPropagation(rules="pooled", scale="out"),
    "sampled": bf.MeanField(how="sample"),
}
MEASURED = (
    "step_ms",
    "kernel_ms",
    "peak_bytes",
    "inference_ms",
    "captured_step_ms",
    "captured_inference_ms",
)
NUM_REPEATS, NUM_PASSES, NUM_LONGEST, NUM_DATA = 30, 30, 40, 50_000


class Reading(nn.Module):
    """The network with tensors at its end, so that compiled code has no class to return."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        """Return the mean and, of moments, the variance."""
        output = self.network(images)
        return output.pair() if isinstance(output, bf.moments.Moments) else (output,)


def names_of(networks: str, only: list[str]) -> tuple[str, ...]:
    wanted = tuple(only) or ("",)
    methods = [method for method in METHODS if method == "plain" or method.endswith(wanted)]
    return tuple(f"{network}: {method}" for network in networks.split(",") for method in methods)


def options_of(
    wanted: argparse.Namespace, of_method: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return what torch.compile is to do: by the mode, the method, and options of one's own."""
    pairs = (each.split("=", 1) for each in wanted.option)
    mode = "default" if wanted.mode == "captured" else wanted.mode
    usual = compile_options(mode, torch.device("cuda"), of_method)
    return {**usual, **{name: json.loads(value) for name, value in pairs}}


def measured(names: tuple[str, ...], name: str, folder: Path, wanted: argparse.Namespace) -> None:
    device = "cuda"
    network, method = name.split(": ")
    batch, size = NETWORKS[network]
    torch.manual_seed(0)
    plain = bf.build_model(network, num_classes=10).to(memory_format=torch.channels_last)
    model = bf.convert(plain, METHODS[method]).to(device)
    images = torch.randn(batch, 3, size, size, device=device)
    images = images.to(memory_format=torch.channels_last)
    targets = torch.randint(0, 10, (batch,), device=device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9, fused=True)
    options = options_of(wanted, METHODS[method].gpu_compile_options(model))
    forward: Any = torch.compile(PassWithKL(Reading(model), torch.device(device)), options=options)
    # As anyone would who only predicts: what suits a backward pass makes this one slower.
    predicting: Any = torch.compile(Reading(model), options=options_of(wanted))
    by_moments = isinstance(METHODS[method], bf.MomentPropagation)

    def step() -> None:
        torch.compiler.cudagraph_mark_step_begin()
        with torch.autocast(device, torch.bfloat16):
            output, divergence = forward(images)
            nll = expected_nll(output, targets)
        (nll + divergence / NUM_DATA).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    @torch.no_grad()
    def inference() -> None:
        torch.compiler.cudagraph_mark_step_begin()
        with torch.autocast(device, torch.bfloat16):
            predicting(images)

    rules = METHODS[method].rules if by_moments else "exact"  # pyright: ignore[reportAttributeAccessIssue]
    how = "moments" if by_moments else "sample"

    def warm_up() -> None:
        model.train()
        repeated(step, 4)
        model.eval()
        repeated(inference, 4)

    with (
        forward_by(model, how),
        moment_rules(rules),
        scales_written_down(),
        in_turn(names, name, folder, warm_up),
    ):
        model.train()
        repeated(step, 2)
        torch.cuda.reset_peak_memory_stats()
        row: dict[str, Any] = {"options": options, "step_ms": median_ms(step)}
        if not options.get("triton.cudagraphs"):
            row["peak_bytes"] = torch.cuda.max_memory_allocated()
        kernels = kernels_of(step)
        row["kernel_ms"] = round(sum(ms for _, ms, _ in kernels), 3)
        row["longest"] = kernels[:NUM_LONGEST]
        model.eval()
        row["inference_ms"] = median_ms(inference)
        if wanted.mode == "captured":
            # In case that it cannot be.
            give_row(names, name, folder, row)
            row["captured_inference_ms"] = median_ms(graphed(inference))
            model.train()
            row["captured_step_ms"] = median_ms(graphed(step))
    give_row(names, name, folder, row)


def median_ms(call: Callable[[], None]) -> float:
    repeated(call, 2)
    return round(statistics.median(milliseconds(call) for _ in range(NUM_REPEATS)), 3)


def expected_nll(output: tuple[Tensor, ...], targets: Tensor) -> Tensor:
    if len(output) == 1:
        return F.cross_entropy(output[0].float(), targets)
    mean, variance = (each.float() for each in output)
    draws = mean + (variance + 1e-20).sqrt() * torch.randn(16, *mean.shape, device=mean.device)
    return F.cross_entropy(draws.flatten(0, 1), targets.repeat(16))


def kernels_of(call: Callable[[], None]) -> list[tuple[str, float, int]]:
    """Return the kernels of one call, the longest first: names, milliseconds, launches."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as found:
        repeated(call, 3)
        torch.cuda.synchronize()
    kernels = [
        (event.key[:100], round(event.self_device_time_total / 3000, 4), event.count // 3)
        for event in found.key_averages()
    ]
    return sorted(kernels, key=lambda each: -each[1])


def repeated(call: Callable[[], None], times: int) -> None:
    for _ in range(times):
        call()


def rows(networks: str, only: list[str], mode: str, given: list[str]) -> list[dict[str, Any]]:
    passed = [part for each in given for part in ("--option", each)]
    passed += [part for each in only for part in ("--only", each)]
    passed += ["--networks", networks, "--mode", mode]
    found = rows_of(__file__, names_of(networks, only), *passed)
    plain = {row["what"].split(": ")[0]: row for row in found if row["what"].endswith("plain")}
    for row in found:
        own = plain[row["what"].split(": ")[0]]
        for what in MEASURED:
            if what in row and what in own:
                row[f"{what.rsplit('_', 1)[0]}_ratio"] = round(row[what] / own[what], 3)
        if row["what"].endswith("sampled") and "inference_ms" in row:
            row["inference_30_ratio"] = round(NUM_PASSES * row["inference_ratio"], 1)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--networks", default=",".join(NETWORKS))
    parser.add_argument("--out", type=Path, default=Path("results/vdp/cost_gpu.json"))
    parser.add_argument("--mode", default="default", help="of torch.compile")
    parser.add_argument("--option", action="append", default=[], help="NAME=VALUE of inductor")
    parser.add_argument(
        "--only", action="append", default=[], help="end of the names of variants beside plain"
    )
    parser.add_argument("--one", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--variant", help=argparse.SUPPRESS)
    wanted = parser.parse_args()
    if wanted.one is not None:
        names = names_of(wanted.networks, wanted.only)
        measured(names, wanted.variant, wanted.one, wanted)
        return
    report = {
        "provenance": provenance(__file__),
        "networks": NETWORKS,
        "mode": wanted.mode,
        "rows": rows(wanted.networks, wanted.only, wanted.mode, wanted.option),
    }
    wanted.out.parent.mkdir(parents=True, exist_ok=True)
    wanted.out.write_text(json.dumps(report, indent=2) + "\n")
    for row in report["rows"]:
        print({name: value for name, value in row.items() if name != "longest"})


if __name__ == "__main__":
    main()
