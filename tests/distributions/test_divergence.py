from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch

from bayesify.distributions import (
    Normal,
    NormalPrior,
    Prior,
    chosen_estimator,
    divergence,
    divergence_problem,
)


@dataclass(frozen=True)
class Odd(Prior):
    name: ClassVar[str] = "odd"

    def log_prob(self, value):
        return torch.zeros_like(value)

    def problem(self):
        return None


@dataclass(frozen=True)
class Narrow(NormalPrior):
    """A subclass: found under its parent's rule."""


VALUES = {"mean": torch.zeros(2), "rho": torch.zeros(2)}


def test_a_pair_without_a_closed_form_is_refused_one_and_drawn_instead():
    message = "no closed form is known for the 'normal' family and the 'odd' prior"
    assert divergence_problem(Normal(), Odd(), "closed") == message
    with pytest.raises(ValueError, match=message):
        divergence(Normal(), VALUES, Odd(), estimator="closed")
    assert divergence_problem(Normal(), Odd()) is None
    assert chosen_estimator(Normal(), Odd()).name == "streamed"


def test_a_prior_with_impossible_numbers_is_refused():
    with pytest.raises(ValueError, match=r"std must be positive and finite, got -1\.0"):
        divergence(Normal(), VALUES, NormalPrior(std=-1.0))


def test_a_subclass_uses_the_rule_of_its_parent():
    expected = divergence(Normal(), VALUES, NormalPrior(std=0.3))
    assert divergence(Normal(), VALUES, Narrow(std=0.3)) == expected
