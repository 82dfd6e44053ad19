import math
import pickle

import numpy as np
import pytest
import torch
from scipy.special import softmax
from scipy.stats import entropy as scipy_entropy
from scipy.stats import norm
from torch import Tensor

from bayesify.prediction.predictive import (
    ClassificationAccumulator,
    CustomAccumulator,
    Predictive,
    RegressionAccumulator,
    RegressionPredictive,
)


def random_logits(*shape: int, seed: int = 0) -> Tensor:
    return 3 * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def classify(logits: Tensor, chunks: int | list[int] = 1000, class_axis: int = 1) -> Predictive:
    accumulator = ClassificationAccumulator(class_axis)
    for chunk in logits.split(chunks):
        accumulator.update(chunk)
    return accumulator.result("test samples")


def regress(means: Tensor, noise_variance: Tensor | float = 0.0) -> RegressionPredictive:
    accumulator = RegressionAccumulator()
    accumulator.update(means, noise_variance)
    return accumulator.result("test samples")


class TestClassification:
    @pytest.mark.parametrize("chunks", [9, 1, [2, 7], [8, 1]])
    @pytest.mark.parametrize("shape", [(9, 6, 4), (9, 2, 3, 5, 2)])
    def test_every_quantity_equals_its_definition(self, shape, chunks):
        logits = random_logits(*shape)
        predictive = classify(logits, chunks)
        p = softmax(logits.double().numpy(), axis=2)
        mean = p.mean(0)
        total = scipy_entropy(mean, axis=1)
        aleatoric = scipy_entropy(p, axis=2).mean(0)
        np.testing.assert_allclose(predictive.probs, mean, atol=1e-6)
        np.testing.assert_allclose(predictive.variance, p.var(0, ddof=1), atol=1e-6)
        np.testing.assert_allclose(predictive.entropy, total, atol=2e-6)
        np.testing.assert_allclose(predictive.expected_entropy, aleatoric, atol=2e-6)
        np.testing.assert_allclose(predictive.mutual_information, total - aleatoric, atol=4e-6)
        votes = np.stack([(p.argmax(2) == k).sum(0) for k in range(shape[2])], axis=1)
        np.testing.assert_array_equal(predictive.votes, votes)
        np.testing.assert_array_equal(predictive.classes, mean.argmax(1))
        assert predictive.num_samples == 9

    def test_uncertainty_names_are_the_entropies(self):
        predictive = classify(random_logits(5, 3, 4))
        assert torch.equal(predictive.total, predictive.entropy)
        assert torch.equal(predictive.aleatoric, predictive.expected_entropy)
        assert torch.equal(predictive.epistemic, predictive.mutual_information)
        assert torch.equal(predictive.mean, predictive.probs)
        assert predictive.task == "classification"

    def test_class_axis_is_moved_to_one(self):
        logits = random_logits(4, 3, 5, 6)
        last = classify(logits.movedim(2, -1), class_axis=-1)
        third = classify(logits.movedim(2, -1), class_axis=2)
        assert last.probs.shape == (3, 5, 6)
        assert torch.equal(last.votes, classify(logits).votes)
        np.testing.assert_allclose(last.probs, classify(logits).probs, atol=1e-6)
        assert torch.equal(last.probs, third.probs)

    def test_certain_samples_that_disagree_are_all_epistemic(self):
        predictive = classify(1e4 * torch.eye(4)[:, None, :])
        assert predictive.mutual_information.item() == pytest.approx(math.log(4), rel=1e-6)
        assert predictive.aleatoric.item() == 0.0
        assert predictive.confidence.item() == 0.25

    def test_equal_samples_have_no_epistemic_part(self):
        predictive = classify(random_logits(1, 20, 10).expand(30, 20, 10), 7)
        assert (predictive.mutual_information >= 0).all()
        # The mean of 30 equal numbers rounds 30 times.
        assert predictive.mutual_information.max() < 30 * 2**-24 * math.log(10)
        assert (predictive.confidence == 1).all()

    def test_one_sample_knows_no_variance_and_no_epistemic_part(self):
        predictive = classify(random_logits(1, 8, 3))
        assert predictive.variance.isnan().all()
        assert (predictive.mutual_information == 0).all()
        assert (predictive.confidence == 1).all()
        assert torch.equal(predictive.modal_class, predictive.classes)

    def test_modal_class_goes_by_votes_then_by_mean_probability(self):
        # Class 1 has the most votes, narrowly won; class 0 has the largest mean.
        by_votes = torch.tensor([[9.0, 0, 0], [0, 0.1, 0], [0, 0.1, 0]])[:, None]
        predictive = classify(by_votes)
        assert predictive.modal_class.item() == 1
        assert predictive.classes.item() == 0
        assert predictive.confidence.item() == pytest.approx(2 / 3)
        tied = torch.tensor([[0.1, 0, 0], [0.1, 0, 0], [0, 0, 5.0], [0, 0, 5.0]])[:, None]
        assert classify(tied).votes.tolist() == [[2, 0, 2]]
        assert classify(tied).modal_class.item() == 2

    def test_a_class_without_votes_is_never_modal(self):
        # Class 2 has the largest mean but is second in both samples.
        logits = torch.tensor([[1.1, -9.0, 1.0], [-9.0, 1.1, 1.0]])[:, None]
        predictive = classify(logits)
        assert predictive.classes.item() == 2
        assert predictive.modal_class.item() in (0, 1)

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
    def test_low_precision_logits_are_computed_in_float32(self, dtype):
        logits = random_logits(6, 4, 5).to(dtype)
        low, full = classify(logits, 2), classify(logits.float(), 2)
        assert low.probs.dtype == torch.float32
        for name in ("probs", "variance", "entropy", "expected_entropy", "votes"):
            assert torch.equal(getattr(low, name), getattr(full, name))

    def test_double_logits_stay_double(self):
        assert classify(random_logits(3, 2, 4).double()).probs.dtype == torch.float64

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
    def test_extreme_logits_stay_finite(self, dtype):
        logits = torch.tensor(
            [[[1e4, -1e4, 0.0]], [[-1e4, -1e4, -1e4]], [[-math.inf, 0.0, -math.inf]]]
        ).to(dtype)
        predictive = classify(logits, 1)
        np.testing.assert_allclose(predictive.probs, [[4 / 9, 4 / 9, 1 / 9]], atol=1e-6)
        np.testing.assert_allclose(predictive.expected_entropy, [math.log(3) / 3], atol=1e-6)
        for name in ("variance", "entropy", "mutual_information"):
            assert getattr(predictive, name).isfinite().all()

    def test_votes_come_from_logits_that_probabilities_cannot_tell_apart(self):
        logits = torch.tensor([[[200.0, 100.0, 0.0], [0.0, 2e-8, 1e-8]]])
        assert classify(logits).votes.tolist() == [[1, 0, 0], [0, 1, 0]]

    def test_empty_batch_gives_empty_tensors(self):
        predictive = classify(torch.zeros(5, 0, 3, 2), 2)
        assert len(predictive) == 0
        assert predictive.probs.shape == predictive.votes.shape == (0, 3, 2)
        assert predictive.entropy.shape == predictive.modal_class.shape == (0, 2)
        assert predictive.num_samples == 5

    def test_memory_does_not_grow_with_samples(self):
        def num_held(num_chunks: int) -> int:
            accumulator = ClassificationAccumulator()
            for seed in range(num_chunks):
                accumulator.update(random_logits(3, 6, 4, seed=seed))
            # Tensors pickle with their whole storage, so a view of a chunk would count in full.
            return len(pickle.dumps(vars(accumulator)))

        assert num_held(40) <= num_held(1) + 16

    def test_samples_may_arrive_under_inference_mode(self):
        accumulator = ClassificationAccumulator()
        with torch.inference_mode():
            accumulator.update(random_logits(2, 3, 4))
        accumulator.update(random_logits(2, 3, 4, seed=1))
        assert accumulator.result("mixed").votes.sum().item() == 12

    @pytest.mark.parametrize(
        ("shape", "axis", "message"),
        [
            ((2, 5), 1, r"logits must be \(samples, N, C, ...\).*got shape \(2, 5\)"),
            ((2, 5, 1), 1, r"at least two classes.*\(5, 1\); for one logit z"),
            ((2, 5, 3), 0, "classes on axis 0"),
            ((2, 5, 3), 2, "classes on axis 2"),
            ((2, 5, 3), -2, "classes on axis -2"),
        ],
    )
    def test_impossible_logits_are_refused(self, shape, axis, message):
        with pytest.raises(ValueError, match=message):
            ClassificationAccumulator(axis).update(torch.zeros(shape))

    def test_result_without_samples_is_refused(self):
        with pytest.raises(ValueError, match="there are no samples"):
            ClassificationAccumulator().result("nothing")

    def test_other_examples_are_refused_and_change_nothing(self):
        accumulator = ClassificationAccumulator()
        accumulator.update(random_logits(2, 3, 4))
        with pytest.raises(ValueError, match="every update must hold the same examples"):
            accumulator.update(random_logits(2, 5, 4))
        assert accumulator.result("test").votes.sum(1).tolist() == [2, 2, 2]


class TestRegression:
    def test_variance_splits_into_noise_and_spread_of_means(self):
        means = random_logits(12, 5, 2)
        noise = torch.rand(12, 5, 2, generator=torch.Generator().manual_seed(1))
        accumulator = RegressionAccumulator()
        for chunk in (slice(0, 5), slice(5, 12)):
            accumulator.update(means[chunk], noise[chunk])
        predictive = accumulator.result("12 weight samples")
        spread = means.double().numpy().var(0, ddof=1)
        np.testing.assert_allclose(predictive.mean, means.mean(0), atol=1e-6)
        np.testing.assert_allclose(predictive.epistemic, spread, rtol=1e-5)
        np.testing.assert_allclose(predictive.aleatoric, noise.mean(0), rtol=1e-5)
        np.testing.assert_allclose(predictive.total, spread + noise.mean(0).numpy(), rtol=1e-5)
        assert torch.equal(predictive.variance, predictive.total)
        np.testing.assert_allclose(predictive.std**2, predictive.variance, rtol=1e-5)
        assert predictive.samples.shape == predictive.noise_variance.shape == (12, 5, 2)
        assert (predictive.task, predictive.num_samples) == ("regression", 12)

    @pytest.mark.parametrize("noise", [0.25, torch.tensor([0.25, 1.0]), torch.full((4, 3, 1), 2.0)])
    def test_noise_broadcasts_to_the_means(self, noise):
        predictive = regress(random_logits(4, 3, 2), noise)
        expected = torch.as_tensor(noise).expand(4, 3, 2)
        assert torch.equal(predictive.noise_variance, expected)

    def test_one_sample_keeps_noise_but_not_total(self):
        predictive = regress(torch.tensor([[1.0, 2.0]]), 4.0)
        for name in ("epistemic", "total", "variance", "std"):
            assert getattr(predictive, name).isnan().all()
        assert predictive.aleatoric.tolist() == [4.0, 4.0]
        low, high = predictive.interval(0.95)
        np.testing.assert_allclose(low, norm.ppf(0.025, [1, 2], 2), rtol=1e-6)
        np.testing.assert_allclose(high, norm.ppf(0.975, [1, 2], 2), rtol=1e-6)
        assert predictive.log_prob(torch.tensor([1.0, 2.0])).isfinite().all()

    def test_interval_holds_its_share_of_draws(self):
        means = random_logits(6, 1).expand(6, 1)
        predictive = regress(means, 0.5)
        low, high = predictive.interval(0.8)
        generator = torch.Generator().manual_seed(2)
        chosen = means[torch.randint(6, (100_000,), generator=generator), 0]
        draws = chosen + math.sqrt(0.5) * torch.randn(100_000, generator=generator)
        share = ((draws >= low) & (draws <= high)).double().mean().item()
        assert share == pytest.approx(0.8, abs=4 * math.sqrt(0.8 * 0.2 / 100_000))

    def test_interval_of_step_function_counts_samples(self):
        predictive = regress(torch.arange(1.0, 41.0)[:, None])
        low, high = predictive.interval(0.95)
        assert (low.item(), high.item()) == (1.0, 39.0)

    @pytest.mark.parametrize("level", [0.0, 1.0, 95])
    def test_interval_refuses_impossible_levels(self, level):
        with pytest.raises(ValueError, match=f"level must lie strictly.*got {level}"):
            regress(torch.zeros(2, 1), 1.0).interval(level)

    def test_log_prob_sums_outputs_inside_each_sample(self):
        predictive = regress(torch.tensor([[[0.0, 0.0]], [[2.0, 2.0]]]), 1.0)
        each = norm.logpdf(np.array([[0.5, 0.5]]), np.array([[0, 0], [2, 2]]))
        exact = np.log(np.exp(each.sum(1)).mean())
        assert predictive.log_prob(torch.tensor([[0.5, 0.5]])).item() == pytest.approx(exact)

    def test_log_prob_accepts_a_missing_or_extra_last_axis_only(self):
        column = regress(random_logits(4, 3, 1), 1.0)
        flat = regress(random_logits(4, 3, 1).squeeze(2), 1.0)
        targets = torch.tensor([1.0, 2.0, 3.0])
        expected = flat.log_prob(targets)
        for predictive in (column, flat):
            assert torch.equal(predictive.log_prob(targets), expected)
            assert torch.equal(predictive.log_prob(targets[:, None]), expected)
        with pytest.raises(ValueError, match=r"prediction's shape \(3, 1\), got \(1, 3\)"):
            column.log_prob(targets[None])

    def test_log_prob_without_noise_is_undefined(self):
        assert regress(torch.zeros(3, 2)).log_prob(torch.zeros(2)).isnan().all()

    def test_propagated_variance_is_epistemic_and_widens_the_prediction(self):
        predictive = RegressionPredictive.build(
            torch.tensor([[1.0, 2.0]]), 0.5, "moments", propagated_variance=torch.tensor([3.5, 0.0])
        )
        assert predictive.num_samples == 0
        assert predictive.epistemic.tolist() == [3.5, 0.0]
        assert predictive.aleatoric.tolist() == [0.5, 0.5]
        assert predictive.total.tolist() == [4.0, 0.5]
        assert predictive.quantile(0.9)[0].item() == pytest.approx(norm.ppf(0.9, 1, 2), rel=1e-6)
        density = predictive.log_prob(torch.zeros(2))[0].item()
        assert density == pytest.approx(norm.logpdf(0, 1, 2), rel=1e-6)
        assert predictive[1:].propagated_variance.tolist() == [[0.0]]

    def test_propagated_variance_adds_to_the_spread_of_several_means(self):
        means = random_logits(5, 3)
        predictive = RegressionPredictive.build(means, 0.0, "ensemble of moments", 2.0)
        np.testing.assert_allclose(predictive.epistemic, means.var(0) + 2.0, rtol=1e-6)
        assert predictive.num_samples == 5

    def test_empty_batch_and_low_precision_work(self):
        empty = regress(torch.zeros(3, 0, 2), 1.0)
        assert empty.mean.shape == empty.quantile(0.5).shape == (0, 2)
        assert empty.log_prob(torch.zeros(0, 2)).shape == (0,)
        low = regress(random_logits(3, 2).bfloat16(), torch.tensor(0.5, dtype=torch.bfloat16))
        assert low.mean.dtype == low.noise_variance.dtype == torch.float32

    def test_result_without_samples_and_other_examples_are_refused(self):
        with pytest.raises(ValueError, match="there are no samples"):
            RegressionAccumulator().result("nothing")
        accumulator = RegressionAccumulator()
        accumulator.update(torch.zeros(2, 3))
        with pytest.raises(ValueError, match=r"as in \(2, 3\), got \(2, 4\)"):
            accumulator.update(torch.zeros(2, 4))
        with pytest.raises(ValueError, match="noise_variance must be at least 0"):
            accumulator.update(torch.zeros(2, 3), -1.0)
        assert accumulator.result("test").num_samples == 2


class TestCustom:
    def test_mean_and_variance_over_samples(self):
        outputs = random_logits(7, 3, 2)
        accumulator = CustomAccumulator()
        accumulator.update(outputs[:3])
        accumulator.update(outputs[3:])
        predictive = accumulator.result("7 weight samples")
        np.testing.assert_allclose(predictive.mean, outputs.double().mean(0), atol=1e-6)
        np.testing.assert_allclose(predictive.variance, outputs.double().var(0), rtol=1e-5)
        assert (predictive.task, predictive.num_samples) == ("custom", 7)
