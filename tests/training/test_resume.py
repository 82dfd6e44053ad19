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
        assert not list(folder.glob(".*"))


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
        loader = DataLoader(data, 8, shuffle=True, generator=torch.Generator().manual_seed(5))
        model = bf.convert(nn.Linear(1, 2), bf.MeanField())
        bf.fit(
            model,
            loader,
            epochs=3,
            likelihood="classification",
            run_dir=folder,
            resume=True,
            checkpoint_every=1,
            progress=False,
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


class Killed(Exception):
    """Stands for the end of a process at one exact moment."""


def cross_entropy_that_dies(at: int | None):
    calls = 0

    def loss(output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += 1
        if calls == at:
            raise Killed
        return nn.functional.cross_entropy(output, targets)

    return loss


def assert_resumes_alike(folder: Path, run, **death: int) -> None:
    """Compare an undisturbed run with one that dies and is taken up again."""
    whole, expected = run(folder / "whole")
    with pytest.raises((Killed, KeyboardInterrupt)):
        run(folder / "cut", **death)
    resumed, found = run(folder / "cut")
    for a, b in zip(whole.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(a, b)
    for one, other in zip(expected.rows, found.rows, strict=True):
        assert {**one, "seconds": 0} == {**other, "seconds": 0}


def moons() -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(96, 5, generator=generator)
    return TensorDataset(x, (x[:, 0] > 0).long())


def network() -> nn.Module:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 2))
    return bf.convert(net, bf.MeanField())


OPTIONS = {"epochs": 2, "seed": 1, "resume": True, "progress": False}


@pytest.mark.parametrize("at", [1, 4, 8, 12])
def test_data_that_draws_random_numbers_resumes_alike(tmp_path: Path, at: int) -> None:
    class Augmented(TensorDataset):
        def __getitem__(self, index: int) -> tuple[torch.Tensor, ...]:
            x, y = super().__getitem__(index)
            return x + torch.randn(5), y

    def run(folder: Path, dies_at: int | None = None) -> tuple[nn.Module, bf.History]:
        model = network()
        loader = DataLoader(Augmented(*moons().tensors), 16, shuffle=True)
        loss = cross_entropy_that_dies(dies_at)
        history = bf.fit(
            model, loader, run_dir=folder, checkpoint_every=1, likelihood=loss, **OPTIONS
        )
        return model, history

    assert_resumes_alike(tmp_path, run, dies_at=at)


@pytest.mark.parametrize("dies_in", [1, 2])
def test_death_in_validation_resumes_alike(tmp_path: Path, dies_in: int) -> None:
    # The last batch of the epoch has been checkpointed, the epoch has not.
    def run(folder: Path, dies_in: int | None = None) -> tuple[nn.Module, bf.History]:
        class Validation:
            reads = 0
            own = DataLoader(moons(), 40, shuffle=True, generator=torch.Generator().manual_seed(3))
            generator = own.generator

            def __iter__(self):
                self.reads += 1
                if self.reads == dies_in:
                    raise Killed
                return iter(self.own)

        model = network()
        history = bf.fit(
            model,
            DataLoader(moons(), 16, shuffle=True),
            Validation(),
            run_dir=folder,
            checkpoint_every=1,
            keep_best=True,
            **OPTIONS,
        )
        return model, history

    assert_resumes_alike(tmp_path, run, dies_in=dies_in)


def test_interrupt_between_two_batches_of_a_step_waits_for_the_step(tmp_path: Path) -> None:
    def run(folder: Path, stops_at: int | None = None) -> tuple[nn.Module, bf.History]:
        calls = 0

        def loss(output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            nonlocal calls
            calls += 1
            if calls == stops_at:
                os.kill(os.getpid(), signal.SIGINT)
            return nn.functional.cross_entropy(output, targets)

        model = network()
        loader = DataLoader(moons(), 16, shuffle=True)
        history = bf.fit(model, loader, run_dir=folder, accumulate=3, likelihood=loss, **OPTIONS)
        return model, history

    assert_resumes_alike(tmp_path, run, stops_at=3)


def test_interrupt_in_the_last_validation_is_not_swallowed(tmp_path: Path) -> None:
    class Validation:
        def __iter__(self):
            os.kill(os.getpid(), signal.SIGINT)
            return iter(DataLoader(moons(), 48))

    loader = DataLoader(moons(), 32)
    with pytest.raises(KeyboardInterrupt):
        bf.fit(network(), loader, Validation(), epochs=1, run_dir=tmp_path, progress=False)


def test_best_weights_of_an_older_run_are_never_put_back(tmp_path: Path) -> None:
    loaders = DataLoader(moons(), 32), DataLoader(moons(), 96)
    options = {"run_dir": tmp_path, "seed": 0, "progress": False}
    old = network()
    bf.fit(old, *loaders, epochs=8, keep_best=True, learning_rate=0.01, **options)
    bf.fit(network(), *loaders, epochs=2, learning_rate=0.5, **options)
    resumed = network()
    bf.fit(resumed, *loaders, epochs=2, learning_rate=0.5, resume=True, keep_best=True, **options)
    assert not torch.equal(old[0].weight_posterior.mean, resumed[0].weight_posterior.mean)


def test_resume_takes_a_new_rate_and_refuses_a_new_optimizer(tmp_path: Path) -> None:
    loader = DataLoader(moons(), 32)
    options = {"run_dir": tmp_path, "progress": False}
    model = network()
    bf.fit(model, loader, epochs=1, **options)
    before = model[0].weight_posterior.mean.clone()
    with pytest.raises(ArchiveError, match="another optimizer than this SGD"):
        bf.fit(model, loader, epochs=2, resume=True, optimizer="sgd", **options)
    bf.fit(model, loader, epochs=2, resume=True, learning_rate=1e-12, **options)
    torch.testing.assert_close(model[0].weight_posterior.mean, before, rtol=0, atol=1e-9)


def test_finished_run_remembers_where_its_classes_lie(tmp_path: Path) -> None:
    words = torch.randint(0, 7, (16, 5))
    loader = DataLoader(TensorDataset(words, words), 8)
    for _ in range(2):
        net = nn.Sequential(nn.Embedding(7, 4), nn.Linear(4, 7))
        model = bf.convert(net, bf.MeanField())
        bf.fit(model, loader, epochs=1, run_dir=tmp_path, resume=True, progress=False)
    assert bf.predict(model, words, num_samples=2).probs.shape == (16, 7, 5)
