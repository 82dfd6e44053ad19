import math

import pytest
import torch
from torch import nn

import bayesify as bf
from bayesify.training.likelihood import as_likelihood, likelihood_from_dict
from bayesify.training.one_hot_gaussian import LEAST_VARIANCE
from bayesify.types import OutputMoments

LOGITS = torch.tensor([[1.0, -0.5, 0.2], [0.0, 3.0, -1.0]])
VARIANCE = torch.tensor([[0.3, 0.1, 0.5], [0.2, 0.7, 0.05]])
TARGETS = torch.tensor([2, 1])


def by_hand(logits, variance, targets):
    probs = logits.softmax(1)
    jacobian = torch.diag_embed(probs) - probs[:, :, None] * probs[:, None, :]
    spread = (jacobian.square() @ variance[:, :, None])[..., 0] + LEAST_VARIANCE
    wanted = torch.eye(3)[targets]
    law = torch.distributions.Normal(probs, spread.sqrt())
    return -law.log_prob(wanted).sum(1).mean()


def test_nll_is_that_of_a_normal_law_around_the_one_hot_target():
    found = bf.OneHotGaussian().nll(OutputMoments(LOGITS, VARIANCE), TARGETS)
    torch.testing.assert_close(found, by_hand(LOGITS, VARIANCE, TARGETS))


def test_nll_of_a_draw_is_that_of_no_variance():
    found = bf.OneHotGaussian().nll(LOGITS, TARGETS)
    torch.testing.assert_close(found, by_hand(LOGITS, torch.zeros(2, 3), TARGETS))


def test_gradient_reaches_means_and_variances():
    logits, variance = (each.double().requires_grad_() for each in (LOGITS, VARIANCE))

    def nll(m, v):
        return bf.OneHotGaussian().nll(OutputMoments(m, v), TARGETS).double()

    gradients = torch.autograd.grad(nll(logits, variance), (logits, variance))
    assert all(each.abs().min() > 0 for each in gradients)
    step = 1e-2  # the likelihood computes in float32
    for place, (source, other) in enumerate(((logits, variance), (variance, logits))):
        moved = torch.zeros_like(source)
        moved[0, 1] = step
        ends = [source + moved, source - moved]
        values = [nll(end, other) if place == 0 else nll(other, end) for end in ends]
        slope = (values[0] - values[1]) / (2 * step)
        torch.testing.assert_close(slope, gradients[place][0, 1], rtol=5e-3, atol=1e-4)


def test_outputs_to_ignore_and_other_axes_count_nothing():
    likelihood = bf.OneHotGaussian(class_axis=-1)
    logits, targets = LOGITS[None], torch.tensor([[2, -100]])
    found = likelihood.nll(OutputMoments(logits, VARIANCE[None]), targets)
    torch.testing.assert_close(found, by_hand(LOGITS[:1], VARIANCE[:1], TARGETS[:1]))
    none = likelihood.nll(OutputMoments(logits, VARIANCE[None]), torch.full((1, 2), -100))
    assert none == 0.0


def test_confident_logits_stay_finite():
    logits = torch.tensor([[1e4, -1e4, 0.0]], requires_grad=True)
    value = bf.OneHotGaussian().nll(OutputMoments(logits, torch.ones(1, 3)), torch.tensor([1]))
    value.backward()
    assert math.isfinite(value.item())
    assert logits.grad is not None
    assert logits.grad.isfinite().all()


def test_it_goes_by_its_name_and_through_a_table():
    assert isinstance(as_likelihood("one_hot_gaussian", None), bf.OneHotGaussian)
    again = likelihood_from_dict(bf.OneHotGaussian(1, -1).to_dict())
    assert isinstance(again, bf.OneHotGaussian)
    assert (again.class_axis, again.ignore_index) == (1, -1)
    with pytest.raises(TypeError, match="class_weights"):
        likelihood_from_dict({"name": "one_hot_gaussian", "class_weights": [1.0]})


def test_network_learns_by_it_and_predicts_classes(tmp_path):
    torch.manual_seed(0)
    x = torch.randn(256, 2)
    y = (x[:, 0] * x[:, 1] > 0).long()
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), 64, shuffle=True)
    net = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 2))
    model = bf.convert(net, bf.MomentPropagation())
    history = bf.fit(
        model,
        loader,
        loader,
        epochs=15,
        learning_rate=1e-2,
        beta=1e-3,
        likelihood="one_hot_gaussian",
        seed=0,
        progress=False,
    )
    assert history.last["val_accuracy"] > 0.9
    assert bf.evaluate(model, loader)["accuracy"] > 0.9
    bf.save(model, tmp_path / "model.bayes")
    again = bf.load(tmp_path / "model.bayes", net)
    torch.testing.assert_close(bf.predict(again, x[:4]).probs, bf.predict(model, x[:4]).probs)
