"""Joining, slicing, moving and naming of the records; their contents are in test_predictive."""

import copy
import pickle
from dataclasses import FrozenInstanceError

import numpy as np
import pytest
import torch
from torch import Tensor

from bayesify.prediction.predictive import (
    ClassificationAccumulator,
    CustomAccumulator,
    Predictive,
    RegressionPredictive,
)


def random_tensor(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def classify(logits: Tensor, made_by: str = "test samples") -> Predictive:
    accumulator = ClassificationAccumulator()
    accumulator.update(logits)
    return accumulator.result(made_by)


def one_of_each() -> list[Predictive]:
    custom = CustomAccumulator()
    custom.update(random_tensor(4, 6, 3))
    moments = RegressionPredictive.build(random_tensor(1, 6, 3), 1.0, "moments", 0.5)
    return [
        classify(random_tensor(4, 6, 3)),
        RegressionPredictive.build(
            random_tensor(4, 6, 3), random_tensor(4, 6, 3).square(), "test samples"
        ),
        custom.result("test samples"),
        moments,
    ]


def assert_same(first: Predictive, second: Predictive) -> None:
    for name, value in vars(first).items():
        other = getattr(second, name)
        assert torch.equal(value, other) if isinstance(value, Tensor) else value == other


def test_slices_join_to_the_whole():
    for predictive in one_of_each():
        parts = [predictive[:1], predictive[1:4], predictive[4:]]
        assert [len(part) for part in parts] == [1, 3, 2]
        assert_same(Predictive.cat(parts), predictive)


def test_every_kind_of_index_picks_the_same_examples():
    for predictive in one_of_each():
        expected = predictive[2:5:2]
        mask = torch.tensor([False, False, True, False, True, False])
        for index in ([2, 4], torch.tensor([2, 4]), mask, np.array([2, 4])):
            assert_same(predictive[index], expected)


@pytest.mark.parametrize("index", [4, -2, np.int64(4), torch.tensor(4)])
def test_single_index_keeps_the_example_axis(index):
    for predictive in one_of_each():
        assert_same(predictive[index], predictive[4:5])


def test_last_example_and_iteration():
    predictive = one_of_each()[0]
    assert_same(predictive[-1], predictive[5:6])
    assert_same(Predictive.cat(list(predictive)), predictive)


def test_impossible_indices_are_refused():
    predictive = one_of_each()[0]
    with pytest.raises(IndexError, match="example 6 does not exist: there are 6"):
        predictive[6]
    with pytest.raises(TypeError, match="indexed by example only, got 2 indices"):
        predictive[0, 1]


def test_cat_refuses_what_does_not_belong_together():
    classes, numbers, custom, moments = one_of_each()
    with pytest.raises(ValueError, match="at least one Predictive"):
        Predictive.cat([])
    more_samples, more_classes = random_tensor(5, 6, 3), random_tensor(4, 6, 5)
    for other in (numbers, custom, classify(more_samples), classify(more_classes)):
        with pytest.raises(ValueError, match="must agree in task, num_samples"):
            Predictive.cat([classes, other])
    with pytest.raises(ValueError, match="must agree"):
        Predictive.cat([numbers[:1], moments])


def test_cat_names_every_way_the_parts_were_made():
    a, b = classify(random_tensor(2, 3, 4), "a"), classify(random_tensor(2, 5, 4), "b")
    assert Predictive.cat([a, b, a]).made_by == "a; b"


@pytest.mark.parametrize("name", ["entropy", "probs", "votes", "mutual_information"])
def test_attributes_of_another_task_are_explained(name):
    numbers = one_of_each()[1]
    with pytest.raises(AttributeError, match=f"{name} is defined for classification; .* regre"):
        getattr(numbers, name)
    assert not hasattr(numbers, name)


def test_uncertainty_split_of_custom_output_is_explained():
    with pytest.raises(
        AttributeError, match=r"defined for classification and regression; .* custom"
    ):
        _ = one_of_each()[2].epistemic
    with pytest.raises(AttributeError, match="interval is defined for regression"):
        one_of_each()[0].interval()


def test_unknown_attribute_is_a_plain_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'entropie'"):
        _ = one_of_each()[0].entropie


def test_record_is_frozen_copied_and_pickled_whole():
    for predictive in one_of_each():
        with pytest.raises(FrozenInstanceError):
            predictive.made_by = "someone else"
        assert_same(copy.deepcopy(predictive), predictive)
        assert_same(pickle.loads(pickle.dumps(predictive)), predictive)


def test_to_moves_every_tensor():
    for predictive in one_of_each():
        moved = predictive.to("meta")
        tensors = [value for value in vars(moved).values() if isinstance(value, Tensor)]
        assert len(tensors) >= 2
        assert all(tensor.device.type == "meta" for tensor in tensors)


def test_repr_says_what_it_is_and_how_it_was_made():
    text = repr(one_of_each()[0])
    assert text == (
        "ClassificationPredictive(6 examples of shape (3,), made by test samples, on cpu)"
    )
