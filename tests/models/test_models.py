"""What every registered model must do."""

import inspect
import math

import pytest
import torch

from bayesify import MeanField, convert, mean_weights
from bayesify.models import build_model, models

INPUT_SHAPES = {
    "mlp": (1, 28, 28),
    "lenet_300_100": (1, 28, 28),
    "lenet_5": (1, 28, 28),
    "vit_base": (3, 224, 224),
    "vit_small": (3, 224, 224),
    "vit_tiny": (3, 224, 224),
    "volume_encoder": (1, 24, 24, 24),
}
PHOTOGRAPH = (3, 32, 32)
IMAGENET_MODELS = {"vit_base", "vit_small", "vit_tiny"}
TEXT_MODELS = {"text_transformer"}
TWO_CLASSES = {*TEXT_MODELS, "volume_encoder"}
EXPECTED = {
    "alexnet",
    "cifar_resnet",
    "densenet_121",
    "densenet_161",
    "densenet_169",
    "densenet_201",
    "lenet_300_100",
    "lenet_5",
    "mlp",
    "preact_resnet_18",
    "preact_resnet_34",
    "preact_resnet_50",
    "preact_resnet_101",
    "preact_resnet_152",
    "resnet_18",
    "resnet_20",
    "resnet_56",
    "text_transformer",
    "unet",
    "vgg_11",
    "vgg_13",
    "vgg_16",
    "vgg_19",
    "vit_base",
    "vit_mini",
    "vit_small",
    "vit_tiny",
    "volume_encoder",
}
# What makes a model small enough to run at once, where it offers that.
SMALL = {"width": 4, "growth_rate": 2}
# One of twelve blocks that are all alike, over few patches.
SHALLOW = {"depth": 1, "patch_size": 56}
KEEPS_ITS_WIDTH = {"cifar_resnet", "resnet_20", "resnet_56", "text_transformer"}
# Hundreds of layers, slow even without numbers: their own tests pin every weight they have without
# arguments, and small ones run here.
DEEP = {
    "densenet_161",
    "densenet_169",
    "densenet_201",
    "preact_resnet_101",
    "preact_resnet_152",
}


def inputs_of(name, num_inputs):
    """Return inputs a model takes without arguments: word numbers, or pixels in [0, 1)."""
    if name in TEXT_MODELS:
        return torch.randint(1, 20_000, (num_inputs, 120))
    return torch.rand(num_inputs, *INPUT_SHAPES.get(name, PHOTOGRAPH))


def output_shape_of(name):
    """Return the classes and, where each pixel has one, the height and width."""
    if name == "unet":
        return (11, *PHOTOGRAPH[1:])
    if name in IMAGENET_MODELS:
        return (1000,)
    return (2,) if name in TWO_CLASSES else (10,)


def small(name):
    """Return a model that runs at once on a processor, of full depth but for the largest."""
    if name in IMAGENET_MODELS:
        return models[name](**SHALLOW)
    offered = inspect.signature(models[name]).parameters
    if name in KEEPS_ITS_WIDTH:
        return models[name]()
    return models[name](**{key: SMALL[key] for key in SMALL if key in offered})


def test_models_lists_every_model():
    assert set(models) >= EXPECTED


@pytest.mark.parametrize("name", [name for name in models if name not in DEEP])
def test_model_without_arguments_returns_a_logit_for_each_class(name):
    # Shapes alone: the largest of these would take seconds to run.
    with torch.device("meta"), torch.inference_mode():
        logits = models[name]().eval()(inputs_of(name, 2))
    assert logits.shape == (2, *output_shape_of(name))


@pytest.mark.parametrize("name", list(models))
def test_model_returns_finite_logits(name):
    torch.manual_seed(0)
    logits = small(name)(inputs_of(name, 2))
    assert logits.shape == (2, *output_shape_of(name))
    assert logits.isfinite().all()


@pytest.mark.parametrize("name", list(models))
def test_model_takes_an_empty_batch(name):
    model = small(name).eval()
    assert model(inputs_of(name, 0)).shape == (0, *output_shape_of(name))


@pytest.mark.parametrize("name", list(models))
def test_model_sends_a_gradient_to_every_parameter(name):
    torch.manual_seed(0)
    model = small(name)
    # Shifted inputs, because channels of zero mean can leave a bias without a gradient.
    logits = model(inputs_of(name, 4))
    num_classes, *positions = output_shape_of(name)
    targets = torch.arange(4 * math.prod(positions)).view(4, *positions) % num_classes
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
    model = small(name).eval()
    inputs = inputs_of(name, 3)
    with torch.inference_mode():
        alone = torch.cat([model(row) for row in inputs.split(1)])
        # Batches of different sizes may sum in another order: some hundred float32 roundings of
        # sums as large as the largest logit.
        atol = 1e-4 * max(1.0, alone.abs().max().item())
        torch.testing.assert_close(model(inputs), alone, rtol=1e-4, atol=atol)


@pytest.mark.parametrize("name", list(models))
def test_model_converted_to_mean_field_keeps_its_outputs_at_its_mean_weights(name):
    torch.manual_seed(0)
    model, inputs = small(name).eval(), inputs_of(name, 2)
    bayesian = convert(model, MeanField())
    with torch.inference_mode():
        expected = model(inputs)
        with mean_weights(bayesian):
            torch.testing.assert_close(bayesian(inputs), expected, rtol=1e-6, atol=1e-6)
        assert not torch.allclose(bayesian(inputs), expected, rtol=1e-4, atol=1e-6)


def test_models_unknown_name_suggests_the_closest():
    with pytest.raises(LookupError, match=r"unknown model 'lenet5'\. Did you mean 'lenet_5'\?"):
        models["lenet5"]


def test_build_model_passes_options_and_names_unknown_ones():
    assert build_model("lenet_300_100", num_classes=3)(torch.zeros(2, 784)).shape == (2, 3)
    with pytest.raises(TypeError, match=r"Did you mean 'num_classes'"):
        build_model("lenet_300_100", num_class=3)
