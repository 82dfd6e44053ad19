"""Operations that move entries do the same to mean and variance."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from bayesify.moments import Moments
from moments.sampling import normal_moments

MOVES = {
    "view": lambda x: x.view(6, 4),
    "reshape": lambda x: x.reshape(-1, 2),
    "flatten": lambda x: x.flatten(1),
    "torch_flatten": lambda x: torch.flatten(x, 1),
    "unflatten": lambda x: x.unflatten(-1, (2, -1)),
    "permute": lambda x: x.permute(2, 0, 1),
    "torch_permute": lambda x: torch.permute(x, (2, 0, 1)),
    "transpose": lambda x: x.transpose(0, 2),
    "movedim": lambda x: x.movedim(0, -1),
    "mT": lambda x: x.mT,
    "T": lambda x: x[0].T,
    "unsqueeze": lambda x: x.unsqueeze(1),
    "squeeze": lambda x: x.unsqueeze(1).squeeze(1),
    "contiguous": lambda x: x.transpose(0, 1).contiguous(),
    "expand": lambda x: x.unsqueeze(0).expand(3, -1, -1, -1),
    "expand_as": lambda x: x[:1].expand_as(x),
    "repeat": lambda x: x.repeat(2, 1, 1),
    "repeat_interleave": lambda x: x.repeat_interleave(2, 1),
    "getitem": lambda x: x[:, 1:, ::2],
    "getitem_list": lambda x: x[[1, 0]],
    "getitem_none": lambda x: x[..., None, 0],
    "getitem_mask": lambda x: x[torch.tensor([True, False])],
    "index_select": lambda x: x.index_select(1, torch.tensor([2, 0])),
    "select": lambda x: x.select(1, 0),
    "narrow": lambda x: x.narrow(2, 1, 2),
    "flip": lambda x: x.flip(1),
    "roll": lambda x: torch.roll(x, 1, 2),
    "gather": lambda x: x.gather(2, torch.zeros(2, 3, 1, dtype=torch.long)),
    "clone": lambda x: x.clone(),
    "detach": lambda x: x.detach(),
    "sum": lambda x: x.sum(),
    "sum_dim": lambda x: x.sum((0, 2), keepdim=True),
    "cumsum": lambda x: x.cumsum(1),
    "chunk": lambda x: x.chunk(2, -1)[1],
    "split": lambda x: x.split([1, 2], 1)[1],
    "torch_split": lambda x: torch.split(x, 2, 2)[0],
    "unbind": lambda x: x.unbind(1)[2],
    "iterate": lambda x: list(x)[1],
    "tril": lambda x: x.tril(),
    "pixel_shuffle": lambda x: F.pixel_shuffle(x.view(1, 4, 2, 3), 2),
    "unfold": lambda x: F.unfold(x.view(1, 2, 3, 4), 2),
    "tensor_unfold": lambda x: x.unfold(2, 2, 1),
    "channel_flatten": lambda x: nn.Flatten(0, 1)(x),
    "module_unflatten": lambda x: nn.Unflatten(2, (2, 2))(x),
    "cat": lambda x: torch.cat([x, x.flip(0)], 1),
    "stack": lambda x: torch.stack([x, x]),
}


@pytest.mark.parametrize("name", MOVES)
def test_both_tensors_move_alike(name):
    x, move = normal_moments(2, 3, 4), MOVES[name]
    result = move(x)
    assert torch.equal(result.expected, move(x.expected))
    assert torch.equal(result.variance, move(x.variance))
    certain = move(Moments(x.expected))
    assert certain.is_certain
    assert torch.equal(certain.expected, result.expected)


@pytest.mark.parametrize(
    "average",
    [
        lambda x: x.mean(),
        lambda x: x.mean(1),
        lambda x: x.mean((1, 2)),
        lambda x: x.mean(dim=-1, keepdim=True),
        lambda x: torch.mean(x, dim=(0, 2)),
    ],
)
def test_average_divides_the_variance_by_the_square(average):
    x = normal_moments(2, 3, 4)
    result = average(x)
    assert torch.equal(result.expected, average(x.expected))
    jacobian = torch.autograd.functional.jacobian(average, x.expected)
    torch.testing.assert_close(result.variance, (jacobian**2 * x.variance).flatten(-3).sum(-1))
    assert average(Moments(x.expected)).is_certain


def test_join_takes_tensors_as_certain():
    x, y = normal_moments(2, 3), torch.ones(2, 3, dtype=torch.float64)
    joined = torch.cat([y, x], dim=0)
    assert torch.equal(joined.variance, torch.cat([torch.zeros_like(y), x.variance]))
    assert torch.cat([Moments(y), Moments(y)]).is_certain


@pytest.mark.parametrize(
    ("mode", "value"),
    [("constant", 2.0), ("reflect", None), ("replicate", None), ("circular", None)],
)
def test_padding_is_certain_only_where_it_is_constant(mode, value):
    x = normal_moments(1, 2, 3, 4)
    result = F.pad(x, (1, 2, 1, 1), mode, value)
    assert torch.equal(result.expected, F.pad(x.expected, (1, 2, 1, 1), mode, value))
    assert torch.equal(result.variance, F.pad(x.variance, (1, 2, 1, 1), mode))


def test_masked_entries_are_certain():
    x = normal_moments(2, 3)
    mask = torch.tensor([[True, False, False], [False, True, False]])
    filled = x.masked_fill(mask, -torch.inf)
    assert (filled.variance[mask] == 0).all()
    assert torch.equal(filled.variance[~mask], x.variance[~mask])
    chosen = torch.where(mask, x, 0.0)
    assert torch.equal(chosen.variance, torch.where(mask, x.variance, 0.0))
    other = torch.where(mask, torch.zeros(2, 3).double(), x)
    assert torch.equal(other.variance, torch.where(mask, 0.0, x.variance))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_conversion_keeps_the_variance_precise(dtype):
    x = normal_moments(3, dtype=torch.float32)
    result = x.to(dtype)
    assert result.dtype == dtype
    assert result.variance.dtype == (torch.float32 if dtype == torch.float16 else dtype)
    assert x.half().dtype == torch.float16
    assert x.half().float().variance.dtype == torch.float32
    assert x.to("cpu", torch.float64).double().dtype == torch.float64
    assert x.type_as(torch.ones(1, dtype=dtype)).dtype == dtype
    assert x.to(torch.ones(1, dtype=dtype)).dtype == dtype


def test_questions_are_answered_by_the_mean():
    x = normal_moments(2, 3, 4)
    assert x.size() == x.shape == torch.Size([2, 3, 4])
    assert x.size(-1) == 4
    assert x.dim() == x.ndim == 3
    assert x.numel() == torch.numel(x) == 24
    assert x.is_floating_point()
    assert torch.is_floating_point(x)
    assert isinstance(torch.zeros_like(x), torch.Tensor)
    assert x.new_zeros(2).dtype == torch.float64
    assert x.device == torch.device("cpu")
    assert not x.is_nested
    assert not x.requires_grad
    assert len(x) == 2
