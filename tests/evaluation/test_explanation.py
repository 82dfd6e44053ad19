import pytest
import torch
from torch import nn

import bayesify as bf
from bayesify.evaluation.explanation import explanation_quality

pytest.importorskip("captum")


def linear():
    torch.manual_seed(0)
    return nn.Linear(6, 3)


@pytest.mark.parametrize("by", ["mean", "moments"])
def test_explanation_of_a_linear_network_is_perfect(by):
    model = bf.convert(linear(), bf.MeanField())
    found = explanation_quality(model, torch.randn(5, 6), by=by)
    # Its gradient says exactly what a perturbation does, and is the same everywhere.
    torch.testing.assert_close(found.infidelity, torch.zeros(5), atol=1e-8, rtol=0.0)
    torch.testing.assert_close(found.sensitivity, torch.zeros(5), atol=1e-5, rtol=0.0)


def test_network_in_channels_last_is_explained_alike():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(64, 2))
    images = torch.randn(3, 3, 6, 6)
    plain = explanation_quality(bf.convert(net, bf.Deterministic()), images)
    other = bf.convert(net, bf.Deterministic()).to(memory_format=torch.channels_last)
    found = explanation_quality(other, images.to(memory_format=torch.channels_last))
    torch.testing.assert_close(found.infidelity, plain.infidelity, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize(("batch_size", "largest"), [(None, 4000), (500, 400), (10_000, 4000)])
def test_bent_network_has_the_infidelity_of_its_curvature(batch_size, largest):
    sizes = []

    class Square(nn.Module):
        def __init__(self):
            super().__init__()
            self.last = nn.Linear(1, 2, bias=False)
            with torch.no_grad():
                self.last.weight.copy_(torch.tensor([[1.0], [-1.0]]))

        def forward(self, x):
            sizes.append(len(x))
            return self.last(x.square())

    model = bf.convert(Square(), bf.Deterministic())
    inputs = torch.full((200, 1), 3.0)
    found = explanation_quality(model, inputs, noise_std=0.5, batch_size=batch_size, seed=1)
    assert max(sizes) == largest
    # f(x) - f(x - e) = 2 x e - e², of which the gradient says 2 x e: E e⁴ = 3 noise⁴ is missed.
    expected = 3 * 0.5**4
    standard_error = (96 * 0.5**8) ** 0.5 / (200 * 20) ** 0.5
    assert abs(float(found.infidelity.mean()) - expected) < 4 * standard_error
    # The gradient 2 x changes by 2 * radius at most, over 2 * 3.
    assert found.sensitivity.max() <= 0.02 / 3 + 1e-6
    assert found.sensitivity.min() > 0


def test_model_its_mode_and_the_random_numbers_stay_as_they_were():
    model = bf.convert(
        nn.Sequential(nn.Linear(6, 8), nn.Dropout(), nn.Linear(8, 3)), bf.MeanField()
    )
    model.train()
    x = torch.randn(2, 6)
    state = torch.get_rng_state()
    one = explanation_quality(model, x)
    assert torch.equal(torch.get_rng_state(), state)
    assert model.training
    two = explanation_quality(model, x)
    assert torch.equal(one.infidelity, two.infidelity)


def test_drawn_logits_are_refused():
    with pytest.raises(ValueError, match="by must be 'moments' or 'mean'"):
        explanation_quality(bf.convert(linear(), bf.MeanField()), torch.randn(1, 6), by="sample")


def test_batch_smaller_than_the_inputs_is_refused():
    with pytest.raises(ValueError, match="batch_size must be at least the number of inputs, 2"):
        explanation_quality(bf.convert(linear(), bf.MeanField()), torch.randn(2, 6), batch_size=1)
