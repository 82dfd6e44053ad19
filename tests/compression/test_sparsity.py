"""The sparsity table: what is stored, what a threshold would leave, and what a run logs."""

import pytest
import torch
from rich.console import Console
from torch import nn

import bayesify as bf


def model(method: bf.Method | None = None) -> nn.Module:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
    return bf.convert(net, method or bf.MeanField(initial_std=0.1))


def test_a_dense_model_has_lost_nothing() -> None:
    table = bf.sparsity(model())
    assert table.removed == 0
    assert [row.path for row in table.rows] == ["0.weight", "2.weight"]


def test_the_table_foretells_what_compress_does() -> None:
    dense = model()
    told = bf.sparsity(dense, by="snr", threshold=2.0)
    done = bf.sparsity(bf.compress(dense, threshold=2.0, shrink=False))
    assert told.by_path == done.by_path
    assert 0 < told.removed < 1
    rows = done.rows
    assert told.removed == pytest.approx(1 - sum(row.num_live for row in rows) / 35)


def test_the_table_reads_well() -> None:
    table = bf.sparsity(bf.compress(model(), keep=0.2, shrink=False))
    text = str(table)
    assert "0.weight" in text
    assert text.splitlines()[-1].split() == ["all", "-", "-", "35", "7", "80.00%"]
    console = Console(width=100)
    with console.capture() as capture:
        console.print(table)
    assert "80.00%" in capture.get()


def test_a_threshold_without_a_score_is_refused() -> None:
    with pytest.raises(ValueError, match="needs by"):
        bf.sparsity(model(), threshold=0.1)


@pytest.mark.parametrize("method", [bf.MeanField(initial_std=0.3), bf.VariationalDropout()])
def test_a_run_logs_energy_and_the_sparsity_of_every_layer(method, tmp_path) -> None:
    network = model(method)
    data = [(torch.randn(8, 4), torch.randint(3, (8,))) for _ in range(4)]
    history = bf.fit(network, data, epochs=2, num_data=32, progress=False, run_dir=tmp_path)
    row = history.last
    told = bf.sparsity(network, by="snr", threshold=method.pruning_ratio)
    assert row["sparsity"] == pytest.approx(told.removed)
    assert {p: row[f"sparsity/{p}"] for p in told.by_path} == pytest.approx(told.by_path)
    assert row["energy"] == pytest.approx(32 * row["nll"] + row["beta"] * row["kl"])
    header = (tmp_path / "metrics.csv").read_text().splitlines()[0]
    assert "sparsity/0.weight" in header
    assert "sparsity/0.weight" not in (tmp_path / "log.txt").read_text()


def test_a_model_without_posteriors_has_no_sparsity() -> None:
    with pytest.raises(TypeError, match="no posterior"):
        bf.sparsity(nn.Linear(2, 2))


def test_a_compressed_model_counts_what_it_has_lost_while_it_trains_on() -> None:
    small = bf.compress(model(), by="magnitude", keep=0.2)
    data = [(torch.randn(8, 4), torch.randint(3, (8,)))]
    row = bf.fit(small, data, epochs=1, num_data=8, progress=False).last
    told = bf.sparsity(small, by="snr", threshold=0.83)
    assert row["sparsity"] == pytest.approx(told.removed)
    assert told.removed >= 0.8
