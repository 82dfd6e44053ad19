import pytest
import torch

from bayesify.data import median_frequency_weights


def test_median_frequency_weights_equal_the_published_ones_but_for_their_scale():
    # Class 0 fills 6 of 8 pixels where it is, class 1 2 of 8, class 2 3 of 4.
    targets = torch.tensor([[0, 0, 0, 1], [0, 0, 0, 1], [2, 2, 2, -100], [2, -100, -100, -100]])
    frequency = torch.tensor([6 / 8, 2 / 8, 4 / 4]).double()
    published = frequency.median() / frequency
    mean = (published * torch.tensor([6.0, 2.0, 4.0])).sum() / 12
    found = torch.tensor(median_frequency_weights(targets, 3)).double()
    torch.testing.assert_close(found, published / mean, rtol=1e-6, atol=0)


def test_median_frequency_weights_have_mean_one_over_the_labelled_pixels():
    shares = torch.tensor([0.02, 0.5, 0.2, 0.28])
    targets = torch.multinomial(shares, 6 * 36 * 48, replacement=True).view(6, 36, 48)
    targets[:, :3] = -100
    weights = torch.tensor(median_frequency_weights(targets, 4))
    assert weights[targets[targets >= 0]].mean().item() == pytest.approx(1.0, rel=1e-5)
    assert weights[0] > weights[2] > weights[1]


def test_median_frequency_weights_of_balanced_classes_are_one():
    assert median_frequency_weights(torch.arange(12).view(2, 6) % 3, 3) == pytest.approx([1.0] * 3)


def test_median_frequency_weights_give_a_missing_class_one():
    weights = median_frequency_weights(torch.tensor([[0, 2, 2, 2]]), 4)
    assert weights == pytest.approx([2.0, 1.0, 2 / 3, 1.0])


@pytest.mark.parametrize(
    ("targets", "error", "message"),
    [
        (torch.full((2, 3), -100), ValueError, "at least one labelled class, got none"),
        (torch.zeros(0, 3).long(), ValueError, "at least one labelled class, got none"),
        (
            torch.tensor([[0, 4]]),
            ValueError,
            "classes from 0 to 3, or -100, got values from 0 to 4",
        ),
        (torch.zeros(2, 3), TypeError, "must be integer classes"),
        (torch.zeros(2).long(), TypeError, "several outputs per example"),
    ],
)
def test_median_frequency_weights_refuse_what_they_cannot_count(targets, error, message):
    with pytest.raises(error, match=message):
        median_frequency_weights(targets, 4)
