import numpy as np
import pytest
import torch

from bayesify.prediction.running_moments import RunningMoments


@pytest.mark.parametrize("chunks", [[12], [1] * 12, [5, 7], [11, 1], [0, 4, 0, 8]])
def test_moments_do_not_depend_on_chunks(chunks):
    values = torch.randn(12, 3, 2, generator=torch.Generator().manual_seed(0))
    moments = RunningMoments()
    for chunk in values.split(chunks):
        moments.update(chunk)
    mean, variance = moments.result()
    exact = values.double().numpy()
    assert moments.count == 12
    np.testing.assert_allclose(mean, exact.mean(0), atol=1e-6)
    np.testing.assert_allclose(variance, exact.var(0, ddof=1), rtol=1e-5)


def test_variance_survives_a_large_offset():
    # E[x^2] - mean^2 in float32 would be off by about 1e8 * 2^-24 = 6 here.
    values = torch.randn(40, 5, generator=torch.Generator().manual_seed(1)) + 1e4
    moments = RunningMoments()
    for chunk in values.split(7):
        moments.update(chunk)
    _, variance = moments.result()
    np.testing.assert_allclose(variance, values.double().numpy().var(0, ddof=1), rtol=2e-3)


def test_one_sample_has_no_variance():
    moments = RunningMoments()
    moments.update(torch.ones(1, 4))
    mean, variance = moments.result()
    assert torch.equal(mean, torch.ones(4))
    assert variance.isnan().all()


def test_equal_samples_have_zero_variance():
    moments = RunningMoments()
    for _ in range(3):
        moments.update(torch.full((2, 4), 0.1))
    assert torch.equal(moments.result()[1], torch.zeros(4))


def test_result_without_samples_is_refused():
    with pytest.raises(ValueError, match="there are no samples: call update"):
        RunningMoments().result()


def test_other_examples_are_refused_and_change_nothing():
    moments = RunningMoments()
    moments.update(torch.zeros(2, 3))
    with pytest.raises(ValueError, match=r"expected shape \(s, 3\), got \(2, 4\)"):
        moments.update(torch.zeros(2, 4))
    assert moments.count == 2
