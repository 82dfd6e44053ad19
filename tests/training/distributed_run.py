"""A script for torchrun: trains a small model on several processes and writes what it saw.

usage: distributed_run.py OUT STRATEGY SCALE EPOCHS
"""

import json
import os
import sys
import time
from pathlib import Path

import torch
from torch import distributed, nn
from torch.utils.data import DataLoader, TensorDataset

import bayesify as bf

NUM_DATA, GLOBAL_BATCH = 96, 32


def make_model(scale: str) -> nn.Module:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
    if scale == "sparse":
        return bf.convert(net, bf.SparseSubspace(0.4, interval=2, first_dense=False))
    model = bf.convert(net, bf.MeanField(prior_std=0.5))
    if scale == "zero":
        for name, parameter in model.named_parameters():
            if name.endswith(".rho"):
                parameter.data.fill_(-200.0)
                parameter.requires_grad_(False)
    return model


def main() -> None:
    out, strategy, scale, epochs = sys.argv[1:5]
    world = int(os.environ.get("WORLD_SIZE", "1"))
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(NUM_DATA, 6, generator=generator)
    y = (x[:, :3] + 0.3 * torch.randn(NUM_DATA, 3, generator=generator)).argmax(1)
    model = make_model(scale)
    history = bf.fit(
        model,
        DataLoader(TensorDataset(x, y), GLOBAL_BATCH // world),
        epochs=int(epochs),
        beta=1.0 if scale == "full" else 0.0,
        optimizer="sgd",
        learning_rate=0.1,
        seed=0,
        accelerator="cpu",
        strategy=strategy,
        run_dir=Path(out) / "run",
        progress=False,
    )
    rank = int(os.environ.get("RANK", "0"))
    state = {key: _whole(value).tolist() for key, value in model.state_dict().items()}
    report = {"nll": history.column("nll"), "kl": history.column("kl"), "state": state}
    report["kl_now"] = bf.kl(model).item()
    (Path(out) / f"rank{rank}.json").write_text(json.dumps(report))
    if strategy == "fsdp":
        bf.save(model, Path(out) / f"model{rank}.safetensors")
    if strategy == "ddp":
        _leave_reductions_behind()


def _leave_reductions_behind() -> None:
    """End with tensors in the hands of gloo's threads, and be slow to end.

    A thread that gives such a tensor back to an interpreter that is ending aborts the process.
    """
    for _ in range(20):
        distributed.all_reduce(torch.ones(100_000), async_op=True)
    sys.slow_to_end = _SlowToEnd()  # pyright: ignore[reportAttributeAccessIssue]


class _SlowToEnd:
    def __del__(self) -> None:
        time.sleep(0.5)


def _whole(value: torch.Tensor) -> torch.Tensor:
    return value.full_tensor() if hasattr(value, "full_tensor") else value


if __name__ == "__main__":
    main()
