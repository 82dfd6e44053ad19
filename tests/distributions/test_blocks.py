import pytest
import torch

from bayesify.distributions.blocks import _BLOCK, in_blocks


def terms(left, right):
    return (left * right).sum(), left - right, left + right


@pytest.mark.parametrize("shape", [(0,), (7,), (_BLOCK,), (_BLOCK + 1,), (3, _BLOCK)])
def test_blocks_give_what_one_pass_gives(shape):
    left, right = torch.randn(2, *shape, dtype=torch.float64)
    for found, expected in zip(in_blocks(terms, left, right), terms(left, right), strict=True):
        assert found.shape == expected.shape
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_no_block_is_larger_than_the_cache_takes():
    sizes = []

    def note(tensor):
        sizes.append(tensor.numel())
        return tensor.sum(), tensor

    in_blocks(note, torch.randn(2, _BLOCK, 2))
    assert sizes == [_BLOCK] * 4


def test_tensors_that_are_not_contiguous_keep_their_order():
    left = torch.randn(200, 500).t()
    right = torch.randn(500, 200)
    for found, expected in zip(in_blocks(terms, left, right), terms(left, right), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_tensors_that_broadcast_are_taken_whole():
    left, right = torch.randn(_BLOCK, 3), torch.randn(_BLOCK, 1)
    found = in_blocks(terms, left, right)
    torch.testing.assert_close(found, terms(left, right))
