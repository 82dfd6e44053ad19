import gzip
import struct

import pytest
import torch

from bayesify.data.idx import read_idx


def idx_bytes(values):
    header = struct.pack(">HBB", 0, 8, values.ndim) + struct.pack(f">{values.ndim}I", *values.shape)
    return header + values.numpy().tobytes()


@pytest.fixture
def values():
    return torch.arange(24, dtype=torch.uint8).view(2, 3, 4)


def test_read_idx_gives_the_values_back(tmp_path, values):
    (tmp_path / "images").write_bytes(idx_bytes(values))
    assert torch.equal(read_idx(tmp_path / "images", 3), values)


def test_read_idx_gives_memory_of_its_own(tmp_path, values):
    (tmp_path / "images").write_bytes(idx_bytes(values))
    read_idx(tmp_path / "images", 3).fill_(7)
    assert torch.equal(read_idx(tmp_path / "images", 3), values)


def test_read_idx_decompresses(tmp_path, values):
    (tmp_path / "images.gz").write_bytes(gzip.compress(idx_bytes(values)))
    assert torch.equal(read_idx(tmp_path / "images.gz", 3), values)


def test_read_idx_reads_no_examples(tmp_path):
    (tmp_path / "labels").write_bytes(idx_bytes(torch.zeros(0, dtype=torch.uint8)))
    assert read_idx(tmp_path / "labels", 1).shape == (0,)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "starts with 00 00 08 01, got an empty file"),
        (b"<html>", "images must be an idx file .* got 3c 68 74 6d"),
        (b"\x00\x00\x08\x03\x00\x00", "starts with 00 00 08 01, got 00 00 08 03"),
        (b"\x00\x00\x0d\x01\x00\x00\x00\x00", "unsigned bytes .* got 00 00 0d 01"),
        (b"\x00\x00\x08\x01\x00\x00", "header of 8 bytes, got 6 bytes; it is truncated"),
        (b"\x00\x00\x08\x01\x00\x00\x00\x03ab", r"11 bytes to hold shape \(3,\), got 10 bytes"),
        (b"\x00\x00\x08\x01\x00\x00\x00\x03abcd", r"11 bytes to hold shape \(3,\), got 12 bytes"),
    ],
)
def test_read_idx_refuses_truncated_and_foreign_files(tmp_path, content, message):
    (tmp_path / "images").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_idx(tmp_path / "images", 1)


@pytest.mark.parametrize("content", [b"not gzip at all", "cut", "flipped"])
def test_read_idx_refuses_a_damaged_gzip_file(tmp_path, values, content):
    whole = gzip.compress(idx_bytes(values))
    if content == "cut":
        content = whole[:-12]
    elif content == "flipped":
        content = whole[:-8] + bytes(255 - byte for byte in whole[-8:])
    (tmp_path / "images.gz").write_bytes(content)
    with pytest.raises(
        ValueError, match=r"images\.gz must be a whole gzip file, got a damaged one"
    ):
        read_idx(tmp_path / "images.gz", 3)
