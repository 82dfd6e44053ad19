import itertools

import pytest
import torch
import torch.nn.functional as F

from bayesify.data import STANDARD, Normalise, TensorData, corrupted, corruption, corruptions

EXTRA = ("speckle_noise", "gaussian_blur", "spatter", "saturate")
NAMES = STANDARD + EXTRA
FIXED = {
    "defocus_blur",
    "zoom_blur",
    "brightness",
    "contrast",
    "pixelate",
    "jpeg_compression",
    "gaussian_blur",
    "saturate",
}
# Of the others the constants themselves are not in the order of this distance: glass smooths more
# at severity 3 than at 2, motion differs in its far tail from 3 to 4, frost darkens the picture
# it whitens, spatter turns from water to mud, saturate from paler to stronger. Smooth pictures
# tell 28 pixels for 32 (pixelate at 2) from 27 (at 3) by where they lie.
MONOTONE = sorted(
    set(NAMES)
    - {"pixelate", "glass_blur", "motion_blur", "frost", "elastic_transform", "spatter", "saturate"}
)
DEVICES = [
    "cpu",
    pytest.param(
        "cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
    ),
]


def pictures(num_images=32, num_channels=3, height=32, width=32):
    """Smooth images of blobs in muted colours, with some finer texture."""
    generator = torch.Generator().manual_seed(0)

    def blobs(cells):
        coarse = torch.rand(num_images, num_channels, cells, cells, generator=generator)
        return F.interpolate(coarse, (height, width), mode="bilinear", align_corners=False)

    images = 0.6 * blobs(5) + 0.2 * blobs(14) + 0.1
    images = 0.5 * images + 0.5 * images.mean(1, keepdim=True)
    return TensorData(images.mul(255).to(torch.uint8), torch.arange(num_images))


def distance(data, name, severity):
    changed = corrupted(data, name, severity).inputs.double()
    return (changed - data.inputs.double()).square().mean().item()


def test_registry_holds_the_standard_fifteen_and_four_more():
    assert len(STANDARD) == 15
    assert sorted(corruptions) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("device", DEVICES)
def test_corrupted_keeps_shape_type_targets_and_transform(name, device):
    transform = Normalise((0.5,) * 3, (0.5,) * 3)
    plain = pictures(6).to(device)
    data = TensorData(plain.inputs, plain.targets, transform, augmentation=lambda images: images)
    before = data.inputs.clone()
    for severity in (1, 3, 5):
        result = corrupted(data, name, severity)
        assert result.inputs.dtype == torch.uint8
        assert result.inputs.shape == data.inputs.shape
        assert result.inputs.device == data.inputs.device
        assert torch.equal(result.targets, data.targets)
        assert result.transform is transform
        assert result.augmentation is None
        assert not torch.equal(result.inputs, before)
    assert torch.equal(data.inputs, before)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("device", DEVICES)
def test_corruption_stays_in_range_and_leaves_its_images_alone(name, device):
    generator = torch.Generator(device).manual_seed(0)
    images = torch.rand(4, 3, 16, 16, generator=generator, device=device)
    images[0], images[1] = 0.0, 1.0
    before = images.clone()
    for severity in range(1, 6):
        result = corruptions[name](images, severity, generator)
        assert result.shape == images.shape
        assert result.dtype == torch.float32
        assert bool(((result >= 0.0) & (result <= 1.0)).all())
    assert torch.equal(images, before)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("device", DEVICES)
def test_corrupted_is_the_same_for_a_seed_and_other_for_another(name, device):
    data = pictures(8).to(device)
    first = corrupted(data, name, 4, seed=3).inputs
    assert torch.equal(corrupted(data, name, 4, seed=3).inputs, first)
    assert torch.equal(corrupted(data, name, 4, seed=4).inputs, first) == (name in FIXED)


@pytest.mark.parametrize("name", sorted(set(NAMES) - FIXED))
def test_corrupted_draws_anew_for_each_image(name, monkeypatch):
    monkeypatch.setattr(corruption, "BATCH_SIZE", 2)
    row = pictures(1).inputs
    same = TensorData(row.repeat(4, 1, 1, 1), torch.arange(4))
    result = corrupted(same, name, 5).inputs
    for other in (1, 2, 3):
        assert not torch.equal(result[0], result[other])


@pytest.mark.parametrize("name", sorted(FIXED))
def test_corrupted_does_not_depend_on_batches_where_nothing_is_drawn(name, monkeypatch):
    data = pictures(7)
    whole = corrupted(data, name, 3).inputs
    monkeypatch.setattr(corruption, "BATCH_SIZE", 3)
    # A product of another size may add in another order: half a level may round either way.
    assert int((corrupted(data, name, 3).inputs.int() - whole.int()).abs().max()) <= 1


@pytest.mark.parametrize("name", MONOTONE)
def test_severity_is_monotone_in_the_distance_from_the_original(name):
    distances = [distance(pictures(), name, severity) for severity in range(1, 6)]
    assert all(low < high for low, high in itertools.pairwise(distances)), distances


# The affine map of elastic_transform gets milder with severity, as its local stretching gets
# stronger: see its own test.
@pytest.mark.parametrize("name", sorted(set(NAMES) - {"elastic_transform"}))
def test_severity_five_is_farther_from_the_original_than_one(name):
    assert distance(pictures(), name, 5) > distance(pictures(), name, 1)


@pytest.mark.parametrize("name", NAMES)
def test_corrupted_takes_an_empty_set(name):
    data = TensorData(torch.zeros(0, 3, 8, 8, dtype=torch.uint8), torch.zeros(0))
    result = corrupted(data, name, 2)
    assert result.inputs.shape == (0, 3, 8, 8)
    assert len(result) == 0


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", [(1, 1), (5, 7), (28, 30)])
def test_corrupted_takes_images_of_any_size(name, size):
    data = pictures(2, 3, *size)
    for severity in range(1, 6):
        assert corrupted(data, name, severity).inputs.shape == data.inputs.shape


@pytest.mark.parametrize("name", sorted(set(NAMES) - {"saturate"}))
def test_corrupted_takes_grey_images(name):
    data = pictures(4, 1)
    result = corrupted(data, name, 5).inputs
    assert result.shape == data.inputs.shape
    assert not torch.equal(result, data.inputs)


def test_corrupted_refuses_what_it_cannot_do():
    data = pictures(2)
    with pytest.raises(ValueError, match=r"saturate needs images of 3 channels.*got 1"):
        corrupted(pictures(2, 1), "saturate", 1)
    with pytest.raises(LookupError, match=r"unknown corruption 'fogg'.*'fog'"):
        corrupted(data, "fogg", 1)
    for severity in (0, 6, -1, 2.0):
        with pytest.raises(ValueError, match=f"severity must be .* from 1 to 5, got {severity}"):
            corrupted(data, "fog", severity)
    with pytest.raises(TypeError, match=r"type uint8 to be corrupted, got torch\.float32"):
        corrupted(TensorData(torch.rand(2, 3, 8, 8), torch.zeros(2)), "fog", 1)
    for shape in ((2, 8), (2, 2, 8, 8), (2, 3, 8, 8, 8), (2, 3, 0, 8)):
        with pytest.raises(ValueError, match=r"shape \(images, 1 or 3 channels, height, width\)"):
            corrupted(TensorData(torch.zeros(shape, dtype=torch.uint8), torch.zeros(2)), "fog", 1)


def test_corruption_itself_refuses_a_severity_it_has_not():
    with pytest.raises(ValueError, match=r"severity must be .* got 0"):
        corruptions["contrast"](torch.rand(1, 3, 4, 4), 0, torch.Generator())
