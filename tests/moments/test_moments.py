"""The class: what it takes, what it refuses, and how it stands in for a tensor."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch.utils._pytree import tree_leaves, tree_map

from bayesify.moments import MissingRuleError, Moments, moment_rules, registered_functions, rule
from bayesify.moments.rule_table import TABLES, current_rules, dispatch
from moments.sampling import normal_moments


def test_variance_is_always_a_tensor_of_the_mean_shape():
    mean = torch.ones(2, 3)
    assert torch.equal(Moments(mean).variance, torch.zeros(2, 3))
    assert torch.equal(Moments(mean, 0.5).variance, torch.full((2, 3), 0.5))
    assert Moments(mean, torch.ones(3)).variance.shape == (2, 3)
    assert Moments(mean).is_certain
    assert not Moments(mean, 0).is_certain


@pytest.mark.parametrize(
    ("dtype", "stored"), [(torch.float16, torch.float32), (torch.bfloat16, torch.bfloat16)]
)
def test_variance_of_a_half_precision_mean_has_the_range_of_float32(dtype, stored):
    mean = torch.ones(2, dtype=dtype)
    for moments in (Moments(mean), Moments(mean, 0.5), Moments(mean, torch.ones(2, dtype=dtype))):
        assert moments.variance.dtype == stored
    assert Moments(mean, 1e-20).variance.min() > 0


def test_shared_variance_is_known_until_the_moments_change():
    mean, shared = torch.ones(3, 2), torch.rand(3, 1)
    x = Moments(mean, shared)
    assert x.shared_variance is not None
    assert torch.equal(x.shared_variance, shared)
    assert torch.equal(x.variance, shared.expand(3, 2))
    assert Moments(mean, torch.rand(3, 2)).shared_variance is None
    assert (2.0 * x).shared_variance is None
    assert x.mul_(2.0).shared_variance is None


def test_mean_must_be_a_floating_point_tensor():
    with pytest.raises(TypeError, match=r"floating-point tensor, got torch\.int64"):
        Moments(torch.tensor([1]))
    with pytest.raises(TypeError, match="floating-point tensor, got float"):
        Moments(1.0)  # pyright: ignore[reportArgumentType]
    with pytest.raises(RuntimeError, match="expand"):
        Moments(torch.ones(2), torch.ones(3))


def test_mean_is_a_tensor_that_can_be_called():
    x = normal_moments(2, 3)
    assert isinstance(x.mean, torch.Tensor)
    assert torch.equal(x.mean, x.expected)
    assert type(x.mean + 1) is torch.Tensor
    assert type(F.relu(x.mean)) is torch.Tensor
    assert torch.equal(x.mean(1).mean, x.expected.mean(1))


def test_gradient_flows_through_the_callable_mean():
    mean = torch.ones(3, requires_grad=True)
    (Moments(mean, 1.0).mean ** 2).sum().backward()
    assert torch.equal(mean.grad, torch.full((3,), 2.0))


def test_pair_gives_plain_tensors():
    mean, variance = Moments(torch.ones(2), 0.5).pair()
    assert type(mean) is type(variance) is torch.Tensor


@pytest.mark.parametrize(
    "compare",
    [
        lambda x: x > 0,
        lambda x: x >= 0,
        lambda x: x < 0,
        lambda x: x <= 0,
        lambda x: x == 0,
        lambda x: x != 0,
        lambda x: torch.ones(3) > x,
        lambda x: bool(x),
        lambda x: x.item(),
        lambda x: torch.isnan(x),
    ],
)
def test_comparison_is_refused(compare):
    with pytest.raises(MissingRuleError, match="cannot decide anything"):
        compare(normal_moments(3))


def test_item_assignment_is_refused():
    x = normal_moments(3)
    with pytest.raises(MissingRuleError, match="__setitem__"):
        x[0] = 1.0


def test_unknown_attribute_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = normal_moments(3).nonsense
    assert not hasattr(normal_moments(3), "__array__")


def test_moments_can_be_copied_and_hashed():
    x = normal_moments(3)
    other = copy.deepcopy(x)
    assert torch.equal(other.expected, x.expected)
    assert len({x, other}) == 2
    assert "shape=(3,)" in repr(x)
    assert "certain" in repr(Moments(torch.ones(1)))


def test_rules_are_chosen_for_a_block_and_restored():
    assert current_rules() == "exact"
    with moment_rules("taylor"):
        assert current_rules() == "taylor"
        with moment_rules("exact"):
            assert current_rules() == "exact"
        assert current_rules() == "taylor"
    assert current_rules() == "exact"
    with pytest.raises(MissingRuleError), moment_rules("taylor"):
        torch.logit(normal_moments(1))
    assert current_rules() == "exact"
    with pytest.raises(ValueError, match="'shared' or 'pooled', got 'second'"):
        moment_rules("second")  # pyright: ignore[reportArgumentType]


def test_a_new_rule_is_used():
    assert torch.logit not in registered_functions()
    with pytest.raises(MissingRuleError):
        torch.logit(normal_moments(3))

    @rule(torch.logit)
    def _logit(x: Moments) -> Moments:
        return Moments(x.expected + 1, x.variance)

    try:
        assert torch.logit in registered_functions()
        assert torch.equal(torch.logit(Moments(torch.zeros(2))).expected, torch.ones(2))
    finally:
        del TABLES["exact"][torch.logit]


def test_taylor_rule_is_preferred_under_taylor_only():
    @rule(torch.logit)
    def _exact(x: Moments) -> str:
        return "exact"

    @rule(torch.logit, form="taylor")
    def _taylor(x: Moments) -> str:
        return "taylor"

    try:
        assert dispatch(torch.logit, (normal_moments(1),), {}) == "exact"
        with moment_rules("taylor"):
            assert torch.logit(normal_moments(1)) == "taylor"
    finally:
        del TABLES["exact"][torch.logit], TABLES["taylor"][torch.logit]


def test_tree_functions_see_both_tensors():
    x = normal_moments(2, 3)
    doubled = tree_map(lambda tensor: 2 * tensor, {"x": x})["x"]
    assert torch.equal(doubled.variance, 2 * x.variance)
    assert len(tree_leaves(x)) == 2
    certain = tree_map(lambda tensor: tensor, Moments(torch.ones(2)))
    assert certain.is_certain


def test_vmap_maps_over_moments():
    x = normal_moments(4, 3)
    result = torch.vmap(lambda row: F.softmax(F.gelu(row), -1))(x)
    expected = F.softmax(F.gelu(x), -1)
    torch.testing.assert_close(result.expected, expected.expected)
    torch.testing.assert_close(result.variance, expected.variance)


def test_gradient_checkpointing_passes_moments_through():
    x = Moments(torch.randn(3, requires_grad=True), torch.rand(3).requires_grad_())
    result = torch.utils.checkpoint.checkpoint(F.relu, x, use_reentrant=False)
    result.variance.sum().backward()
    assert x.expected.grad is not None


def test_rows_are_read_one_at_a_time():
    x = normal_moments(3, 2)
    first = next(iter(x))
    torch.testing.assert_close(first.pair(), (x.expected[0], x.variance[0]))
    assert len(list(x)) == 3
    with pytest.raises(TypeError, match="no dimension"):
        iter(Moments(torch.tensor(1.0), 0.5))


def test_a_look_at_the_first_row_does_not_fix_the_size_of_a_batch():
    class Looking(torch.nn.Module):
        def forward(self, mean, variance):
            x = Moments(mean, variance)
            next(iter(x))
            return (2.0 * x).pair()

    rows = torch.rand(2, 4)
    size = torch.export.Dim("batch", min=1)
    program = torch.export.export(
        Looking(), (rows, rows), dynamic_shapes=({0: size}, {0: size}), strict=False
    )
    assert program.module()(torch.ones(5, 4), torch.ones(5, 4))[1].shape == (5, 4)
