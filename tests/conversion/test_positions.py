"""Positions come back from their short form, which is as short as it should be."""

import pytest
import torch

from bayesify.conversion.positions import Packed, packed, unpacked

TOTAL = 100_000


def chosen(share: float, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randperm(TOTAL, generator=generator)[: round(share * TOTAL)].sort().values


def num_bytes(kept: Packed) -> int:
    return kept.places.nbytes + (0 if kept.jumps is None else kept.jumps.nbytes)


@pytest.mark.parametrize("share", [0.0, 1e-5, 2e-5, 3e-5, 1e-4, 0.001, 0.01, 0.05, 0.2, 0.9, 1.0])
def test_positions_come_back(share: float) -> None:
    index = chosen(share)
    found = unpacked(packed(index, TOTAL), len(index))
    assert found.dtype == torch.int32
    assert torch.equal(found.long(), index)


@pytest.mark.parametrize(
    "index",
    [[0], [TOTAL - 1], [0, 1], [0, 15, 31, 47], [15, 30, 45], [255, 510, 766], [16], [256, 257]],
    ids=str,
)
def test_positions_at_the_limits_of_a_gap_come_back(index: list[int]) -> None:
    assert unpacked(packed(torch.tensor(index), TOTAL), len(index)).tolist() == index


@pytest.mark.parametrize(("share", "bits"), [(0.2, 4), (0.05, 8), (0.0005, None)])
def test_the_form_follows_the_distance_between_positions(share: float, bits: int | None) -> None:
    assert packed(chosen(share), TOTAL).bits == bits


@pytest.mark.parametrize("share", [0.001, 0.01, 0.03, 0.05, 0.1, 0.2, 0.5, 1.0])
def test_no_form_is_longer_than_four_bytes_nor_much_longer_than_the_gaps(share: float) -> None:
    index = chosen(share)
    found = num_bytes(packed(index, TOTAL)) / len(index)
    # A gap of n entries or more happens with probability (1 - share)^n; five standard errors.
    beyond = {bits: (1 - share) ** (2**bits - 1) for bits in (4, 8)}
    spread = {bits: 5 * (part * (1 - part) / len(index)) ** 0.5 for bits, part in beyond.items()}
    expected = [bits / 8 + 8 * (beyond[bits] + spread[bits]) for bits in (4, 8)]
    assert found <= min(4.0, *expected) + 1 / len(index)


def test_positions_in_another_order_are_kept_as_they_are() -> None:
    index = torch.tensor([5, 3, 9])
    kept = packed(index, TOTAL)
    assert kept.bits is None
    assert unpacked(kept, 3).tolist() == [5, 3, 9]


def test_so_many_entries_that_four_bytes_do_not_reach_take_eight() -> None:
    index = torch.tensor([1, 2**33])
    kept = packed(index, 2**34)
    assert kept.places.dtype == torch.int64
    assert unpacked(kept, 2).tolist() == [1, 2**33]


def test_positions_without_values_are_kept_as_they_are() -> None:
    kept = packed(torch.arange(4, device="meta"), TOTAL)
    assert kept.bits is None
    assert unpacked(kept, 4).shape == (4,)
