import gzip
import hashlib
import struct
from dataclasses import replace

import pytest
import torch

from bayesify.data import DataNotFoundError, load_dataset
from bayesify.data.mnist import FILE_NAMES, MNIST, load_release


def idx_bytes(values):
    header = struct.pack(">HBB", 0, 8, values.ndim) + struct.pack(f">{values.ndim}I", *values.shape)
    return header + values.numpy().tobytes()


def tiny_files(num_train=6, num_test=3):
    """Return the four files of a tiny set, by name."""
    generator = torch.Generator().manual_seed(0)
    arrays = []
    for count in (num_train, num_test):
        arrays.append(
            torch.randint(0, 256, (count, 28, 28), dtype=torch.uint8, generator=generator)
        )
        arrays.append(torch.arange(count, dtype=torch.uint8))
    return {name: idx_bytes(array) for name, array in zip(FILE_NAMES, arrays, strict=True)}


@pytest.fixture
def raw(tmp_path):
    folder = tmp_path / "MNIST" / "raw"
    folder.mkdir(parents=True)
    for name, content in tiny_files().items():
        (folder / name).write_bytes(content)
    return folder


def test_mnist_reads_the_official_layout(tmp_path, raw):
    data = load_dataset("mnist", tmp_path, download=False)
    assert data.train.inputs.shape == (6, 1, 28, 28)
    assert data.train.inputs.dtype == torch.uint8
    assert data.test.targets.tolist() == [0, 1, 2]
    assert data.test.targets.dtype == torch.int64
    assert data.num_classes == 10
    image, _ = data.train[0]
    torch.testing.assert_close(image, (data.train.inputs[0] / 255 - 0.1307) / 0.3081)


def test_mnist_reads_compressed_files_too(tmp_path, raw):
    plain = load_dataset("mnist", tmp_path, download=False)
    for name in FILE_NAMES[:2]:
        (raw / f"{name}.gz").write_bytes(gzip.compress((raw / name).read_bytes()))
        (raw / name).unlink()
    assert torch.equal(load_dataset("mnist", tmp_path).train.inputs, plain.train.inputs)


def test_mnist_without_files_says_what_to_put_where(tmp_path, raw):
    (raw / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(DataNotFoundError) as caught:
        load_dataset("mnist", tmp_path, download=False)
    message = str(caught.value)
    assert f"put these files into {raw}" in message
    assert "t10k-labels-idx1-ubyte.gz (md5 ec29112dd5afa0611ce80d1b7f02629c)" in message
    assert "https://ossci-datasets.s3.amazonaws.com/mnist/t10k-labels-idx1-ubyte.gz" in message
    assert "train-images" not in message


def test_mnist_downloads_what_is_missing(tmp_path):
    published = tmp_path / "published"
    published.mkdir()
    md5s = []
    for name, content in tiny_files().items():
        compressed = gzip.compress(content)
        (published / f"{name}.gz").write_bytes(compressed)
        md5s.append(hashlib.md5(compressed).hexdigest())
    release = replace(MNIST, addresses=(published.as_uri(),), md5s=tuple(md5s))
    data = load_release(release, tmp_path / "root", download=True)
    assert len(data.train) == 6
    assert len(list((tmp_path / "root" / "MNIST" / "raw").iterdir())) == 4


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("train-labels-idx1-ubyte", torch.zeros(5), "one label for each of 6 images .* got 5"),
        ("train-labels-idx1-ubyte", torch.full((6,), 47.0), "labels from 0 to 9, got 47"),
        ("t10k-images-idx3-ubyte", torch.zeros(3, 8, 8), r"\(28, 28\), got \(8, 8\)"),
    ],
)
def test_mnist_refuses_files_of_another_set(tmp_path, raw, name, values, message):
    (raw / name).write_bytes(idx_bytes(values.to(torch.uint8)))
    with pytest.raises(ValueError, match=f"{name} must hold .*{message}"):
        load_dataset("mnist", tmp_path, download=False)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mnist", "fashion_mnist"])
def test_mnist_real_files_have_the_stated_statistics(unpacked, name):
    data = load_dataset(name, unpacked(name), download=False)
    assert (len(data.train), len(data.test)) == (60_000, 10_000)
    assert data.test.targets.bincount().tolist() == (
        [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009] if name == "mnist" else [1000] * 10
    )
    pixels = data.train.inputs.float() / 255
    assert pixels.mean().item() == pytest.approx(data.mean[0], abs=1e-4)
    assert pixels.std().item() == pytest.approx(data.std[0], abs=1e-4)
