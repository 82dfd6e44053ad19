import hashlib
import tarfile

import pytest
import torch

from bayesify.data import CropAndFlip, DataNotFoundError, cifar, load_dataset
from bayesify.data.cifar import CIFAR10_TEST, CIFAR10_TRAIN, CIFAR100_TEST, Resource, read_records


def record_bytes(labels, images):
    return torch.cat([labels, images.flatten(1)], dim=1).numpy().tobytes()


@pytest.fixture
def images():
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (4, 3, 32, 32), dtype=torch.uint8, generator=generator)


@pytest.fixture
def root(tmp_path, images):
    """Return a folder with four images in each of the six official files."""
    folder = tmp_path / "root"
    for index, name in enumerate((*CIFAR10_TRAIN, CIFAR10_TEST)):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        labels = torch.full((4, 1), index, dtype=torch.uint8)
        (folder / name).write_bytes(record_bytes(labels, images))
    return folder


def test_cifar10_reads_the_official_layout(root, images):
    data = load_dataset("cifar10", root, download=False)
    assert data.train.inputs.shape == (20, 3, 32, 32)
    assert data.train.targets.tolist() == [batch for batch in range(5) for _ in range(4)]
    assert torch.equal(data.test.inputs, images)
    assert data.test.targets.tolist() == [5] * 4
    assert data.classes[5] == "dog"
    assert data.train.augmentation is None


def test_cifar10_augments_only_the_training_images(root):
    data = load_dataset("cifar10", root, augment=True, download=False)
    assert isinstance(data.train.augmentation, CropAndFlip)
    assert data.test.augmentation is None
    torch.manual_seed(0)
    first, second = (data.train.__getitems__(range(20))[0] for _ in range(2))
    assert first.shape == (20, 3, 32, 32)
    assert not torch.equal(first, second)


def test_cifar10_blanks_squares_of_the_mean_colour(root):
    data = load_dataset("cifar10", root, augment=True, cutout=16, download=False)
    torch.manual_seed(0)
    inputs = data.train.__getitems__(range(20))[0]
    # The mean is rounded to a whole pixel value, which is then normalised.
    is_blank = (inputs.abs() < 0.5 / (255 * 0.24)).all(1)
    assert (is_blank.flatten(1).sum(1) >= 8 * 8).all()
    with pytest.raises(ValueError, match="cutout must be 0 where augment is False, got 16"):
        load_dataset("cifar10", root, cutout=16, download=False)


def test_cifar10_unpacks_the_archive(root, tmp_path, monkeypatch):
    archive = tmp_path / "published.tar.gz"
    with tarfile.open(archive, "w:gz") as file:
        file.add(root / "cifar-10-batches-bin", "cifar-10-batches-bin")
    md5 = hashlib.md5(archive.read_bytes()).hexdigest()
    monkeypatch.setattr(cifar, "CIFAR10_ARCHIVE", Resource("a.tar.gz", md5, (archive.as_uri(),)))
    data = load_dataset("cifar10", tmp_path / "fresh")
    assert torch.equal(data.train.inputs, load_dataset("cifar10", root).train.inputs)


def test_cifar10_without_files_says_what_to_put_where(tmp_path):
    with pytest.raises(DataNotFoundError) as caught:
        load_dataset("cifar10", tmp_path, download=False)
    message = str(caught.value)
    assert f"put these files into {tmp_path}" in message
    assert "cifar-10-binary.tar.gz (md5 c32a1d4ab5d03f1284b67883e8d87530)" in message
    assert "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz" in message


def test_cifar100_test_reads_fine_labels_and_has_no_training_images(tmp_path, images):
    (tmp_path / CIFAR100_TEST).parent.mkdir()
    labels = torch.tensor([[0, 99], [1, 3], [19, 50], [5, 0]], dtype=torch.uint8)
    (tmp_path / CIFAR100_TEST).write_bytes(record_bytes(labels, images))
    data = load_dataset("cifar100_test", tmp_path, download=False)
    assert data.test.targets.tolist() == [99, 3, 50, 0]
    assert torch.equal(data.test.inputs, images)
    assert len(data.train) == 0
    assert data.num_classes == 100


def test_read_records_gives_memory_of_its_own(root, images):
    read_records(root / CIFAR10_TEST, 1, 10)[0].fill_(0)
    assert torch.equal(read_records(root / CIFAR10_TEST, 1, 10)[0], images)


@pytest.mark.parametrize("num_bytes", [0, 1, 3072, 2 * 3073 - 1])
def test_read_records_refuses_a_truncated_file(root, num_bytes):
    path = root / CIFAR10_TEST
    path.write_bytes(path.read_bytes()[:num_bytes])
    with pytest.raises(
        ValueError,
        match=rf"test_batch\.bin must hold whole records of 3073 bytes, got {num_bytes} ",
    ):
        read_records(path, 1, 10)


def test_read_records_refuses_labels_of_another_set(tmp_path, images):
    path = tmp_path / "foreign.bin"
    path.write_bytes(record_bytes(torch.full((4, 1), 200, dtype=torch.uint8), images))
    with pytest.raises(ValueError, match=r"foreign\.bin must hold labels from 0 to 9, got 200"):
        read_records(path, 1, 10)


@pytest.mark.slow
def test_cifar100_test_real_file_has_every_class_a_hundred_times(unpacked):
    data = load_dataset("cifar100_test", unpacked("cifar100_test"), download=False)
    assert data.test.targets.bincount().tolist() == [100] * 100
