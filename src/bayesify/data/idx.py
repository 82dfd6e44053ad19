"""Read the idx files that MNIST and its relatives are published in."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

UNSIGNED_BYTE = 0x08


def read_idx(path: Path, num_dimensions: int) -> Tensor:
    """Return the uint8 tensor of an idx file; one that ends in .gz is decompressed on the way.

    Args:
        path: The file.
        num_dimensions: How many dimensions it must have: 3 for images, 1 for labels.
    """
    content = _content(path)
    num_header_bytes = 4 + 4 * num_dimensions
    magic = struct.pack(">HBB", 0, UNSIGNED_BYTE, num_dimensions)
    if content[:4] != magic:
        raise ValueError(
            f"{path} must be an idx file of unsigned bytes with {num_dimensions} dimension(s), "
            f"which starts with {magic.hex(' ')}, got {content[:4].hex(' ') or 'an empty file'}"
        )
    if len(content) < num_header_bytes:
        raise ValueError(
            f"{path} must have a header of {num_header_bytes} bytes, got {len(content)} bytes; "
            "it is truncated: delete it and load again"
        )
    shape = struct.unpack(f">{num_dimensions}I", content[4:num_header_bytes])
    expected = num_header_bytes + math.prod(shape)
    if len(content) != expected:
        raise ValueError(
            f"{path} must have {expected} bytes to hold shape {shape}, got {len(content)} bytes; "
            "it is damaged: delete it and load again"
        )
    values = np.frombuffer(content, dtype=np.uint8, offset=num_header_bytes)
    return torch.from_numpy(values.reshape(shape))


def _content(path: Path) -> bytearray:
    # A bytearray is writable memory, which a tensor may share without a copy.
    if path.suffix != ".gz":
        return bytearray(path.read_bytes())
    try:
        with gzip.open(path) as file:
            return bytearray(file.read())
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(
            f"{path} must be a whole gzip file, got a damaged one ({error}); "
            "delete it and load again"
        ) from error
