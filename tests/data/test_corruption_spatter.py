import torch
from scipy import ndimage

from bayesify.data import corruptions
from bayesify.data.corruption_spatter import _distance_to, _edges, _equalised, _water


def spattered(images, severity):
    return corruptions["spatter"](images, severity, torch.Generator().manual_seed(0))


def test_distance_equals_scipy_up_to_twenty():
    edges = torch.rand(4, 1, 40, 50) < 0.002
    edges[0] = False
    edges[0, 0, 3, 5] = True
    for each, distance in zip(edges[:, 0], _distance_to(edges)[:, 0], strict=True):
        expected = torch.from_numpy(ndimage.distance_transform_edt(~each.numpy())).float()
        torch.testing.assert_close(distance, expected.clamp_max(20.0))


def test_distance_where_there_is_no_edge_is_the_farthest():
    assert bool((_distance_to(torch.zeros(1, 1, 8, 8, dtype=torch.bool)) == 20.0).all())


def test_edges_outline_a_drop_by_a_thin_line():
    levels = torch.zeros(1, 1, 20, 20)
    levels[..., 5:15, 5:15] = 200.0
    edges = _edges(levels)[0, 0]
    assert edges[10].sum() == 2
    assert edges[:, 10].sum() == 2
    assert not edges[8:12, 8:12].any()
    assert not edges[:3].any()


def test_equalised_spreads_levels_over_the_whole_range():
    levels = torch.tensor([[3.0, 3.0, 5.0, 20.0], [7.0, 7.0, 7.0, 7.0]]).view(2, 1, 2, 2)
    expected = torch.tensor([[0.0, 0.0, 128.0, 255.0], [7.0, 7.0, 7.0, 7.0]]).view(2, 1, 2, 2)
    assert torch.equal(_equalised(levels), expected)


def test_water_on_a_dry_picture_is_nothing():
    assert not _water(torch.zeros(2, 1, 16, 16)).any()


def test_spatter_of_water_brightens_in_turquoise():
    images = torch.full((8, 3, 32, 32), 0.1)
    for severity in (1, 2, 3):
        added = spattered(images, severity) - images
        assert added.min() >= 0.0
        is_wet = added[:, 1] > 0.0
        assert 0.0 < is_wet.double().mean() < 0.6
        ratio = added[:, 0][is_wet].sum() / added[:, 1][is_wet].sum()
        torch.testing.assert_close(ratio, torch.tensor(175.0 / 238.0), rtol=1e-4, atol=0.0)
        # The brightest drop has the strength 0.5.
        torch.testing.assert_close(
            added[:, 1].amax((1, 2)), torch.full((8,), 0.5 * 238 / 255), rtol=1e-4, atol=0.0
        )


def test_spatter_of_mud_covers_in_brown():
    brown = torch.tensor([63.0, 42.0, 20.0]) / 255.0
    images = torch.ones(8, 3, 32, 32)
    for severity in (4, 5):
        result = spattered(images, severity)
        # How much is covered, by each channel: all must agree.
        covered = (1.0 - result) / (1.0 - brown).view(3, 1, 1)
        torch.testing.assert_close(covered[:, 0], covered[:, 2], rtol=0, atol=1e-5)
        assert covered.max() > 0.99
        assert bool(((covered < 1e-5) | (covered >= 0.8 - 1e-5)).all())
