"""Likelihoods against torch.distributions, and the weight of several outputs per example."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch.distributions import Categorical, Normal

from bayesify.training.likelihood import (
    Classification,
    CustomLikelihood,
    GaussianRegression,
    as_likelihood,
    likelihood_from_dict,
)


def test_classification_nll_is_the_categorical_one() -> None:
    logits, targets = torch.randn(7, 4), torch.randint(0, 4, (7,))
    expected = -Categorical(logits=logits).log_prob(targets).mean()
    torch.testing.assert_close(Classification().nll(logits, targets), expected)


def test_pixels_and_tokens_are_summed_within_an_example() -> None:
    logits, targets = torch.randn(3, 5, 6, 2), torch.randint(0, 5, (3, 6, 2))
    expected = F.cross_entropy(logits, targets, reduction="sum") / 3
    torch.testing.assert_close(Classification().nll(logits, targets), expected)
    tokens, words = torch.randn(3, 6, 5), torch.randint(0, 5, (3, 6))
    expected = F.cross_entropy(tokens.flatten(0, 1), words.flatten(), reduction="sum") / 3
    likelihood = Classification()
    torch.testing.assert_close(likelihood.nll(tokens, words), expected)
    assert likelihood.class_axis == -1


def test_ignored_outputs_do_not_count() -> None:
    logits, targets = torch.randn(4, 3), torch.tensor([0, -100, 2, -100])
    expected = F.cross_entropy(logits[[0, 2]], targets[[0, 2]], reduction="sum") / 4
    torch.testing.assert_close(Classification().nll(logits, targets), expected)


def test_predictive_nll_averages_probabilities_not_losses() -> None:
    outputs = [torch.tensor([[4.0, 0.0]]), torch.tensor([[0.0, 4.0]])]
    probs = torch.stack([output.softmax(1) for output in outputs]).mean(0)
    found = Classification().predictive_nll(outputs, torch.tensor([0]))
    torch.testing.assert_close(found, -probs[0, 0].log())
    assert Classification().score(outputs, torch.tensor([0])) == (1, 1)


@pytest.mark.parametrize("scale", [1e4, 1e30])
def test_huge_logits_stay_finite(scale: float) -> None:
    logits = torch.tensor([[scale, -scale], [-scale, scale]], requires_grad=True)
    nll = Classification().nll(logits, torch.tensor([0, 1]))
    nll.backward()
    assert nll.item() == 0.0
    assert torch.isfinite(logits.grad).all()


def test_half_precision_outputs_are_summed_in_float32() -> None:
    logits = torch.randn(64, 10).bfloat16()
    nll = Classification().nll(logits, torch.zeros(64, dtype=torch.long))
    assert nll.dtype == torch.float32


def test_known_noise_is_the_normal_likelihood() -> None:
    mean, targets = torch.randn(5, 2), torch.randn(5, 2)
    expected = -Normal(mean, 0.3).log_prob(targets).sum(1).mean()
    torch.testing.assert_close(GaussianRegression(0.3).nll(mean, targets), expected)


def test_predicted_noise_is_read_from_the_second_half() -> None:
    output, targets = torch.randn(5, 4), torch.randn(5, 2)
    std = (F.softplus(output[:, 2:]) + 1e-6).sqrt()
    expected = -Normal(output[:, :2], std).log_prob(targets).sum(1).mean()
    torch.testing.assert_close(GaussianRegression("predicted").nll(output, targets), expected)


def test_learned_noise_starts_at_the_variance_and_finds_the_residual() -> None:
    torch.manual_seed(0)
    targets = 3.0 * torch.randn(2000, 1)
    likelihood = GaussianRegression()
    likelihood.start(targets)
    started = likelihood.split(torch.zeros(1))[1].item()
    assert started == pytest.approx(targets.var().item(), rel=1e-3)
    optimizer = torch.optim.Adam(likelihood.parameters(), 0.1)
    output = targets + 0.5 * torch.randn_like(targets)
    for _ in range(300):
        optimizer.zero_grad()
        likelihood.nll(output, targets).backward()
        optimizer.step()
    assert likelihood.split(output)[1].item() == pytest.approx(
        (output - targets).square().mean().item(), rel=0.01
    )


def test_regression_predictive_nll_is_of_the_mixture() -> None:
    outputs, targets = [torch.randn(4, 2) for _ in range(3)], torch.randn(4, 2)
    joint = torch.stack([Normal(o, 0.7).log_prob(targets).sum(1) for o in outputs])
    expected = -(joint.logsumexp(0) - math.log(3)).mean()
    torch.testing.assert_close(GaussianRegression(0.7).predictive_nll(outputs, targets), expected)


def test_targets_are_never_broadcast() -> None:
    likelihood = GaussianRegression(1.0)
    column, row = torch.randn(6, 1), torch.randn(6)
    torch.testing.assert_close(likelihood.nll(column, row), likelihood.nll(column[:, 0], row))
    with pytest.raises(ValueError, match="would train on the wrong pairs"):
        likelihood.nll(torch.randn(6, 3), row)


def test_as_likelihood_reads_the_targets() -> None:
    assert isinstance(as_likelihood(None, torch.tensor([1])), Classification)
    assert isinstance(as_likelihood(None, torch.tensor([1.0])), GaussianRegression)
    assert isinstance(as_likelihood(lambda o, t: o.sum(), None), CustomLikelihood)
    with pytest.raises(LookupError, match="Did you mean 'classification'"):
        as_likelihood("clasification", None)
    with pytest.raises(TypeError, match="likelihood must be"):
        as_likelihood(3, None)


@pytest.mark.parametrize(
    "likelihood",
    [Classification(-1, 3, [1.0, 2.0]), GaussianRegression("predicted"), GaussianRegression(0.2)],
)
def test_likelihood_survives_a_file(likelihood: Classification) -> None:
    assert likelihood_from_dict(likelihood.to_dict()).to_dict() == likelihood.to_dict()


def test_mistakes_are_named() -> None:
    with pytest.raises(ValueError, match="noise must be 'learned', 'predicted' or a positive"):
        GaussianRegression(-1.0)
    with pytest.raises(ValueError, match="needs an even last axis"):
        GaussianRegression("predicted").split(torch.zeros(2, 3))
    with pytest.raises(ValueError, match="one output per class"):
        Classification().nll(torch.zeros(4, 1), torch.zeros(4, 2, dtype=torch.long))
    with pytest.raises(TypeError, match="integer classes"):
        Classification().nll(torch.zeros(4, 2), torch.zeros(4))


def test_scores_of_batches_add_up_to_the_score_of_all() -> None:
    likelihood = GaussianRegression(1.0)
    output, targets = torch.randn(10, 2), torch.randn(10, 2)
    parts = [likelihood.score([output[a:b]], targets[a:b]) for a, b in ((0, 7), (7, 10))]
    mean = sum(float(score) for score, _ in parts) / sum(int(count) for _, count in parts)
    expected = (output - targets).square().mean().sqrt().item()
    assert likelihood.score_of_mean(mean) == pytest.approx(expected, rel=1e-6)


def test_batch_without_a_counted_output_has_no_score() -> None:
    score, count = Classification().score([torch.randn(3, 2)], torch.full((3,), -100))
    assert (int(score), int(count)) == (0, 0)


def test_unknown_likelihood_of_a_file_is_named() -> None:
    with pytest.raises(LookupError, match="unknown likelihood 'poisson'"):
        likelihood_from_dict({"name": "poisson"})


def test_ignored_pixels_change_neither_nll_nor_score() -> None:
    targets = torch.randint(0, 5, (3, 6, 4))
    targets[0, :2] = targets[2, 5, 3] = -100
    logits = torch.randn(3, 5, 6, 4)
    others = torch.where((targets == -100)[:, None], 100 * torch.randn(3, 5, 6, 4), logits)
    assert not torch.equal(others, logits)
    for likelihood in (Classification(), Classification(class_weights=[1, 2, 3, 4, 5])):
        assert torch.equal(likelihood.nll(others, targets), likelihood.nll(logits, targets))
        found, expected = (likelihood.predictive_nll([x, x], targets) for x in (others, logits))
        torch.testing.assert_close(found, expected)
        assert likelihood.score([others], targets) == likelihood.score([logits], targets)


def test_class_weights_multiply_each_output_by_the_weight_of_its_target() -> None:
    logits, targets = torch.randn(3, 4, 5, 2), torch.randint(0, 4, (3, 5, 2))
    weights = [0.5, 1, 2.5, 0]
    each = F.cross_entropy(logits, targets, reduction="none")
    expected = (torch.tensor(weights)[targets] * each).sum() / 3
    torch.testing.assert_close(Classification(class_weights=weights).nll(logits, targets), expected)


def test_class_weights_of_mean_one_keep_the_nll_of_an_ignorant_network() -> None:
    targets = torch.tensor([[0, 0, 0], [0, 1, -100]])
    logits = torch.zeros(2, 2, 3)
    # Four outputs of class 0 and one of class 1: (4 * 0.75 + 2) / 5 = 1.
    weighted = Classification(class_weights=[0.75, 2.0]).nll(logits, targets)
    torch.testing.assert_close(weighted, Classification().nll(logits, targets))


def test_as_likelihood_reads_a_table() -> None:
    found = as_likelihood({"name": "classification", "class_weights": [1, 2]}, None)
    assert isinstance(found, Classification)
    assert found.class_weights is not None
    assert found.class_weights.tolist() == [1.0, 2.0]
    regression = as_likelihood({"name": "regression", "noise": 0.5}, None)
    assert isinstance(regression, GaussianRegression)
    assert regression.noise == 0.5


@pytest.mark.parametrize(
    ("table", "error", "message"),
    [
        ({"name": "clasification"}, LookupError, "Did you mean 'classification'"),
        ({"class_weights": [1.0]}, LookupError, "unknown likelihood 'None'"),
        ({"name": "classification", "weights": [1.0]}, TypeError, "Did you mean 'class_weights'"),
        ({"name": "classification", "class_weights": "balanced"}, ValueError, "got 'balanced'"),
        ({"name": "classification", "class_weights": [1.0, -1.0]}, ValueError, "numbers >= 0"),
        ({"name": "classification", "class_weights": [[1.0]]}, ValueError, "one per class"),
        ({"name": "classification", "class_weights": [math.nan]}, ValueError, "numbers >= 0"),
    ],
)
def test_mistakes_in_a_table_are_named(
    table: dict[str, object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        as_likelihood(table, None)
