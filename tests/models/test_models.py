"""What every registered model must do."""

import pytest
import torch

from bayesify.models import build_model, models

INPUT_SHAPES = {
    "mlp": (1, 28, 28),
    "lenet_300_100": (1, 28, 28),
    "lenet_5": (1, 28, 28),
}
PHOTOGRAPH = (3, 32, 32)
TEXT_MODELS = {"text_transformer"}
EXPECTED = {
    "cifar_resnet",
    "lenet_300_100",
    "lenet_5",
    "mlp",
    "resnet_18",
    "resnet_20",
    "resnet_56",
    "text_transformer",
}


def inputs_of(name, num_inputs):
    """Return inputs a model takes without arguments: word numbers, or pixels in [0, 1)."""
    if name in TEXT_MODELS:
        return torch.randint(1, 20_000, (num_inputs, 120))
    return torch.rand(num_inputs, *INPUT_SHAPES.get(name, PHOTOGRAPH))


def num_outputs_of(name):
    return 2 if name in TEXT_MODELS else 10


def test_models_lists_every_model():
    assert set(models) >= EXPECTED


@pytest.mark.parametrize("name", list(models))
def test_model_without_arguments_returns_a_logit_for_each_class(name):
    torch.manual_seed(0)
    model = models[name]()
    logits = model(inputs_of(name, 2))
    assert logits.shape == (2, num_outputs_of(name))
    assert logits.isfinite().all()


@pytest.mark.parametrize("name", list(models))
def test_model_takes_an_empty_batch(name):
    model = models[name]().eval()
    assert model(inputs_of(name, 0)).shape == (0, num_outputs_of(name))


@pytest.mark.parametrize("name", list(models))
def test_model_sends_a_gradient_to_every_parameter(name):
    torch.manual_seed(0)
    model = models[name]()
    # Shifted inputs, because channels of zero mean can leave a bias without a gradient.
    logits = model(inputs_of(name, 4))
    targets = torch.arange(4) % num_outputs_of(name)
    torch.nn.functional.cross_entropy(logits, targets).backward()
    without = [
        key
        for key, parameter in model.named_parameters()
        if parameter.grad is None or not parameter.grad.abs().sum() > 0
    ]
    assert without == []


@pytest.mark.parametrize("name", list(models))
def test_model_treats_each_input_alone_in_evaluation(name):
    torch.manual_seed(0)
    model = models[name]().eval()
    inputs = inputs_of(name, 3)
    with torch.inference_mode():
        alone = torch.cat([model(row) for row in inputs.split(1)])
        # Batches of different sizes may sum in another order: some hundred float32 roundings.
        torch.testing.assert_close(model(inputs), alone, rtol=1e-4, atol=1e-4)


def test_models_unknown_name_suggests_the_closest():
    with pytest.raises(LookupError, match=r"unknown model 'lenet5'\. Did you mean 'lenet_5'\?"):
        models["lenet5"]


def test_build_model_passes_options_and_names_unknown_ones():
    assert build_model("lenet_300_100", num_classes=3)(torch.zeros(2, 784)).shape == (2, 3)
    with pytest.raises(TypeError, match=r"Did you mean 'num_classes'"):
        build_model("lenet_300_100", num_class=3)
