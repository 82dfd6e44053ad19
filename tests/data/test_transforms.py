import pickle

import pytest
import torch

from bayesify.data import CropAndFlip, Cutout, FlipPairs, Normalise


def test_normalise_uint8_equals_the_formula():
    images = torch.arange(2 * 3 * 4 * 4).remainder(256).to(torch.uint8).view(2, 3, 4, 4)
    mean, std = (0.1, 0.2, 0.3), (0.5, 0.6, 0.7)
    expected = torch.stack(
        [(images[:, c].double() / 255 - mean[c]) / std[c] for c in range(3)], dim=1
    )
    result = Normalise(mean, std)(images)
    assert result.dtype == torch.float32
    torch.testing.assert_close(result.double(), expected, rtol=1e-6, atol=1e-6)


def test_normalise_floats_are_not_scaled_and_not_changed_in_place():
    images = torch.rand(5, 1, 8, 8)
    before = images.clone()
    torch.testing.assert_close(Normalise((0.5,), (2.0,))(images), (before - 0.5) / 2.0)
    assert torch.equal(images, before)


def test_normalise_takes_rows_of_features():
    rows = torch.tensor([[1.0, 10.0], [3.0, 30.0]])
    expected = torch.tensor([[-1.0, -1.0], [1.0, 1.0]])
    torch.testing.assert_close(Normalise((2.0, 20.0), (1.0, 10.0))(rows), expected)


def test_normalise_bfloat16_gives_float32():
    assert Normalise((0.0,), (1.0,))(torch.ones(1, 1, dtype=torch.bfloat16)).dtype == torch.float32


def test_normalise_takes_an_empty_batch():
    assert Normalise((0.5,), (1.0,))(torch.zeros(0, 1, 4, 4, dtype=torch.uint8)).shape[0] == 0


@pytest.mark.parametrize(
    ("mean", "std", "message"),
    [
        ((0.5,), (0.5, 0.5), "one value per channel each, got 1 and 2"),
        ((), (), "got 0 and 0"),
        ((0.5,), (0.0,), r"std must be positive in every channel, got \(0.0,\)"),
    ],
)
def test_normalise_refuses_wrong_statistics(mean, std, message):
    with pytest.raises(ValueError, match=message):
        Normalise(mean, std)


def test_normalise_refuses_another_number_of_channels():
    with pytest.raises(ValueError, match=r"\(batch, 3, ...\) .* got \(2, 1, 4, 4\)"):
        Normalise((0.0,) * 3, (1.0,) * 3)(torch.zeros(2, 1, 4, 4))


def every_crop(image, padding):
    """Return all crops of an image and of its mirror image, made the slow way."""
    height, width = image.shape[1:]
    crops = []
    padded = torch.nn.functional.pad(image, (padding,) * 4)
    for top in range(2 * padding + 1):
        for left in range(2 * padding + 1):
            crop = padded[:, top : top + height, left : left + width]
            crops += [crop, crop.flip(2)]
    return torch.stack(crops)


def test_crop_and_flip_gives_every_crop_and_nothing_else():
    image = torch.arange(1, 2 * 5 * 6 + 1, dtype=torch.uint8).view(2, 5, 6)
    augment = CropAndFlip(padding=1, generator=torch.Generator().manual_seed(0))
    result = augment(image.expand(600, -1, -1, -1))
    assert result.shape == (600, 2, 5, 6)
    assert result.dtype == torch.uint8
    crops = every_crop(image, 1)
    matches = (result[:, None] == crops[None]).flatten(2).all(2)
    assert torch.equal(matches.sum(1), torch.ones(600, dtype=torch.int64))
    # 18 crops, 600 draws: a fair draw misses one with probability 18 * (17/18)^600 < 1e-13.
    assert matches.any(0).all()


def test_crop_and_flip_mirrors_as_often_as_it_is_told():
    image = torch.arange(4, dtype=torch.uint8).view(1, 1, 1, 4).expand(10_000, -1, -1, -1)
    augment = CropAndFlip(0, 0.25, generator=torch.Generator().manual_seed(0))
    share = (augment(image)[:, 0, 0, 0] == 3).double().mean().item()
    # Four standard errors of a share of 1/4 in 10,000 draws.
    assert share == pytest.approx(0.25, abs=4 * (0.25 * 0.75 / 10_000) ** 0.5)


def test_crop_and_flip_is_fixed_by_its_generator():
    images = torch.rand(16, 3, 8, 8)
    first, again, other = (
        CropAndFlip(generator=torch.Generator().manual_seed(seed))(images) for seed in (1, 1, 2)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_crop_and_flip_without_generator_follows_the_global_seed():
    images = torch.rand(16, 3, 8, 8)
    torch.manual_seed(3)
    first, second = CropAndFlip()(images), CropAndFlip()(images)
    torch.manual_seed(3)
    assert torch.equal(CropAndFlip()(images), first)
    assert not torch.equal(first, second)


def test_crop_and_flip_can_do_nothing():
    images = torch.rand(3, 2, 5, 5)
    assert torch.equal(CropAndFlip(padding=0, flip_probability=0.0)(images), images)


def test_crop_and_flip_takes_an_empty_batch():
    assert CropAndFlip()(torch.zeros(0, 3, 8, 8)).shape == (0, 3, 8, 8)


def test_crop_and_flip_pickles_with_the_state_of_its_generator():
    augment = CropAndFlip(generator=torch.Generator().manual_seed(5))
    copy = pickle.loads(pickle.dumps(augment))
    images = torch.rand(4, 1, 8, 8)
    assert torch.equal(augment(images), copy(images))


def test_crop_and_flip_refuses_what_is_not_an_image():
    with pytest.raises(ValueError, match=r"\(batch, channels, height, width\) .* got \(4, 7\)"):
        CropAndFlip()(torch.zeros(4, 7))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"padding": -1}, "padding must be 0 or more pixels, got -1"),
        ({"flip_probability": 1.5}, r"flip_probability must lie in \[0, 1\], got 1.5"),
    ],
)
def test_crop_and_flip_refuses_wrong_arguments(options, message):
    with pytest.raises(ValueError, match=message):
        CropAndFlip(**options)


def test_crop_and_flip_draws_shifts_and_then_mirrors():
    images = torch.rand(32, 2, 6, 5)
    augment = CropAndFlip(padding=2, generator=torch.Generator().manual_seed(4))
    generator = torch.Generator().manual_seed(4)
    # A run is the same from one version to the next only if this order of draws stays.
    shifts = torch.randint(0, 5, (32, 2), generator=generator)
    is_flipped = torch.rand(32, 1, generator=generator) < 0.5
    padded = torch.nn.functional.pad(images, (2,) * 4)
    expected = torch.stack(
        [
            image[:, top : top + 6, left : left + 5].flip(2 if is_mirrored else ())
            for image, (top, left), is_mirrored in zip(padded, shifts, is_flipped, strict=True)
        ]
    )
    assert torch.equal(augment(images), expected)


@pytest.mark.parametrize("make", [CropAndFlip, lambda generator: Normalise((0.5,) * 3, (0.2,) * 3)])
def test_transforms_work_where_the_images_are_and_draw_on_the_cpu(make):
    images = torch.zeros(4, 3, 8, 8, dtype=torch.uint8)
    generators = [torch.Generator().manual_seed(0) for _ in range(2)]
    here = make(generator=generators[0])(images)
    there = make(generator=generators[1])(images.to("meta"))
    assert there.device.type == "meta"
    assert (there.shape, there.dtype) == (here.shape, here.dtype)
    assert torch.equal(*(generator.get_state() for generator in generators))


def test_flip_pairs_mirrors_images_and_labels_together_as_often_as_it_is_told():
    images = torch.arange(10_000 * 3 * 2 * 4).view(10_000, 3, 2, 4)
    labels = torch.arange(10_000 * 2 * 4).view(10_000, 2, 4)
    augment = FlipPairs(0.25, generator=torch.Generator().manual_seed(0))
    found, moved = augment(images, labels)
    is_flipped = (found != images).flatten(1).any(1)
    assert torch.equal(found[is_flipped], images[is_flipped].flip(3))
    assert torch.equal(moved[is_flipped], labels[is_flipped].flip(2))
    assert torch.equal(moved[~is_flipped], labels[~is_flipped])
    # Four standard errors of a share of 1/4 in 10,000 draws.
    tolerance = 4 * (0.25 * 0.75 / 10_000) ** 0.5
    assert is_flipped.double().mean().item() == pytest.approx(0.25, abs=tolerance)


def test_flip_pairs_takes_an_empty_batch_and_pickles():
    found, labels = FlipPairs()(torch.zeros(0, 3, 4, 4), torch.zeros(0, 4, 4))
    assert (found.shape, labels.shape) == ((0, 3, 4, 4), (0, 4, 4))
    assert pickle.loads(pickle.dumps(FlipPairs(0.3))) == FlipPairs(0.3)


def test_flip_pairs_works_where_the_images_are():
    images, labels = torch.zeros(2, 3, 4, 4, device="meta"), torch.zeros(2, 4, 4, device="meta")
    assert [each.device.type for each in FlipPairs()(images, labels)] == ["meta", "meta"]


def test_flip_pairs_refuses_labels_without_positions_and_wrong_probabilities():
    with pytest.raises(ValueError, match=r"mirrored together, got \(2, 3, 4, 4\) and \(2,\)"):
        FlipPairs()(torch.zeros(2, 3, 4, 4), torch.zeros(2))
    with pytest.raises(ValueError, match=r"probability must lie in \[0, 1\], got -0.1"):
        FlipPairs(-0.1)


def unchanged(images):
    return images


def test_cutout_blanks_a_square_about_every_pixel_alike():
    blank = Cutout(unchanged, 3, (7, 9), generator=torch.Generator().manual_seed(0))
    result = blank(torch.zeros(2_000, 2, 4, 5, dtype=torch.uint8))
    assert result.dtype == torch.uint8
    squares = torch.zeros(20, 4, 5, dtype=torch.uint8)
    for index in range(20):
        row, column = divmod(index, 5)
        squares[index, max(row - 1, 0) : row + 2, max(column - 1, 0) : column + 2] = 1
    expected = torch.stack([7 * squares, 9 * squares], 1)
    matches = (result[:, None] == expected[None]).flatten(2).all(2)
    assert torch.equal(matches.sum(1), torch.ones(2_000, dtype=torch.int64))
    # 2,000 draws of 20 squares: five standard errors of a count of 100.
    assert (matches.sum(0) - 100).abs().max() < 5 * (100 * 0.95) ** 0.5


def test_cutout_changes_images_first_and_leaves_the_rest_of_them():
    images = torch.rand(64, 3, 8, 8)
    first = CropAndFlip(generator=torch.Generator().manual_seed(1))
    result = Cutout(first, 4, (2.0, 2.0, 2.0))(images)
    changed = CropAndFlip(generator=torch.Generator().manual_seed(1))(images)
    is_blank = result == 2.0
    assert is_blank.any()
    assert torch.equal(result[~is_blank], changed[~is_blank])


def test_cutout_takes_an_empty_batch_and_refuses_what_does_not_fit():
    assert Cutout(unchanged, 2, (0.0,))(torch.zeros(0, 1, 8, 8)).shape == (0, 1, 8, 8)
    with pytest.raises(ValueError, match=r"\(batch, 1, height, width\) .* got \(4, 3, 8, 8\)"):
        Cutout(unchanged, 2, (0.0,))(torch.zeros(4, 3, 8, 8))
    with pytest.raises(ValueError, match="size must be 1 or more pixels, got 0"):
        Cutout(unchanged, 0, (0.0,))
