import math

import pytest
import torch
from torch import Tensor

from bayesify.evaluation.confidence_set import ConfidenceSet, confidence_sets
from bayesify.prediction.predictive import ClassificationAccumulator, ClassificationPredictive


def from_choices(choices: list[list[int]], num_classes: int = 3) -> ClassificationPredictive:
    """A prediction whose sample t votes for choices[t][n]."""
    accumulator = ClassificationAccumulator()
    accumulator.update(10 * torch.eye(num_classes)[torch.tensor(choices)])
    return accumulator.result("chosen votes")


def brute_force(logits: Tensor, targets: Tensor, level: float) -> tuple[float, float]:
    kept = []
    probs = logits.softmax(2)
    for n, target in enumerate(targets.tolist()):
        votes = probs[:, n].argmax(1).tolist()
        most = max(votes.count(k) for k in set(votes))
        tied = [k for k in set(votes) if votes.count(k) == most]
        modal = max(tied, key=lambda k: probs[:, n, k].mean().item())
        if most >= level * len(votes) - 1e-9:
            kept.append(modal == target)
    return (sum(kept) / len(kept) if kept else math.nan), len(kept) / len(targets)


@pytest.mark.parametrize("level", [0.0, 0.3, 0.5, 0.7, 0.9, 1.0])
def test_sets_equal_their_definition(level):
    generator = torch.Generator().manual_seed(0)
    targets = torch.randint(4, (80,), generator=generator)
    shift = 2 * torch.rand(80, 1, generator=generator) * torch.eye(4)[targets]
    logits = torch.randn(10, 80, 4, generator=generator) + shift
    accumulator = ClassificationAccumulator()
    accumulator.update(logits)
    [found] = confidence_sets(accumulator.result("samples"), targets, [level])
    accuracy, size = brute_force(logits, targets, level)
    assert found == (level, pytest.approx(accuracy, nan_ok=True), pytest.approx(size), 10)


@pytest.mark.parametrize("num_agreeing", range(16, 31))
def test_a_level_of_k_of_thirty_admits_k_votes(num_agreeing):
    predictive = from_choices([[0]] * num_agreeing + [[1]] * (30 - num_agreeing))
    level = num_agreeing / 30
    at, above = confidence_sets(predictive, torch.tensor([0]), [level, min(1.0, level + 1e-9)])
    assert at.size == 1.0
    assert above.size == float(num_agreeing == 30)


def test_empty_set_has_no_accuracy():
    [found] = confidence_sets(from_choices([[0], [1]]), torch.tensor([0]))
    assert math.isnan(found.accuracy)
    assert found.size == 0.0


def test_no_examples_give_nan():
    accumulator = ClassificationAccumulator()
    accumulator.update(torch.zeros(3, 0, 2))
    [found] = confidence_sets(accumulator.result("samples"), torch.zeros(0, dtype=torch.long))
    assert math.isnan(found.accuracy)
    assert math.isnan(found.size)


def test_one_sample_is_certain_of_everything():
    [found] = confidence_sets(from_choices([[0, 1, 2, 0]]), torch.tensor([0, 1, 2, 1]))
    assert found == ConfidenceSet(1.0, 0.75, 1.0, 1)


def test_pixels_count_apart_and_unlabelled_ones_not_at_all():
    logits = torch.tensor([[[9.0, 9.0, 0.0], [0.0, 0.0, 9.0]]]).expand(2, 1, 2, 3).clone()
    logits[1, 0, :, 0] = torch.tensor([0.0, 9.0])
    accumulator = ClassificationAccumulator()
    accumulator.update(logits)
    predictive = accumulator.result("samples")
    [found] = confidence_sets(predictive, torch.tensor([[0, 0, -100]]))
    assert (found.accuracy, found.size) == (1.0, 0.5)


def test_impossible_arguments_are_refused():
    predictive = from_choices([[0, 1]])
    with pytest.raises(ValueError, match=r"levels must lie in \[0, 1\], got 90"):
        confidence_sets(predictive, torch.tensor([0, 1]), [0.5, 90])
    with pytest.raises(ValueError, match=r"\(2,\), got shape \(3,\)"):
        confidence_sets(predictive, torch.tensor([0, 1, 2]))
