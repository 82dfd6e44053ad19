import torch

from bayesify.data.corruption_plasma import plasma


def drawn(*arguments, seed=0):
    return plasma(*arguments, torch.Generator().manual_seed(seed))


def test_plasma_reaches_from_zero_to_one_in_each_map():
    maps = drawn(5, 32, 32, 2.0)
    assert maps.shape == (5, 1, 32, 32)
    assert torch.equal(maps.amin((1, 2, 3)), torch.zeros(5))
    assert torch.equal(maps.amax((1, 2, 3)), torch.ones(5))
    assert not torch.equal(maps[0], maps[1])


def test_plasma_of_any_size_is_cropped_from_the_next_power_of_two():
    assert torch.equal(drawn(2, 17, 30, 2.0), drawn(2, 32, 32, 2.0)[..., :17, :30])
    assert drawn(2, 1, 1, 2.0).shape == (2, 1, 1, 1)
    assert drawn(0, 8, 8, 2.0).shape == (0, 1, 8, 8)


def test_plasma_is_rougher_where_it_decays_slower():
    def roughness(decay):
        return drawn(50, 32, 32, decay).diff(dim=-1).square().mean()

    assert roughness(1.75) > roughness(2.0) > roughness(3.0)


def test_plasma_is_a_torus_without_a_seam():
    maps = drawn(200, 32, 32, 2.0)
    seam = (maps[..., 0] - maps[..., -1]).abs().mean()
    inside = maps.diff(dim=-1).abs().mean()
    assert abs(seam / inside - 1.0) < 0.2
