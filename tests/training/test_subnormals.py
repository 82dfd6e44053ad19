import pytest
import torch
from torch import nn

import bayesify as bf
from bayesify.training.subnormals import subnormals_as_zero

CPU = torch.device("cpu")


def half_of_the_least_normal_number() -> float:
    return float(torch.full((), torch.finfo(torch.float32).tiny) * 0.5)


def test_subnormal_numbers_are_zero_within_and_not_after():
    assert half_of_the_least_normal_number() > 0
    with subnormals_as_zero(CPU):
        assert half_of_the_least_normal_number() == 0
    assert half_of_the_least_normal_number() > 0


def test_it_ends_when_training_fails():
    with pytest.raises(RuntimeError, match="stop"), subnormals_as_zero(CPU):
        raise RuntimeError("stop")
    assert half_of_the_least_normal_number() > 0


def test_it_stays_where_someone_else_asked_for_it():
    torch.set_flush_denormal(True)
    try:
        with subnormals_as_zero(CPU):
            pass
        assert half_of_the_least_normal_number() == 0
    finally:
        torch.set_flush_denormal(False)


class Watching(nn.Linear):
    seen: float | None = None

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        self.seen = half_of_the_least_normal_number()
        return super().forward(input)


def test_fit_takes_them_as_zero_while_it_trains():
    model = bf.convert(Watching(2, 2), bf.Deterministic())
    batch = (torch.randn(4, 2), torch.tensor([0, 1, 0, 1]))
    bf.fit(model, [batch], epochs=1, num_data=4, progress=False)
    (watching,) = [module for module in model.modules() if isinstance(module, Watching)]
    assert watching.seen == 0
    assert half_of_the_least_normal_number() > 0
