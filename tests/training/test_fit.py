"""The training loop: what moves, what is recorded, what stops it."""

import csv
import dataclasses
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import bayesify as bf
from bayesify.training.progress import Reporter
from bayesify.training.settings import FitOptions, FitSettings
from training.small_problem import data, network


def run(method: bf.Method | None = None, **options: Any) -> tuple[nn.Module, bf.History]:
    model = bf.convert(network(), bf.MeanField(prior_std=0.5) if method is None else method)
    loader = DataLoader(data(), options.pop("batch_size", 32))
    settings = {"epochs": 2, "seed": 0, "progress": False, **options}
    return model, bf.fit(model, loader, DataLoader(data(), 48), **settings)


@pytest.mark.parametrize("scale_optimizer", ["adam", "rmsprop"])
@pytest.mark.parametrize("optimizer", ["adam", "adamw", "sgd", "rmsprop", "adagrad"])
def test_every_optimiser_learns_and_moves_every_scale(optimizer: str, scale_optimizer: str) -> None:
    before = bf.convert(network(), bf.MeanField(prior_std=0.5))
    rate = 0.05 if optimizer in ("sgd", "adagrad") else 1e-2
    options = {"optimizer": optimizer, "scale_optimizer": scale_optimizer, "epochs": 12}
    model, history = run(learning_rate=rate, **options)
    assert history.rows[-1]["nll"] < 0.8 * history.rows[0]["nll"]
    for (name, old), new in zip(before.named_parameters(), model.parameters(), strict=True):
        if name.endswith(".rho"):
            # A scale left at its start is the classic failure of plain SGD.
            assert (new - old).abs().min() > 0.05, name


def test_weight_decay_never_touches_scales_or_vectors() -> None:
    from bayesify.training.optimiser import make_optimizers

    model = bf.convert(network(), bf.MeanField(biases=True))
    settings = FitSettings(epochs=1, weight_decay=0.1)
    main, scales = make_optimizers(model, nn.Identity(), settings)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    decayed = {names[id(p)] for g in main.param_groups if g["weight_decay"] for p in g["params"]}
    assert decayed == {"0.weight_posterior.mean", "2.weight_posterior.mean"}
    moved = {names[id(p)] for group in scales.param_groups for p in group["params"]}
    assert moved == {name for name in names.values() if name.endswith(".rho")}
    assert all(group["weight_decay"] == 0 for group in scales.param_groups)
    everything = [p for o in (main, scales) for g in o.param_groups for p in g["params"]]
    assert sorted(map(id, everything)) == sorted(names)


def test_accumulated_batches_are_one_large_batch() -> None:
    plain = bf.Deterministic()
    options = {"optimizer": "sgd", "learning_rate": 0.1, "schedule": "constant"}
    large, _ = run(plain, batch_size=32, **options)
    small, _ = run(plain, batch_size=8, accumulate=4, **options)
    for a, b in zip(large.parameters(), small.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_accumulation_counts_the_kl_once() -> None:
    # At a scale of nothing the noise vanishes, so only the weight of the KL can differ.
    method = bf.MeanField(prior_std=0.05, initial_std=1e-6)
    options = {
        "optimizer": "sgd",
        "learning_rate": 0.05,
        "scale_learning_rate": 1e-9,
        "schedule": "constant",
    }
    large, _ = run(method, batch_size=32, **options)
    small, _ = run(method, batch_size=8, accumulate=4, **options)
    for (name, a), b in zip(large.named_parameters(), small.parameters(), strict=True):
        if not name.endswith(".rho"):
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


def test_several_samples_average_the_gradient() -> None:
    model, history = run(num_samples=5, epochs=3)
    assert len(history.rows) == 3
    assert all(torch.isfinite(parameter).all() for parameter in model.parameters())


def test_history_log_and_csv_agree(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "bayesify"):
        _, history = run(run_dir=tmp_path, epochs=3, tensorboard=True)
    with (tmp_path / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [float(row["nll"]) for row in rows] == history.column("nll")
    assert {"epoch", "nll", "accuracy", "kl", "beta", "val_nll", "val_accuracy"} <= rows[0].keys()
    assert (tmp_path / "log.txt").read_text().count("epoch") == 3
    assert sum("epoch" in record.message for record in caplog.records) == 3
    assert list((tmp_path / "tensorboard").iterdir())


def test_progress_bar_shows_nll_kl_accuracy_and_time(capsys: pytest.CaptureFixture[str]) -> None:
    run(progress=True)
    shown = capsys.readouterr().err
    for word in ("epoch 2/2", "nll", "kl", "accuracy", "left"):
        assert word in shown


def test_progress_bar_says_that_the_first_step_compiles(capsys: pytest.CaptureFixture[str]) -> None:
    for compiles in (True, False):
        reporter = Reporter(2, None, show_bar=True, use_tensorboard=False, is_writer=True)
        with reporter:
            reporter.start(3, 0, 0, compiles=compiles)
        assert ("compiling" in capsys.readouterr().err) is compiles
        with reporter:
            reporter.start(3, 0, 0, compiles=compiles)
            reporter.step(0, None)
        assert "compiling" not in capsys.readouterr().err


def test_nan_stops_with_the_step_and_keeps_the_last_good_checkpoint(tmp_path: Path) -> None:
    class Poisoned(TensorDataset):
        reads = 0

        def __getitem__(self, index: int) -> tuple[torch.Tensor, ...]:
            Poisoned.reads += 1
            x, y = super().__getitem__(index)
            return (x * float("nan") if Poisoned.reads > 96 + 40 else x), y

    model = bf.convert(network(), bf.MeanField())
    loader = DataLoader(Poisoned(*data().tensors), 32)
    with pytest.raises(FloatingPointError, match=r"nan at step 5; the last good checkpoint is"):
        bf.fit(
            model,
            loader,
            epochs=3,
            run_dir=tmp_path,
            likelihood=bf.Classification(),
            progress=False,
        )
    fresh = bf.convert(network(), bf.MeanField())
    Poisoned.reads = -(10**6)
    history = bf.fit(
        fresh,
        loader,
        epochs=3,
        run_dir=tmp_path,
        resume=True,
        progress=False,
        likelihood=bf.Classification(),
    )
    assert len(history.rows) == 3
    assert all(torch.isfinite(parameter).all() for parameter in fresh.parameters())


def test_weights_that_are_not_finite_are_never_checkpointed(tmp_path: Path) -> None:
    def explode(output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        # Finite loss, infinite gradient: only the weights show the damage.
        return (output.sum() * 0).abs().sqrt()

    model = bf.convert(network(), bf.Deterministic())
    loader = DataLoader(data(32), 32)
    with pytest.raises(FloatingPointError, match="weight became NaN or infinite"):
        bf.fit(model, loader, epochs=1, likelihood=explode, run_dir=tmp_path, progress=False)


def test_early_stopping_puts_the_best_weights_back(tmp_path: Path) -> None:
    for folder in (None, tmp_path):
        model = bf.convert(network(), bf.Deterministic())
        history = bf.fit(
            model,
            DataLoader(data(), 32),
            DataLoader(data(48), 48),
            epochs=60,
            learning_rate=0.5,
            schedule="constant",
            patience=2,
            run_dir=folder,
            progress=False,
        )
        losses = history.column("val_nll")
        best = losses.index(min(losses))
        assert len(losses) == best + 3 < 60
        found = bf.evaluate(model, DataLoader(data(48), 48), progress=False)["nll"]
        assert found == pytest.approx(min(losses), rel=1e-4)


def test_the_best_epoch_may_be_that_of_the_best_score() -> None:
    # Wrong labels: the surer the network, the larger the nll, though it gets the others right.
    x, y = data(48).tensors
    held_out = DataLoader(TensorDataset(x, torch.cat((1 - y[:12], y[12:]))), 48)
    ends = {}
    for by in ("nll", "score"):
        torch.manual_seed(0)
        model = bf.convert(network(), bf.Deterministic())
        options = {"learning_rate": 0.02, "schedule": "constant", "progress": False, "seed": 0}
        options |= {"keep_best": True, "best_by": by}
        history = bf.fit(model, DataLoader(data(), 32), held_out, epochs=20, **options)
        ends[by] = bf.evaluate(model, held_out, progress=False)
        best = {name: history.column(f"val_{name}") for name in ("nll", "accuracy")}
    assert ends["nll"]["nll"] == pytest.approx(min(best["nll"]), rel=1e-4)
    assert ends["score"]["accuracy"] == pytest.approx(max(best["accuracy"]))
    assert ends["score"]["accuracy"] > ends["nll"]["accuracy"]


def test_regression_with_learned_noise() -> None:
    torch.manual_seed(0)
    x = torch.linspace(-1, 1, 200).unsqueeze(1)
    y = 2 * x + 0.3 * torch.randn_like(x)
    model = bf.convert(nn.Linear(1, 1), bf.MeanField())
    bf.fit(
        model,
        DataLoader(TensorDataset(x, y), 50, shuffle=True),
        epochs=150,
        learning_rate=0.03,
        scale_learning_rate=0.05,
        progress=False,
    )
    prediction = bf.predict(model, x, num_samples=200)
    assert prediction.aleatoric.mean().sqrt().item() == pytest.approx(0.3, rel=0.15)
    assert prediction.epistemic.mean() < 0.01


def test_keyword_batches_and_records_train() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(5, 2)

        def forward(self, *, features: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"logits": self.head(features)}

    x, y = data().tensors
    batches = [{"features": x[i : i + 32], "labels": y[i : i + 32]} for i in range(0, 96, 32)]
    model = bf.convert(Model(), bf.MeanField())
    history = bf.fit(model, batches, epochs=20, num_data=96, learning_rate=0.05, progress=False)
    assert history.last["accuracy"] > 0.8


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_layer_may_be_used_for_the_first_time_late(optimizer: str) -> None:
    class Late(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.late, self.calls = nn.Linear(5, 2), nn.Linear(5, 2), 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            return self.first(x) + (self.late(x) if self.calls > 2 else 0.0)

    torch.manual_seed(0)
    plain = Late()
    before = plain.late.weight.detach().clone()
    model = bf.convert(plain, bf.MeanField())
    bf.fit(model, DataLoader(data(), 32), epochs=2, optimizer=optimizer, progress=False)
    assert not torch.equal(model.late.weight_posterior.mean, before)


def test_fit_under_bfloat16() -> None:
    model, history = run(precision="bf16-mixed", epochs=3, learning_rate=0.02)
    assert history.last["nll"] < history.rows[0]["nll"]
    assert model[0].weight_posterior.mean.dtype == torch.float32


def test_no_epochs_leave_the_model_as_it_is(tmp_path: Path) -> None:
    options = {"val_loader": DataLoader(data(), 32), "keep_best": True, "run_dir": tmp_path}
    model = bf.convert(network(), bf.MeanField())
    before = {key: value.clone() for key, value in model.state_dict().items()}
    history = bf.fit(model, DataLoader(data(), 32), epochs=0, progress=False, **options)
    assert history.rows == []
    assert not model.training
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    assert bf.predict(model, data().tensors[0]).probs.shape == (96, 2)  # what outputs mean is known


def test_options_record_and_keywords_are_the_same() -> None:
    fields = {field.name for field in dataclasses.fields(FitSettings)}
    assert fields - {"epochs"} == set(FitOptions.__annotations__)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"epochs": -1}, ValueError, "epochs must be a whole number >= 0, got -1"),
        ({"learning_rate": -1.0}, ValueError, "learning_rate must be positive"),
        ({"learning_rates": 1.0}, TypeError, "Did you mean 'learning_rate'"),
        ({"optimizer": "adma"}, LookupError, "Did you mean 'adam'"),
        ({"scale_optimizer": "adma"}, LookupError, "Did you mean 'adam'"),
        ({"resume": True}, ValueError, "resume=True needs run_dir"),
        ({"strategy": "deepspeed"}, ValueError, "strategy must be"),
        ({"best_by": "accuracy"}, ValueError, "best_by must be 'nll' or 'score', got 'accuracy'"),
        ({"beta": -0.5}, ValueError, "beta must be a finite number >= 0"),
        ({"strategy": "fsdp"}, ValueError, "torchrun"),
    ],
)
def test_wrong_options_are_named_before_anything_starts(
    options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        run(**options)


def test_unknown_length_patience_and_plain_models_are_explained() -> None:
    model = bf.convert(network(), bf.MeanField())
    x, y = data().tensors
    with pytest.raises(ValueError, match="num_data must be given"):
        bf.fit(model, ((x, y) for _ in range(1)), epochs=1)
    with pytest.raises(ValueError, match="patience needs val_loader"):
        bf.fit(model, [(x, y)], epochs=1, num_data=96, patience=1)
    with pytest.raises(TypeError, match=r"must come from bayesify\.convert"):
        bf.fit(network(), [(x, y)], epochs=1, num_data=96)
    with pytest.raises(TypeError, match="must yield targets"):
        bf.fit(model, [x], epochs=1, num_data=96, likelihood="classification")


def test_last_update_of_an_epoch_weighs_its_fewer_batches_right() -> None:
    options = {"optimizer": "sgd", "learning_rate": 0.1, "schedule": "constant", "epochs": 1}
    x, y = data().tensors
    groups = [(x[:64], y[:64]), (x[64:], y[64:])]  # 4 batches of 16, then 2
    large, small = (bf.convert(network(), bf.Deterministic()) for _ in range(2))
    bf.fit(large, groups, num_data=96, progress=False, **options)
    bf.fit(small, DataLoader(data(), 16), accumulate=4, progress=False, **options)
    for a, b in zip(large.parameters(), small.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-7)
        assert b.grad is None


def test_gradients_from_before_do_not_enter_the_first_step() -> None:
    clean, dirty = (bf.convert(network(), bf.Deterministic()) for _ in range(2))
    dirty(torch.ones(1, 5)).sum().backward()
    for model in (clean, dirty):
        bf.fit(model, DataLoader(data(), 32), epochs=1, optimizer="sgd", seed=0, progress=False)
    for a, b in zip(clean.parameters(), dirty.parameters(), strict=True):
        assert torch.equal(a, b)


def test_validation_score_does_not_depend_on_the_batches() -> None:
    torch.manual_seed(0)
    x = torch.randn(40, 3)
    y = x[:, :1] * torch.linspace(0, 5, 40).unsqueeze(1)
    found = []
    for size in (40, 3):
        torch.manual_seed(0)
        model = bf.convert(nn.Linear(3, 1), bf.Deterministic())
        loaders = [DataLoader(TensorDataset(x, y), batch) for batch in (40, size)]
        found.append(bf.fit(model, *loaders, epochs=1, progress=False).last["val_rmse"])
    assert found[0] == pytest.approx(found[1], rel=1e-6)


def test_nan_in_any_batch_of_a_step_names_that_step() -> None:
    x, y = data(64).tensors
    x = torch.cat([x[:32], torch.full_like(x[:1], torch.nan), x[33:]])
    model = bf.convert(network(), bf.MeanField())
    loader = DataLoader(TensorDataset(x, y), 16)
    with pytest.raises(FloatingPointError, match="nan at step 2"):
        bf.fit(model, loader, epochs=1, accumulate=2, progress=False)


def test_weights_that_are_not_finite_never_leave_fit() -> None:
    model = bf.convert(network(), bf.Deterministic())
    with pytest.raises(FloatingPointError, match="weight became NaN or infinite by step 1"):
        bf.fit(
            model,
            DataLoader(data(32), 32),
            epochs=1,
            likelihood=lambda output, _: (output.sum() * 0).abs().sqrt(),
            progress=False,
        )


def test_scale_of_exactly_zero_may_be_trained_without_a_kl(tmp_path: Path) -> None:
    model = bf.convert(network(), bf.MeanField())
    for site in (model[0].weight_posterior, model[2].weight_posterior):
        site.rho.data.fill_(-torch.inf)
    history = bf.fit(
        model, DataLoader(data(), 32), epochs=1, beta=0.0, run_dir=tmp_path, progress=False
    )
    assert history.last["nll"] < 1


def test_second_fit_goes_on_with_the_noise_it_learned() -> None:
    x = torch.randn(64, 1)
    likelihood = bf.GaussianRegression()
    model = bf.convert(nn.Linear(1, 1), bf.Deterministic())
    loader = DataLoader(TensorDataset(x, x + 0.1 * torch.randn(64, 1)), 64)
    options = {"likelihood": likelihood, "learning_rate": 0.1, "progress": False}
    bf.fit(model, loader, epochs=100, scale_learning_rate=0.1, **options)
    learned = likelihood.raw_noise_variance.item()
    bf.fit(model, loader, epochs=1, scale_learning_rate=1e-12, **options)
    assert likelihood.raw_noise_variance.item() == pytest.approx(learned)
