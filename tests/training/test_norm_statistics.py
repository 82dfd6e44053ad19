import pytest
import torch
from torch import nn

import bayesify as bf


def test_refresh_norms_measures_the_present_network() -> None:
    torch.manual_seed(0)
    model = bf.convert(
        nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5)), bf.MeanField()
    )
    model.train()
    model[2].eval()
    batches = [(torch.randn(32, 3) + 1, torch.zeros(32)) for _ in range(5)]
    assert bf.refresh_norms(model, batches, by="mean") == 1
    with bf.mean_weights(model), torch.no_grad():
        outputs = [model[0](x) for x, _ in batches]
    expected = torch.stack([output.mean(0) for output in outputs]).mean(0)
    torch.testing.assert_close(model[1].running_mean, expected)
    spread = torch.stack([output.var(0) for output in outputs]).mean(0)
    torch.testing.assert_close(model[1].running_var, spread)
    assert model[1].momentum == 0.1
    assert [module.training for module in (model, model[1], model[2])] == [True, True, False]


def test_refresh_norms_puts_modes_back_after_an_error() -> None:
    model = bf.convert(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)), bf.MeanField())
    model.eval()
    with pytest.raises(RuntimeError):
        bf.refresh_norms(model, [torch.randn(2, 9)])
    assert not model[1].training
    assert model[1].momentum == 0.1


def test_refresh_norms_without_norms_reads_nothing() -> None:
    model = bf.convert(nn.Linear(3, 4), bf.MeanField())
    assert bf.refresh_norms(model, iter(())) == 0
