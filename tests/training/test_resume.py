"""A run that dies at any moment goes on to bit-identical weights."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import bayesify as bf
from bayesify.archive import ArchiveError, read_archive

SCRIPT = Path(__file__).with_name("interrupted_run.py")


def start(folder: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-W", "error", SCRIPT, folder])


def final_weights(folder: Path) -> dict[str, torch.Tensor]:
    return read_archive(folder / "final.safetensors", "model")[0]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_killed_run_resumes_to_bit_identical_weights(tmp_path: Path) -> None:
    began = time.perf_counter()
    assert start(tmp_path / "whole").wait() == 0
    duration = time.perf_counter() - began
    expected = final_weights(tmp_path / "whole")
    moments = random.Random(0)
    num_kills = int(os.environ.get("BAYESIFY_KILLS", "2"))
    for attempt in range(num_kills):
        folder = tmp_path / f"killed_{attempt}"
        process = start(folder)
        # The wait begins once training does, so that the kill falls into it, not into imports.
        while not (folder / "checkpoint.safetensors").is_file():
            assert process.poll() is None
            time.sleep(0.005)
        time.sleep(moments.uniform(0.0, 0.4 * duration))
        process.send_signal(signal.SIGKILL)
        process.wait()
        (folder / "final.safetensors").unlink(missing_ok=True)
        assert start(folder).wait() == 0
        found = final_weights(folder)
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[name], expected[name]) for name in expected)
        assert not list(folder.glob(".checkpoint*"))[1:]


def small_run(folder: Path | None, **options: object) -> tuple[nn.Module, bf.History]:
    torch.manual_seed(0)
    x = torch.randn(64, 5)
    y = (x[:, 0] > 0).long()
    model = bf.convert(nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 2)), bf.MeanField())
    history = bf.fit(
        model,
        DataLoader(TensorDataset(x, y), 16, shuffle=True),
        run_dir=folder,
        progress=False,
        **{"epochs": 3, "seed": 1, **options},
    )
    return model, history


def test_finished_run_is_not_trained_again(tmp_path: Path) -> None:
    first, _ = small_run(tmp_path)
    second, history = small_run(tmp_path, resume=True)
    for a, b in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(a, b)
    assert len(history.rows) == 3


def test_loader_with_its_own_generator_resumes_in_the_same_order(tmp_path: Path) -> None:
    seen: list[list[float]] = []

    class Stop(Exception):
        pass

    class Data(TensorDataset):
        limit: int | None = None

        def __getitem__(self, index: int) -> tuple[torch.Tensor, ...]:
            if self.limit is not None and len(seen[-1]) >= self.limit:
                raise Stop
            seen[-1].append(float(self.tensors[0][index, 0]))
            return super().__getitem__(index)

    def run(limit: int | None, folder: Path) -> nn.Module:
        seen.append([])
        torch.manual_seed(0)
        data = Data(torch.arange(32.0).unsqueeze(1), torch.zeros(32, dtype=torch.long))
        data.limit = limit
        loader = DataLoader(
            data, 8, shuffle=True, generator=torch.Generator().manual_seed(5)
        )
        model = bf.convert(nn.Linear(1, 2), bf.MeanField())
        bf.fit(
            model, loader, epochs=3, likelihood="classification", run_dir=folder, resume=True,
            checkpoint_every=1, progress=False,
        )
        return model

    whole = run(None, tmp_path / "a")
    with pytest.raises(Stop):
        run(8 + 32 + 20, tmp_path / "b")  # in the second epoch's third batch
    resumed = run(None, tmp_path / "b")
    for a, b in zip(whole.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(a, b)


def test_resume_with_another_model_is_refused(tmp_path: Path) -> None:
    small_run(tmp_path)
    model = bf.convert(nn.Linear(5, 2), bf.MeanField())
    data = DataLoader(TensorDataset(torch.randn(8, 5), torch.zeros(8, dtype=torch.long)), 4)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(ArchiveError, match="belongs to another model"):
        bf.fit(model, data, epochs=1, run_dir=tmp_path, resume=True, progress=False)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_interrupt_writes_a_checkpoint_and_stops(tmp_path: Path) -> None:
    whole, _ = small_run(tmp_path / "whole")

    class Interrupting(DataLoader):  # type: ignore[type-arg]
        count = 0

        def __iter__(self):  # type: ignore[no-untyped-def]
            for batch in super().__iter__():
                Interrupting.count += 1
                if Interrupting.count == 7:
                    os.kill(os.getpid(), signal.SIGINT)
                yield batch

    def run(kind: type) -> nn.Module:
        torch.manual_seed(0)
        x = torch.randn(64, 5)
        y = (x[:, 0] > 0).long()
        net = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 2))
        model = bf.convert(net, bf.MeanField())
        loader = kind(TensorDataset(x, y), 16, shuffle=True)
        bf.fit(
            model, loader, epochs=3, seed=1, run_dir=tmp_path / "cut", resume=True, progress=False
        )
        return model

    with pytest.raises(KeyboardInterrupt):
        run(Interrupting)
    resumed = run(DataLoader)
    for a, b in zip(whole.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(a, b)
