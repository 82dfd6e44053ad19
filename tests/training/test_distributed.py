"""Two gloo processes: the same weights on both, the KL once, the curve of one process."""

import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import bayesify as bf
from bayesify.training.compiling import torch_release

SCRIPT = Path(__file__).with_name("distributed_run.py")
NEEDS_SHARDED_SOFTPLUS = pytest.mark.skipif(torch_release() < (2, 11), reason="torch before 2.11")


def launch(folder: Path, strategy: str, scale: str, processes: int) -> list[dict[str, Any]]:
    folder.mkdir()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    command: list[Any] = [sys.executable]
    if processes > 1:
        command += ["-m", "torch.distributed.run", "--nproc-per-node", str(processes)]
        command += ["--master-port", port]
    command += [SCRIPT, folder, strategy, scale, "3"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(processes)]


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", pytest.param("fsdp", marks=NEEDS_SHARDED_SOFTPLUS)])
def test_two_processes_agree_and_count_the_kl_once(tmp_path: Path, strategy: str) -> None:
    first, second = launch(tmp_path / "two", strategy, "full", 2)
    assert first["state"] == second["state"]
    assert first["kl"] == second["kl"]
    net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
    model = bf.convert(net, bf.MeanField(prior_std=0.5))
    state = {key: torch.tensor(value) for key, value in first["state"].items()}
    model.load_state_dict(state)
    # The KL both ranks report is that of the whole model, neither half nor twice of it.
    assert first["kl_now"] == pytest.approx(bf.kl(model).item(), rel=1e-6)
    if strategy == "fsdp":
        loaded = bf.load(tmp_path / "two" / "model0.safetensors", net)
        for name, value in loaded.state_dict().items():
            torch.testing.assert_close(value, state[name], rtol=1e-6, atol=0)


@pytest.mark.slow
def test_at_zero_scale_two_processes_follow_the_curve_of_one(tmp_path: Path) -> None:
    (alone,) = launch(tmp_path / "one", "auto", "zero", 1)
    pair = launch(tmp_path / "two", "ddp", "zero", 2)
    assert pair[0]["nll"] == pytest.approx(alone["nll"], rel=1e-5)
    for name, value in alone["state"].items():
        found = torch.tensor(pair[0]["state"][name])
        torch.testing.assert_close(found, torch.tensor(value), rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_two_processes_move_to_the_same_subspace(tmp_path: Path) -> None:
    first, second = launch(tmp_path / "two", "ddp", "sparse", 2)
    assert first["state"] == second["state"]
    net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
    start = bf.convert(net, bf.SparseSubspace(0.4, interval=2, first_dense=False)).state_dict()
    for path in ("0.weight_posterior.index", "2.weight_posterior.index"):
        assert len(first["state"][path]) == len(start[path])
        assert first["state"][path] != start[path].tolist()
