"""Blocks, filters and two of four: what comes and goes together stays together."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import bayesify as bf
from bayesify.methods.sparse_subspace import sparse_sites


def fitted(model: nn.Module) -> None:
    x = torch.randn(120, 6, generator=torch.Generator().manual_seed(0))
    data = DataLoader(TensorDataset(x, x[:, :3].argmax(1)), 20)
    bf.fit(model, data, epochs=6, learning_rate=0.02, beta=0.01, seed=0, progress=False)


def network_of_eights() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 24), nn.ReLU(), nn.Linear(24, 3)]
    return nn.Sequential(*layers)


@pytest.mark.parametrize(("pattern", "block"), [("4x1", (4, 1)), ("8x8", (8, 8)), ("1x4", (1, 4))])
def test_blocks_come_and_go_whole(pattern: str, block: tuple[int, int]) -> None:
    method = bf.SparseSubspace(0.25, pattern=pattern, interval=2, replacement=1.0)
    model = bf.convert(network_of_eights(), method)
    site = model.get_submodule("2.weight_posterior")
    before = site.index.clone()

    def occupancy() -> torch.Tensor:
        mask = torch.zeros(24 * 16)
        mask[site.index] = 1
        height, width = block
        return mask.view(24 // height, height, 16 // width, width).sum((1, 3)) / (height * width)

    assert set(occupancy().unique().tolist()) == {0.0, 1.0}
    assert occupancy().mean().item() == pytest.approx(0.25, abs=0.1)
    fitted(model)
    assert set(occupancy().unique().tolist()) == {0.0, 1.0}
    assert site.index.numel() == before.numel()
    assert not torch.equal(site.index, before)


def test_whole_filters_come_and_go() -> None:
    model = bf.convert(network_of_eights(), bf.SparseSubspace(0.25, pattern="filter", interval=2))
    fitted(model)
    site = model.get_submodule("2.weight_posterior")
    rows = site.index.view(-1, 16) // 16
    assert len(rows) == 6
    assert (rows == rows[:, :1]).all()


def test_two_of_four_stays_two_of_four() -> None:
    model = bf.convert(network_of_eights(), bf.SparseSubspace(pattern="2:4", interval=2))
    before = {path: site.index.clone() for path, site in sparse_sites(model).items()}
    assert list(before) == ["2.weight", "4.weight"]
    fitted(model)
    for path, site in sparse_sites(model).items():
        mask = torch.zeros(site.shape.numel())
        mask[site.index] = 1
        assert (mask.view(-1, 4).sum(1) == 2).all()
        assert not torch.equal(site.index, before[path])


def test_a_tensor_that_cannot_have_two_of_four_stays_dense() -> None:
    net = nn.Sequential(nn.Linear(6, 10), nn.ReLU(), nn.Linear(10, 4))
    model = bf.convert(net, bf.SparseSubspace(pattern="2:4", first_dense=False))
    assert not sparse_sites(model)


def test_patterns_are_checked() -> None:
    for wrong in ("3:4", "4by1", "0x2", ""):
        with pytest.raises(ValueError, match="pattern must be 'free', 'filter', '2:4' or a block"):
            bf.SparseSubspace(pattern=wrong)
    with pytest.raises(ValueError, match="scope='global' moves single weights"):
        bf.SparseSubspace(pattern="4x1", scope="global")
