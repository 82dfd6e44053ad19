"""Tiny ImageNet in both layouts its files come in."""

import sys

import pytest
import torch

from bayesify.data import CropAndFlip, DataNotFoundError, load_dataset, loader
from bayesify.data.tiny_imagenet import FOLDER, MEAN, STD

Image = pytest.importorskip("PIL.Image")
NAMES = ("n01443537", "n01784675", "n02002724")
NUM_TRAIN, NUM_TEST = 3, 2
WORDS = "n01443537\tgoldfish, Carassius auratus\nn02002724\tblack stork\nn09999999\tother\n"


def shade(label, index, *, is_test):
    """Return a colour that tells an image of a class from all others."""
    return (40 + 80 * label, 100 + 20 * index, 200 if is_test else 20)


def write(path, colour, size=(64, 64), mode="RGB"):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).convert(mode).save(path, quality=100, subsampling=0)


def write_train(folder, inner):
    # Written last to first: files are read by name, not in the order they were made.
    for label, name in reversed(list(enumerate(NAMES))):
        for index in reversed(range(NUM_TRAIN)):
            path = folder / "train" / name / inner / f"{name}_{index}.JPEG"
            write(path, shade(label, index, is_test=False))


@pytest.fixture
def folders(tmp_path):
    """Return a root in which every class of either part has a folder of its own."""
    folder = tmp_path / FOLDER
    write_train(folder, ".")
    for label, name in enumerate(NAMES):
        for index in range(NUM_TEST):
            path = folder / "val" / name / f"val_{index}.JPEG"
            write(path, shade(label, index, is_test=True))
    (folder / "words.txt").write_text(WORDS)
    return tmp_path


@pytest.fixture
def released(tmp_path):
    """Return a root in the layout of the release."""
    folder = tmp_path / "released" / FOLDER
    write_train(folder, "images")
    rows = []
    for index in range(NUM_TEST):
        for label, name in enumerate(NAMES):
            write(
                folder / "val" / "images" / f"val_{len(rows)}.JPEG",
                shade(label, index, is_test=True),
            )
            rows.append(f"val_{len(rows)}.JPEG\t{name}\t0\t0\t62\t62")
    (folder / "val" / "val_annotations.txt").write_text("\n".join(rows) + "\n")
    return folder.parent


def assert_coloured(part, is_test, count):
    """Assert that each class has its images, in order; JPEG keeps a plain colour to some levels."""
    for label in range(len(NAMES)):
        images = part.inputs[part.targets == label]
        assert images.shape == (count, 3, 64, 64)
        for index, image in enumerate(images):
            colour = torch.tensor(shade(label, index, is_test=is_test)).view(3, 1, 1)
            assert (image.int() - colour).abs().max() <= 3


@pytest.mark.parametrize("layout", ["folders", "released"])
def test_tiny_imagenet_reads_both_layouts(layout, request):
    data = load_dataset("tiny_imagenet", request.getfixturevalue(layout))
    assert (len(data.train), len(data.test)) == (len(NAMES) * NUM_TRAIN, len(NAMES) * NUM_TEST)
    assert_coloured(data.train, False, NUM_TRAIN)
    assert_coloured(data.test, True, NUM_TEST)
    assert data.train.inputs.dtype == torch.uint8
    assert data.train.targets.dtype == torch.int64
    assert (data.num_classes, data.input_shape) == (3, (3, 64, 64))


def test_tiny_imagenet_names_classes_by_their_first_word(folders, released):
    assert load_dataset("tiny_imagenet", folders).classes == ("goldfish", NAMES[1], "black stork")
    assert load_dataset("tiny_imagenet", released).classes == NAMES


@pytest.mark.parametrize("layout", ["folders", "released"])
def test_tiny_imagenet_loads_some_classes_alone(layout, request):
    chosen = [NAMES[2], NAMES[0]]
    data = load_dataset("tiny_imagenet", request.getfixturevalue(layout), classes=chosen)
    assert data.num_classes == 2
    assert data.train.targets.tolist() == [0] * NUM_TRAIN + [1] * NUM_TRAIN
    red = data.test.inputs.float().mean((2, 3))[:, 0]
    assert (red[data.test.targets == 0] < 60).all()
    assert (red[data.test.targets == 1] > 180).all()


def test_tiny_imagenet_batches_are_normalised_and_augmented_for_training(folders):
    data = load_dataset("tiny_imagenet", folders, augment=True)
    inputs, _ = next(iter(loader(data.test, 6)))
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (MEAN, STD))
    torch.testing.assert_close(inputs, (data.test.inputs / 255 - mean) / std)
    assert data.train.augmentation == CropAndFlip(padding=8)
    assert data.test.augmentation is None


def test_tiny_imagenet_turns_grey_images_into_coloured_ones(folders):
    path = folders / FOLDER / "train" / NAMES[0] / f"{NAMES[0]}_0.JPEG"
    write(path, (90, 90, 90), mode="L")
    image = load_dataset("tiny_imagenet", folders).train.inputs[0]
    assert (image.int() - 90).abs().max() <= 3


def test_tiny_imagenet_without_files_says_where_they_are_and_makes_no_folder(tmp_path):
    with pytest.raises(DataNotFoundError, match=r"tiny-imagenet-200\.zip into .*root"):
        load_dataset("tiny_imagenet", tmp_path / "root")
    assert not (tmp_path / "root").exists()


def test_tiny_imagenet_refuses_files_that_do_not_fit(folders):
    inside = folders / FOLDER / "val" / NAMES[1]
    write(inside / "val_0.JPEG", (0, 0, 0), size=(64, 32))
    with pytest.raises(ValueError, match=r"val_0\.JPEG must have 64x64 pixels, got \(64, 32\)"):
        load_dataset("tiny_imagenet", folders)
    for path in inside.iterdir():
        path.unlink()
    with pytest.raises(DataNotFoundError, match=r"n01784675 must hold \*\.JPEG files, got none"):
        load_dataset("tiny_imagenet", folders)


@pytest.mark.parametrize(
    ("classes", "message"),
    [
        (["n01443537", "n0178467"], "unknown class 'n0178467'. Did you mean 'n01784675'"),
        (["n01443537", "n01443537"], "classes must be two or more different ones"),
        (["n01443537"], "classes must be two or more different ones"),
    ],
)
def test_tiny_imagenet_refuses_wrong_classes(folders, classes, message):
    with pytest.raises(ValueError, match=message):
        load_dataset("tiny_imagenet", folders, classes=classes)


def test_tiny_imagenet_without_pillow_says_how_to_get_it(folders, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ImportError, match="pip install pillow"):
        load_dataset("tiny_imagenet", folders)


@pytest.mark.slow
def test_tiny_imagenet_real_images_have_the_published_statistics(unpacked):
    data = load_dataset("tiny_imagenet", unpacked("tiny_imagenet"))
    assert data.train.targets.bincount().tolist() == [500] * 20
    assert data.test.targets.bincount().tolist() == [50] * 20
    assert data.classes is not None
    assert data.classes[0] == "goldfish"
    pixels = data.train.inputs.float() / 255
    # 20 of the 200 classes the statistics are of.
    torch.testing.assert_close(pixels.mean((0, 2, 3)), torch.tensor(MEAN), rtol=0, atol=0.02)
    torch.testing.assert_close(pixels.std((0, 2, 3)), torch.tensor(STD), rtol=0, atol=0.02)
