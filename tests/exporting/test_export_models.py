"""Every registered model goes to ONNX, every method does, and every kind of file.

Each model takes one method and one kind in turn, narrow and with few blocks: an export takes
seconds. `benchmarks/export_table.py` fills in the whole table.
"""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import bayesify as bf
from bayesify.exporting import Runtime
from bayesify.models import DenseNet, models

SMALL = (3, 8, 8)
SIZES = (1, 3, 6)
OF_CLASSES = ("probs", "entropy", "expected_entropy", "mutual_information")
# The share of an output's scale that export itself allows.
TOLERANCE = 1e-4
METHODS = {
    "mean_field": lambda: bf.MeanField(initial_std=0.05),
    "variational_dropout": lambda: bf.VariationalDropout(initial_std=0.05),
    "partial_bayes": lambda: bf.PartialBayes(0.3, score="magnitude", initial_std=0.05),
    "sparse_subspace": lambda: bf.SparseSubspace(density=0.5, initial_std=0.05),
    "moment_propagation": lambda: bf.MomentPropagation(initial_std=0.05),
    "monte_carlo_kl": lambda: bf.MonteCarloKL(family="radial", initial_std=0.05),
}
VIT = {"depth": 1, "image_size": 32, "num_classes": 4}
# Model, options, shape of an input, method, kind of file.
CASES: dict[str, tuple[dict[str, Any], tuple[int, ...], str, Any]] = {
    "alexnet": ({"width": 1, "image_size": 16}, (3, 16, 16), "sparse_subspace", "samples"),
    "cifar_resnet": ({"width": 2, "depth": 8}, SMALL, "partial_bayes", "moments"),
    "lenet_300_100": ({"in_features": 9}, (9,), "variational_dropout", "moments"),
    "lenet_5": ({"image_size": 16}, (1, 16, 16), "moment_propagation", "samples"),
    "mlp": ({"in_features": 9, "hidden": (8,)}, (9,), "monte_carlo_kl", "moments"),
    "preact_resnet_18": ({"width": 2}, SMALL, "mean_field", "mean"),
    "resnet_18": ({"width": 2}, SMALL, "variational_dropout", "mean"),
    "text_transformer": (
        {"vocabulary_size": 30, "width": 8, "length": 6},
        (6,),
        "monte_carlo_kl",
        "samples",
    ),
    "unet": ({"width": 2, "depth": 1}, SMALL, "mean_field", "samples"),
    "vgg_11": ({"width": 1}, (3, 32, 32), "partial_bayes", "samples"),
    "vgg_13": ({"width": 1}, (3, 32, 32), "moment_propagation", "mean"),
    "vgg_16": ({"width": 1}, (3, 32, 32), "partial_bayes", "mean"),
    "vgg_19": ({"width": 1}, (3, 32, 32), "monte_carlo_kl", "mean"),
    "vit_base": (VIT, (3, 32, 32), "partial_bayes", "mean"),
    "vit_mini": ({"width": 8, "depth": 1, "image_size": 8}, SMALL, "sparse_subspace", "samples"),
    "vit_tiny": (VIT, (3, 32, 32), "variational_dropout", "mean"),
    "volume_encoder": ({"width": 2, "pools": (2,)}, (1, 4, 4, 4), "moment_propagation", "samples"),
}
# More, or wider, blocks of those that are tested: an export takes longer, and shows the same.
TWINS = {
    *(f"densenet_{depth}" for depth in (121, 161, 169, 201)),
    *(f"preact_resnet_{depth}" for depth in (34, 50, 101, 152)),
    "resnet_20",
    "resnet_56",
    "vit_small",
}


def inputs_of(shape: tuple[int, ...], options: dict[str, Any], size: int) -> torch.Tensor:
    if "vocabulary_size" in options:
        return torch.randint(0, options["vocabulary_size"], (size, *shape))
    return torch.randn(size, *shape)


def with_statistics(net: nn.Module, inputs: torch.Tensor) -> nn.Module:
    """Return a network whose norms know some inputs: untrained ones would let features grow."""
    with torch.no_grad():
        for _ in range(10):
            net.train()(inputs)
    return net.eval()


def assert_close(found: np.ndarray, expected: torch.Tensor, least_scale: float, name: str) -> None:
    scale = max(float(expected.abs().max()), least_scale)
    np.testing.assert_allclose(
        found, expected.numpy(), rtol=0, atol=TOLERANCE * scale, err_msg=name
    )


def assert_agrees(runtime: Runtime, model: nn.Module, batch: torch.Tensor, what: str) -> None:
    answer = runtime(batch.numpy())
    if what == "mean":
        with torch.no_grad():
            assert_close(answer["mean"], bf.revert(model).eval()(batch), 0.0, "mean")
        return
    numbers = bf.predict(model, batch, by="moments", likelihood=bf.GaussianRegression(1.0))
    classes = bf.predict(model, batch, by="moments", likelihood="classification")
    assert_close(answer["mean"], numbers.mean, 0.0, "mean")
    assert_close(answer["variance"], numbers.epistemic, 0.0, "variance")
    assert float(numbers.epistemic.min()) > 0.0
    for name in OF_CLASSES:
        assert_close(answer[name], getattr(classes, name), 1.0, name)


def assert_draws_agree(runtime: Runtime, model: nn.Module, batch: torch.Tensor) -> None:
    """Compare averages over entries: a pixel that hardly any draw changes has no error bar."""
    number, many = 64, 1024
    calls = [runtime(batch.numpy()) for _ in range(number // 2)]
    probs = np.mean([call["probs"] for call in calls], 0)
    expected = bf.predict(
        model, batch, by="sample", num_samples=many, likelihood="classification", seed=0
    )
    spread = float(expected.variance.mean())
    # Of 100 seeds each, the largest difference was 1.5 to 3.2 times what chance has on average.
    chance = (spread * (1 / number + 1 / many)) ** 0.5
    assert np.sqrt(np.mean((probs - expected.probs.numpy()) ** 2)) < 4 * chance
    assert 0.5 < np.mean([call["probs_variance"] for call in calls]) / spread < 2.0
    assert not np.array_equal(calls[0]["probs"], calls[1]["probs"])


def check(net: nn.Module, method: str, what: Any, inputs: torch.Tensor, path: Any) -> None:
    model = bf.convert(net, METHODS[method]())
    bf.export(
        model,
        path,
        what=what,
        num_samples=2,
        example_inputs=inputs[:2],
        likelihood="classification",
    )
    runtime = Runtime(path)
    if what == "samples":
        assert_draws_agree(runtime, model, inputs)
        assert [len(runtime(inputs[:size].numpy())["probs"]) for size in SIZES] == list(SIZES)
        return
    for size in SIZES:
        assert_agrees(runtime, model, inputs[:size], what)


@pytest.mark.parametrize("name", CASES)
def test_model_says_the_same_in_its_file(tmp_path, name):
    torch.manual_seed(0)
    options, shape, method, what = CASES[name]
    inputs = inputs_of(shape, options, max(SIZES))
    net = with_statistics(bf.build_model(name, **options), inputs)
    check(net, method, what, inputs, tmp_path / "model.onnx")


def test_dense_blocks_and_average_pools_say_the_same_in_their_file(tmp_path):
    torch.manual_seed(0)
    inputs = torch.randn(max(SIZES), *SMALL)
    net = with_statistics(DenseNet((1, 1), growth_rate=2), inputs)
    check(net, "mean_field", "moments", inputs, tmp_path / "model.onnx")


def test_every_model_method_and_kind_is_tried():
    assert {*CASES, *TWINS} == set(models)
    assert {case[2] for case in CASES.values()} == set(METHODS)
    assert {case[2] for case in CASES.values() if case[3] != "mean"} == set(METHODS)
    assert {case[3] for case in CASES.values()} == {"mean", "moments", "samples"}
