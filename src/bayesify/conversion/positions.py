"""Where entries of a tensor are, in as few bytes as they take.

Ascending positions are kept as the gaps between them, in four or eight bits each. The few gaps
that are longer have what is missing beside them. Positions are made from them where they are read:
a sum over as many numbers as there are positions.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

# A jump takes two numbers of four bytes: which gap it makes longer, and by how much.
_JUMP_BYTES = 8
_PLAIN_BYTES = 4


@dataclass(frozen=True)
class Packed:
    """Positions as they are kept.

    Attributes:
        places: The positions themselves, or the gaps before them in bytes.
        jumps: What is missing of long gaps: a row of which, a row of how much. None for none.
        bits: How many bits a gap has; None where the positions themselves are kept.
    """

    places: Tensor
    jumps: Tensor | None = None
    bits: int | None = None


def packed(index: Tensor, num_entries: int) -> Packed:
    """Return positions among so many entries in the shortest form there is for them."""
    index = as_stored(index, num_entries)
    if num_entries >= 2**31 or not index.numel() or index.is_meta:
        return Packed(index)
    # The first position is the gap before it.
    gaps = index.diff(prepend=index.new_zeros(1))
    if not bool((gaps[1:] > 0).all()):
        return Packed(index)
    sizes = {bits: _num_bytes(gaps, bits) for bits in (4, 8)}
    bits = min(sizes, key=lambda each: sizes[each])
    if sizes[bits] >= _PLAIN_BYTES * index.numel():
        return Packed(index)
    largest = 2**bits - 1
    long = (gaps > largest).nonzero()[:, 0]
    jumps = torch.stack((long.to(torch.int32), gaps[long] - largest)) if long.numel() else None
    places = gaps.clamp_max(largest).to(torch.uint8)
    if bits == 4:
        pairs = torch.nn.functional.pad(places, (0, len(places) % 2)).view(-1, 2)
        places = (pairs[:, 0] << 4) | pairs[:, 1]
    return Packed(places, jumps, bits)


def unpacked(kept: Packed, count: int) -> Tensor:
    """Return `count` positions from the form they are kept in."""
    gaps, jumps = kept.places, kept.jumps
    if kept.bits is None:
        return gaps
    if kept.bits == 4:
        gaps = torch.stack((gaps >> 4, gaps & 15), 1).flatten()[:count]
    if jumps is not None:
        gaps = gaps.to(torch.int32).index_add(0, jumps[0], jumps[1])
    return gaps.cumsum(0, dtype=torch.int32)


def as_stored(index: Tensor, num_entries: int) -> Tensor:
    """Return positions among so many entries in four bytes each, where four are enough."""
    return index if num_entries >= 2**31 else index.to(torch.int32)


def _num_bytes(gaps: Tensor, bits: int) -> int:
    num_jumps = int((gaps > 2**bits - 1).sum())
    return (gaps.numel() * bits + 7) // 8 + _JUMP_BYTES * num_jumps
