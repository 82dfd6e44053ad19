"""Noise below the resolution of bfloat16 is warned of, once."""

from typing import Any

import pytest
from torch.utils.data import DataLoader

import bayesify as bf
from training.small_problem import data, network


def run(method: bf.Method, **options: Any) -> None:
    model = bf.convert(network(), method)
    bf.fit(model, DataLoader(data(), 32), seed=0, progress=False, **options)


@pytest.mark.filterwarnings("ignore:in bfloat16")
@pytest.mark.parametrize(("std", "how", "count"), [(1e-5, "sample", 1), (1e-5, "local", 0)])
def test_noise_that_bfloat16_rounds_away_is_warned_of_once(
    std: float, how: Any, count: int, recwarn: pytest.WarningsRecorder
) -> None:
    run(bf.MeanField(initial_std=std, how=how), precision="bf16-mixed", epochs=3)
    found = [str(entry.message) for entry in recwarn if "rounds away" in str(entry.message)]
    assert len(found) == count
    assert all("0.weight, 2.weight" in text and "how='local'" in text for text in found)


def test_noise_that_bfloat16_can_show_is_not_warned_of(recwarn: pytest.WarningsRecorder) -> None:
    run(bf.MeanField(initial_std=1e-5), epochs=1)
    run(bf.MeanField(initial_std=0.1), precision="bf16-mixed", epochs=1)
    assert not [entry for entry in recwarn if "rounds away" in str(entry.message)]
