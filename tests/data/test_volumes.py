import hashlib
import math

import pytest
import torch
import torch.nn.functional as F

from bayesify.data import load_dataset
from bayesify.data.volumes import (
    BACKGROUND,
    EDGE,
    FLUID,
    LOG_RADIUS_STD,
    MEDIAN_RADII,
    TISSUE,
    best_accuracy,
    draw_heads,
    paint,
)

FEW = {"num_train": 6, "num_test": 4}
BOUNDARY = math.sqrt(MEDIAN_RADII[0] * MEDIAN_RADII[1])


@pytest.fixture(scope="module")
def data():
    return load_dataset("volumes")


def some_heads(num_heads, seed=0):
    return draw_heads(num_heads, torch.Generator().manual_seed(seed))


def checksum(data):
    stored = torch.cat([data.train.inputs, data.test.inputs]).numpy().tobytes()
    labels = torch.cat([data.train.targets, data.test.targets]).to(torch.uint8).numpy().tobytes()
    return hashlib.sha256(stored + labels).hexdigest()[:16]


def test_volumes_have_the_counts_and_the_shape_of_the_task(data):
    assert (len(data.train), len(data.test)) == (300, 88)
    assert data.input_shape == (1, 24, 24, 24)
    assert (data.task, data.num_classes) == ("classification", 2)
    assert data.classes == ("small_cavity", "large_cavity")
    labels = torch.cat([data.train.targets, data.test.targets])
    assert labels.bincount().tolist() == [194, 194]
    inputs, targets = data.train.__getitems__(range(300))
    assert inputs.dtype == torch.float32
    assert targets.dtype == torch.int64
    # Normalised by the training volumes; some 4 million float32 numbers are averaged.
    assert inputs.mean().item() == pytest.approx(0.0, abs=1e-4)
    assert inputs.std().item() == pytest.approx(1.0, abs=1e-4)


def test_volumes_are_the_same_on_every_machine(data):
    assert checksum(data) == "5b879707b79f7f48"
    assert data.mean == (0.23952531261347132,)
    assert data.std == (0.20114620746986178,)


def test_volumes_are_fixed_by_their_seed():
    first, again, other = (load_dataset("volumes", seed=seed, **FEW) for seed in (1, 1, 2))
    assert checksum(first) == checksum(again) != checksum(other)
    assert (first.mean, first.std) == (again.mean, again.std)


def test_volumes_leave_the_global_generator_alone():
    before = torch.random.get_rng_state()
    load_dataset("volumes", **FEW)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_volumes_have_the_same_heads_at_every_size_and_noise():
    small, large, noisy = (
        load_dataset("volumes", size=size, noise_std=noise_std, **FEW)
        for size, noise_std in ((12, 0.0), (24, 0.0), (24, 0.2))
    )
    assert torch.equal(small.train.targets, noisy.train.targets)
    assert large.input_shape == (1, 24, 24, 24)
    halved = F.avg_pool3d(large.train.inputs.double(), 2)
    # Of 255 steps: fading edges are averaged here and read off at a point there.
    assert (small.train.inputs - halved).square().mean().sqrt() < 4.0
    assert not torch.equal(large.train.inputs, noisy.train.inputs)


@pytest.mark.parametrize(("num_train", "num_test", "size"), [(1, 1, 8), (3, 2, 13)])
def test_volumes_have_the_given_sizes(num_train, num_test, size):
    data = load_dataset("volumes", num_train=num_train, num_test=num_test, size=size)
    assert (len(data.train), len(data.test)) == (num_train, num_test)
    assert data.train[0][0].shape == (1, size, size, size)


def test_volumes_noise_has_the_given_std_and_is_smooth():
    clean, noisy = (
        load_dataset("volumes", noise_std=noise_std, num_train=20, num_test=1)
        for noise_std in (0.0, 0.02)
    )
    noise = (noisy.train.inputs.double() - clean.train.inputs.double())[:, 0] / 255
    # 276,480 voxels, of which each 27 share their draws; rounding twice adds 2 / (12 * 255^2).
    expected = math.sqrt(0.02**2 + 2 / (12 * 255**2))
    assert noise.std().item() == pytest.approx(expected, rel=4 * math.sqrt(27 / (2 * 276_480)))
    neighbours = torch.stack([noise[:, 1:].flatten(), noise[:, :-1].flatten()])
    # Two windows of 3x3x3 side by side share 18 of their 27 draws.
    share = 2 / 3 * 0.02**2 / expected**2
    assert torch.corrcoef(neighbours)[0, 1].item() == pytest.approx(share, abs=0.05)


def test_volume_without_noise_shows_background_tissue_and_fluid():
    heads = some_heads(20)
    volumes = torch.stack([paint(heads, index, 48) for index in range(20)])[:, 0]
    corners = volumes[:, [0, 0, -1, -1], [0, -1, 0, -1], [0, -1, -1, 0]]
    torch.testing.assert_close(corners, torch.full_like(corners, BACKGROUND), rtol=0, atol=1e-3)
    middle = volumes[:, 23:25, 23:25, 23:25]
    torch.testing.assert_close(middle, torch.full_like(middle, FLUID), rtol=0, atol=0.02)
    # The brightest part is tissue, with a texture of a standard deviation of 0.06 around it.
    assert (volumes.amax((1, 2, 3)) > TISSUE).all()


def test_cavity_has_the_volume_of_its_radius():
    heads = some_heads(10)
    heads.textures.zero_()
    for index, radius in enumerate(heads.radii.tolist()):
        head = paint(heads, index, 48)
        heads.cavity_centres[index] = 10.0
        missing = (paint(heads, index, 48) - head).sum().item() / (TISSUE - FLUID)
        # A logistic edge widens a ball by the factor 1 + (pi * scale / radius)^2.
        widened = 1 + (math.pi * EDGE / radius) ** 2
        # The head's own edge, some ten scales away, takes the tail of the cavity's.
        assert missing == pytest.approx(4 / 3 * math.pi * (24 * radius) ** 3 * widened, rel=2e-3)


def test_head_is_turned_by_rotations():
    rotations = some_heads(50).rotations
    identity = torch.eye(3, dtype=torch.float64).expand(50, 3, 3)
    torch.testing.assert_close(rotations @ rotations.mT, identity)
    torch.testing.assert_close(torch.linalg.det(rotations), torch.ones(50, dtype=torch.float64))
    # Angles of 0.3 radians: axes turn, and never by a quarter.
    assert 0.5 < rotations.diagonal(dim1=1, dim2=2).mean() < 0.98


def test_cavity_radius_follows_its_class():
    heads = some_heads(20_000)
    assert heads.labels.bincount().tolist() == [10_000, 10_000]
    for label, median in enumerate(MEDIAN_RADII):
        logs = heads.radii[heads.labels == label].log()
        assert logs.mean().item() == pytest.approx(math.log(median), abs=4 * LOG_RADIUS_STD / 100)
        assert logs.std().item() == pytest.approx(LOG_RADIUS_STD, rel=4 / math.sqrt(20_000))
    torch.testing.assert_close(heads.cavity_axes.prod(1) ** (1 / 3), heads.radii)


def test_best_accuracy_is_that_of_the_boundary_between_the_radii():
    heads = some_heads(100_000)
    accuracy = ((heads.radii > BOUNDARY) == heads.labels.bool()).double().mean().item()
    best = best_accuracy()
    # Four standard errors of a fraction.
    assert accuracy == pytest.approx(best, abs=4 * math.sqrt(best * (1 - best) / 100_000))
    assert best == pytest.approx(0.8733, abs=1e-4)


def test_best_accuracy_is_the_overlap_of_the_two_distributions():
    logs = torch.linspace(-2.5, 0.0, 100_001, dtype=torch.float64)
    densities = [
        torch.distributions.Normal(math.log(median), LOG_RADIUS_STD).log_prob(logs).exp()
        for median in MEDIAN_RADII
    ]
    expected = 0.5 * torch.trapezoid(torch.maximum(*densities), logs).item()
    assert best_accuracy() == pytest.approx(expected, abs=1e-6)


def test_dark_voxels_inside_a_head_tell_its_class_nearly_as_well_as_the_radius(data):
    inputs = torch.cat([data.train.inputs, data.test.inputs]).double() / 255
    labels = torch.cat([data.train.targets, data.test.targets])
    side = (torch.arange(24) + 0.5) / 12 - 1
    distance = torch.stack(torch.meshgrid(side, side, side, indexing="ij")).norm(dim=0)
    is_dark = F.avg_pool3d(inputs, 3, 1, 1)[:, 0] < (TISSUE + FLUID) / 2
    radii = (is_dark & (distance < 0.6)).sum((1, 2, 3)).double() ** (1 / 3)
    best = best_accuracy()
    threshold = radii.median()
    accuracy = ((radii > threshold) == labels.bool()).double().mean().item()
    # Three standard errors of a fraction of 388 either way: the images show the label, and
    # nothing but the radius does.
    assert accuracy == pytest.approx(best, abs=3 * math.sqrt(best * (1 - best) / 388))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_train": 0}, "num_train and num_test must be 1 or more, got num_train=0"),
        ({"num_test": 0}, "got num_train=300, num_test=0"),
        ({"size": 7}, "size must be at least 8 voxels to show a cavity, got 7"),
        ({"noise_std": -1.0}, "noise_std must be 0 or more, got -1.0"),
        ({"noise_std": math.nan}, "noise_std must be 0 or more, got nan"),
    ],
)
def test_volumes_refuse_wrong_arguments(options, message):
    with pytest.raises(ValueError, match=message):
        load_dataset("volumes", **options)
