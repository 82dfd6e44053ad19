"""A file computes what torch does, at any size of the batch; what cannot be leaves no file."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import bayesify as bf
from bayesify.conversion.scope import forward_by
from bayesify.exporting import ExportError, Runtime, export, read_manifest
from bayesify.moments import MissingRuleError, moment_rules

OF_CLASSES = ("probs", "entropy", "expected_entropy", "mutual_information")
# Rounding of float32 in sums over 256 points and in entropies of up to log C.
ROUNDING = 1e-5


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 10), nn.ReLU(), nn.Linear(10, 3))


def batches() -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [(torch.randn(8, 6, generator=generator), torch.arange(8) % 3) for _ in range(3)]


METHODS = [
    bf.MeanField(initial_std=0.2, how="local", scale="out", biases=True),
    bf.VariationalDropout(),
    bf.PartialBayes(0.3, data=batches(), initial_std=0.2),
    bf.SparseSubspace(density=0.5),
    bf.MomentPropagation(rules="taylor"),
    bf.MonteCarloKL("radial"),
]


def run_program(path: Path, *inputs: torch.Tensor) -> dict[str, torch.Tensor]:
    return torch.export.load(path).module()(*inputs)


def assert_same_classes(found: dict, model: nn.Module, inputs: torch.Tensor) -> None:
    expected = bf.predict(model, inputs, by="moments", likelihood="classification")
    for name in OF_CLASSES:
        reference = getattr(expected, name)
        torch.testing.assert_close(
            torch.as_tensor(found[name]), reference, rtol=0, atol=ROUNDING, msg=name
        )
    assert float(expected.mutual_information.max()) > 20 * ROUNDING  # or nothing was compared


@pytest.mark.parametrize("size", [1, 5, 32])
def test_moments_of_a_convolutional_network_agree_with_predict(lenet, size):
    model, path = lenet
    images = torch.randn(size, 1, 28, 28)
    assert_same_classes(Runtime(path)(images.numpy()), model, images)


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_moments_of_every_method_agree_with_predict(tmp_path, method):
    model = bf.convert(mlp(), method)
    export(model, tmp_path / "m.pt2", example_inputs=torch.randn(4, 6), likelihood="classification")
    inputs = 5.0 * torch.randn(7, 6)
    assert_same_classes(run_program(tmp_path / "m.pt2", inputs), model, inputs)
    assert read_manifest(tmp_path / "m.pt2")["method"]["name"] == method.name


def test_moments_of_a_plain_network_have_no_variance(tmp_path):
    net = mlp()
    model = bf.convert(net, bf.Deterministic())
    export(model, tmp_path / "m.pt2", example_inputs=torch.randn(4, 6), likelihood="classification")
    inputs = torch.randn(2, 6)
    found = run_program(tmp_path / "m.pt2", inputs)
    torch.testing.assert_close(found["probs"], net(inputs).softmax(1).detach())
    assert float(found["variance"].max()) == 0.0
    assert float(found["mutual_information"].max()) < ROUNDING


def test_moments_of_a_residual_network_agree_with_predict(tmp_path):
    net = bf.build_model("cifar_resnet", depth=8, width=4)
    model = bf.convert(net, bf.MomentPropagation(initial_std=0.1))
    export(
        model,
        tmp_path / "m.pt2",
        example_inputs=torch.randn(2, 3, 8, 8),
        likelihood="classification",
    )
    images = torch.randn(5, 3, 8, 8)
    assert_same_classes(run_program(tmp_path / "m.pt2", images), model, images)


def test_moments_of_a_transformer_agree_with_predict(tmp_path):
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    net = nn.Sequential(
        nn.Embedding(20, 8), nn.TransformerEncoder(layer, 1), nn.Flatten(), nn.Linear(40, 3)
    )
    model = bf.convert(net, bf.MeanField(initial_std=0.1))
    words = torch.randint(0, 20, (4, 5))
    export(model, tmp_path / "m.pt2", example_inputs=words, likelihood="classification")
    words = torch.randint(0, 20, (3, 5))
    assert_same_classes(run_program(tmp_path / "m.pt2", words), model, words)
    assert read_manifest(tmp_path / "m.pt2")["inputs"][0]["dtype"] == "int64"


def test_regression_gives_the_variance_and_the_noise(tmp_path):
    model = bf.convert(
        nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 2)), bf.MeanField(initial_std=0.3)
    )
    model.bayesify.likelihood = bf.GaussianRegression(noise="predicted")
    export(model, tmp_path / "m.onnx", example_inputs=torch.randn(1, 2))
    inputs = torch.randn(6, 2)
    found = Runtime(tmp_path / "m.onnx")(inputs.numpy())
    expected = bf.predict(model, inputs, by="moments")
    parts = {
        "mean": expected.mean,
        "variance": expected.epistemic,
        "noise_variance": expected.aleatoric,
    }
    assert list(found) == list(parts)
    for name, part in parts.items():
        torch.testing.assert_close(torch.from_numpy(found[name]), part, rtol=1e-4, atol=1e-6)


def test_mean_is_the_plain_network_and_a_compressed_one_is_small(tmp_path):
    net = nn.Sequential(nn.Linear(20, 200), nn.ReLU(), nn.Linear(200, 3))
    model = bf.convert(net, bf.MeanField())
    small = bf.compress(model, keep=0.02)
    paths = {"whole": model, "small": small}
    for name, each in paths.items():
        export(each, tmp_path / f"{name}.onnx", what="mean", example_inputs=torch.randn(2, 20))
    inputs = torch.randn(9, 20)
    found = Runtime(tmp_path / "small.onnx")(inputs.numpy())["mean"]
    expected = bf.revert(small)(inputs).detach()
    torch.testing.assert_close(torch.from_numpy(found), expected, rtol=1e-5, atol=1e-6)
    sizes = [(tmp_path / f"{name}.onnx").stat().st_size for name in paths]
    # 20 x 200 weights of four bytes, of which few units are left.
    assert sizes[0] > 4 * 200 * 23 > 2 * sizes[1]


def test_samples_are_drawn_at_every_call_as_predict_draws_them(tmp_path):
    model = bf.convert(mlp(), bf.MeanField(initial_std=0.5))
    path, inputs = tmp_path / "m.onnx", torch.randn(4, 6)
    export(
        model,
        path,
        what="samples",
        num_samples=8,
        example_inputs=inputs,
        likelihood="classification",
    )
    runtime = Runtime(path)
    calls = [runtime(inputs.numpy()) for _ in range(250)]
    assert not np.array_equal(calls[0]["probs"], calls[1]["probs"])
    expected = bf.predict(model, inputs, num_samples=2000, likelihood="classification", seed=0)
    probs = np.mean([call["probs"] for call in calls], 0)
    error = (2 * expected.variance / 2000).sqrt().numpy()
    assert (np.abs(probs - expected.probs.numpy()) < 5 * error).all()
    variance = np.mean([call["probs_variance"] for call in calls], 0)
    # The variance of probabilities is known to sqrt(2 / T) of itself, times a fourth moment.
    np.testing.assert_allclose(variance, expected.variance.numpy(), rtol=5 * math.sqrt(4 / 2000))
    assert runtime.manifest["num_samples"] == 8


def test_keyword_inputs_and_tied_weights_are_drawn_once(tmp_path):
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
            self.second.weight = self.first.weight

        def forward(self, *, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
            return self.first(left) - self.second(right)

    model = bf.convert(Tied(), bf.MonteCarloKL("radial"))
    same = torch.randn(3, 4)
    export(
        model,
        tmp_path / "m.pt2",
        what="samples",
        num_samples=2,
        example_inputs={"left": same, "right": torch.randn(3, 4)},
        likelihood=nn.MSELoss(),
    )
    found = run_program(tmp_path / "m.pt2", same, same)
    assert set(found) == {"mean", "variance"}  # what a loss function means is unknown
    assert float(found["variance"].max()) == 0.0  # one draw serves both layers
    other = run_program(tmp_path / "m.pt2", same, torch.randn(3, 4))
    assert float(other["variance"].min()) > 0.0


class WithoutRule(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x).cumprod(1)


MODEL = bf.convert(mlp(), bf.MeanField())
INPUTS = {"example_inputs": torch.randn(4, 6)}
CLASSES = {**INPUTS, "likelihood": "classification"}
REFUSED = {
    "plain model": (mlp(), "m.onnx", CLASSES, TypeError, "must come from bayesify.convert"),
    "ending": (MODEL, "m.bin", CLASSES, ValueError, "must end in .onnx or .pt2"),
    "what": (MODEL, "m.pt2", {**CLASSES, "what": "median"}, ValueError, "'median'"),
    "examples": (MODEL, "m.onnx", {}, ValueError, "likelihood must be given"),
    "likelihood": (
        MODEL,
        "m.onnx",
        {"likelihood": "classification"},
        ValueError,
        "example_inputs must be given",
    ),
    "type": (MODEL, "m.onnx", {**CLASSES, "example_inputs": [[1.0]]}, TypeError, "tensors alone"),
    "empty": (
        MODEL,
        "m.onnx",
        {**CLASSES, "example_inputs": torch.zeros(0, 6)},
        ValueError,
        "one example at least",
    ),
    "number": (
        MODEL,
        "m.onnx",
        {**CLASSES, "what": "samples", "num_samples": 1},
        ValueError,
        "num_samples must be a whole number >= 2",
    ),
    "rule": (
        bf.convert(WithoutRule(), bf.MeanField()),
        "m.onnx",
        CLASSES,
        MissingRuleError,
        "no moment rule for Tensor.cumprod",
    ),
    "variance": (
        bf.convert(mlp(), bf.MonteCarloKL("horseshoe", "horseshoe")),
        "m.onnx",
        CLASSES,
        ValueError,
        "take what='mean' or 'samples'",
    ),
    "ensemble": (
        bf.convert(mlp(), bf.DeepEnsemble(2)),
        "m.onnx",
        {**CLASSES, "what": "mean"},
        ValueError,
        "take what='samples'",
    ),
    "certain": (
        bf.convert(mlp(), bf.PartialBayes(0.0)),
        "m.onnx",
        {**CLASSES, "what": "samples"},
        ValueError,
        "there is none: take what='mean'",
    ),
    "one class": (
        bf.convert(nn.Linear(6, 1), bf.MeanField()),
        "m.onnx",
        CLASSES,
        ValueError,
        "two classes or more",
    ),
    "note": (MODEL, "m.onnx", {**CLASSES, "note": {"x": {1, 2}}}, TypeError, "JSON"),
    "fixed batch": (
        bf.convert(
            nn.Sequential(nn.Linear(6, 2), nn.Unflatten(0, (2, 1)), nn.Flatten(0, 1)),
            bf.Deterministic(),
        ),
        "m.pt2",
        {"what": "mean", "example_inputs": torch.randn(2, 6)},
        ExportError,
        "cannot be exported",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_exported_is_refused_and_leaves_no_file(tmp_path, case):
    model, name, options, kind, message = REFUSED[case]
    with pytest.raises(kind, match=message):
        export(model, tmp_path / name, **options)
    assert not list(tmp_path.iterdir())


def test_a_file_that_computes_something_else_is_not_put_in_place(tmp_path):
    # ONNX Runtime takes dropout for a part of training, and leaves it out.
    net = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 3))
    path = tmp_path / "m.onnx"
    path.write_bytes(b"before")
    with pytest.raises(ExportError, match="no file was written"):
        export(bf.convert(net, bf.MCDropout()), path, what="samples", num_samples=2, **CLASSES)
    assert path.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [path]


def test_the_model_is_left_as_it_was(tmp_path):
    model = bf.convert(mlp(), bf.MeanField()).double().train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    export(model, tmp_path / "m.pt2", what="samples", num_samples=2, **CLASSES)
    assert torch.equal(state, torch.get_rng_state())
    assert model.training
    after = model.state_dict()
    assert all(torch.equal(value, after[name]) for name, value in before.items())
    # A file computes in float32, whatever the model was trained in.
    assert run_program(tmp_path / "m.pt2", torch.randn(2, 6))["probs"].dtype == torch.float32


def test_rules_that_carry_what_positions_share_go_to_a_file(tmp_path):
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Conv2d(4, 3, 3, stride=2, padding=1),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )
    model = bf.convert(net, bf.MeanField(initial_std=0.1)).eval()
    x = torch.randn(3, 1, 12, 12)
    path = tmp_path / "model.onnx"
    options = {"example_inputs": x, "likelihood": "classification"}
    bf.export(model, path, rules="shared", **options)
    shared = bf.Runtime(path)(x.numpy())["variance"]
    assert bf.read_manifest(path)["rules"] == "shared"
    bf.export(model, path, **options)
    assert (shared > 1.5 * bf.Runtime(path)(x.numpy())["variance"]).all()


def test_pooled_rules_go_to_a_file(tmp_path, monkeypatch):
    monkeypatch.setattr("bayesify.moments.pooled_rules.FEWEST", 1)
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.GELU(), nn.Conv2d(4, 6, 3, stride=2), nn.Flatten(),
        nn.Linear(150, 40), nn.ReLU(), nn.Linear(40, 3),
    )  # fmt: skip
    model = bf.convert(net, bf.MeanField(initial_std=0.1)).eval()
    x, path = torch.randn(3, 1, 12, 12), tmp_path / "model.onnx"
    bf.export(model, path, example_inputs=x, rules="pooled", likelihood="classification")
    found = bf.Runtime(path)(x.numpy())["variance"]
    assert bf.read_manifest(path)["rules"] == "pooled"
    with torch.no_grad(), forward_by(model, "moments"), moment_rules("pooled"):
        expected = model(x).variance
    torch.testing.assert_close(torch.as_tensor(found), expected, rtol=1e-3, atol=1e-5)
    with torch.no_grad(), forward_by(model, "moments"):
        assert not torch.allclose(model(x).variance, expected, rtol=1e-2)
