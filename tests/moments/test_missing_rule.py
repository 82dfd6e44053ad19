"""The error for an operation without a rule says what and where."""

import pytest
import torch
from torch import nn

from bayesify.moments import MissingRuleError, Moments, propagate


class Unusual(nn.Module):
    def forward(self, x):
        return torch.cumprod(x, -1)


class Nested(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(3, 3)
        self.blocks = nn.Sequential(nn.ReLU(), Unusual())

    def forward(self, x):
        return self.blocks(self.stem(x))


class ByMethod(nn.Module):
    def forward(self, x):
        return x.cumprod(-1)


def test_error_names_the_operation_and_the_module():
    with pytest.raises(MissingRuleError) as caught:
        propagate(Nested(), torch.ones(2, 3))
    assert caught.value.operation == "torch.cumprod"
    assert caught.value.module == "blocks.1 (Unusual)"
    assert "no moment rule for torch.cumprod in the module blocks.1 (Unusual)" in str(caught.value)
    assert "@rule" in str(caught.value)


def test_functions_that_are_given_modules_are_no_part_of_the_path():
    def trained(wrapped):
        return propagate(wrapped[0], torch.ones(2, 3))

    with pytest.raises(MissingRuleError) as caught:
        trained(nn.ModuleList([Nested()]))
    assert caught.value.module == "blocks.1 (Unusual)"


def test_what_wraps_a_model_without_having_it_is_no_part_of_the_path():
    model = Nested()

    class Wrapper(nn.Module):
        def forward(self, x):
            return model(x)

    with pytest.raises(MissingRuleError) as caught:
        Wrapper()(Moments(torch.ones(2, 3), 1.0))
    assert caught.value.module == "blocks.1 (Unusual)"


def test_error_names_the_model_itself_and_a_method():
    with pytest.raises(MissingRuleError) as caught:
        ByMethod()(Moments(torch.ones(2, 3), 1.0))
    assert caught.value.operation == "Tensor.cumprod"
    assert caught.value.module == "the model itself (ByMethod)"


def test_error_outside_a_module_names_the_operation_alone():
    with pytest.raises(MissingRuleError, match=r"no moment rule for torch.cumprod: write"):
        torch.cumprod(Moments(torch.ones(3), 1.0), 0)


def test_error_names_functions_by_their_usual_home():
    with pytest.raises(MissingRuleError, match=r"F\.lp_pool2d"):
        nn.LPPool2d(2, 2)(Moments(torch.ones(1, 1, 4, 4), 1.0))
