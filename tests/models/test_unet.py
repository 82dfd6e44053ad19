import pytest
import torch
import torch.nn.functional as F
from torch import nn

from bayesify import MeanField, convert, evaluate, fit, mean_weights, predict
from bayesify.data import TensorData, loader
from bayesify.models import UNet, build_model

WAYS_UP = ("bilinear", "transposed")


def num_parameters(model):
    return sum(parameter.numel() for parameter in model.parameters())


def tiny(up="transposed", **options):
    torch.manual_seed(0)
    model = UNet(num_classes=5, width=4, depth=2, up=up, **options)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            # Statistics unlike 0 and 1, so that what is normalised shows.
            nn.init.normal_(module.running_mean)
            nn.init.uniform_(module.running_var, 0.5, 2.0)
    return model.eval()


def test_unet_has_the_size_of_the_common_implementation():
    with torch.device("meta"):
        assert num_parameters(UNet(num_classes=2)) == 31_037_698
        bilinear = UNet(num_classes=1, up="bilinear")
        # The known count, 17,267,393, is with a bias in front of each normalisation.
        num_biases = sum(
            module.num_features for module in bilinear.modules() if hasattr(module, "num_features")
        )
        assert num_parameters(bilinear) + num_biases == 17_267_393


def test_unet_has_the_channels_of_the_paper():
    with torch.device("meta"):
        plain, bilinear = UNet(), UNet(up="bilinear")
    assert [stage.conv2.out_channels for stage in plain.down_stages] == [64, 128, 256, 512, 1024]
    assert [stage.pair.conv2.out_channels for stage in plain.up_stages] == [512, 256, 128, 64]
    assert [stage.conv2.out_channels for stage in bilinear.down_stages] == [64, 128, 256, 512, 512]
    assert [stage.pair.conv2.out_channels for stage in bilinear.up_stages] == [256, 128, 64, 64]


@pytest.mark.parametrize("up", WAYS_UP)
@pytest.mark.parametrize("size", [(36, 48), (45, 60), (37, 51), (4, 7), (5, 4)])
def test_unet_gives_every_pixel_logits_at_any_size(up, size):
    logits = tiny(up)(torch.randn(2, 3, *size))
    assert logits.shape == (2, 5, *size)
    assert logits.isfinite().all()


@pytest.mark.parametrize("up", WAYS_UP)
def test_unet_takes_the_images_of_camvid(up):
    with torch.device("meta"):
        assert UNet(up=up).eval()(torch.rand(2, 3, 180, 240)).shape == (2, 11, 180, 240)


def by_hand(model, images, up):
    """Return what a U-Net of depth 2 computes, written out."""

    def pair(stage, features):
        for layer, norm in ((stage.conv1, stage.bn1), (stage.conv2, stage.bn2)):
            features = F.conv2d(features, layer.weight, padding=1)
            features = F.batch_norm(
                features, norm.running_mean, norm.running_var, norm.weight, norm.bias
            ).relu()
        return features

    high = pair(model.down_stages[0], images)
    middle = pair(model.down_stages[1], F.max_pool2d(high, 2))
    features = pair(model.down_stages[2], F.max_pool2d(middle, 2))
    for stage, skip in zip(model.up_stages, (middle, high), strict=True):
        if up == "bilinear":
            larger = F.interpolate(features, skip.shape[2:], mode="bilinear")
        else:
            rows, columns = 2 * features.shape[2], 2 * features.shape[3]
            larger = torch.zeros(len(images), stage.up.out_channels, *skip.shape[2:])
            made = F.conv_transpose2d(features, stage.up.weight, stage.up.bias, stride=2)
            larger[:, :, :rows, :columns] = made
        features = pair(stage.pair, torch.cat([skip, larger], 1))
    return F.conv2d(features, model.head.weight, model.head.bias)


@pytest.mark.parametrize("up", WAYS_UP)
@pytest.mark.parametrize("size", [(36, 48), (37, 51)])
def test_unet_equals_the_formula(up, size):
    model, images = tiny(up), torch.randn(2, 3, *size)
    torch.testing.assert_close(model(images), by_hand(model, images, up))


@pytest.mark.parametrize("up", WAYS_UP)
def test_unet_at_zero_scale_equals_the_plain_one(up):
    model, images = tiny(up), torch.randn(2, 3, 36, 48)
    bayesian = convert(model, MeanField())
    names = {name for name, _ in bayesian.named_parameters()}
    assert ("up_stages.0.up.weight_posterior.rho" in names) == (up == "transposed")
    with torch.inference_mode():
        expected = model(images)
        assert not torch.allclose(bayesian(images), expected, rtol=1e-3)
        with mean_weights(bayesian):
            torch.testing.assert_close(bayesian(images), expected, rtol=1e-6, atol=1e-6)
        for name, parameter in bayesian.named_parameters():
            if name.endswith(".rho"):
                parameter.fill_(-200.0)  # softplus(-200) = 1e-87, which is 0 in float32
        torch.testing.assert_close(bayesian(images), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("up", WAYS_UP)
def test_unet_prediction_has_a_distribution_at_every_pixel(up):
    bayesian = convert(tiny(up), MeanField())
    found = predict(bayesian, torch.randn(3, 3, 36, 48), num_samples=4, likelihood="classification")
    assert found.probs.shape == (3, 5, 36, 48)
    torch.testing.assert_close(found.probs.sum(1), torch.ones(3, 36, 48))
    assert found.entropy.shape == (3, 36, 48)
    assert found.mutual_information.max() > 0


@pytest.mark.parametrize("up", WAYS_UP)
def test_unet_learns_to_tell_bright_pixels_from_dark_ones(up):
    torch.manual_seed(0)
    images = torch.randn(8, 1, 18, 24)
    labels = (images[:, 0] > 0).long()
    labels[:, :3] = -100
    data = loader(TensorData(images, labels), 4, shuffle=True)
    model = convert(UNet(2, 1, width=4, depth=1, up=up), MeanField())
    weighted = {"name": "classification", "class_weights": [0.9, 1.1]}
    fit(model, data, epochs=40, likelihood=weighted, learning_rate=0.02, progress=False)
    found = evaluate(model, data, num_samples=4, metrics=["mean_iou", "accuracy"], progress=False)
    # Guessing gives an accuracy of 1/2 and, over both classes, an overlap of at most 1/3.
    assert found["accuracy"] > 0.9
    assert found["mean_iou"] > 0.8


@pytest.mark.parametrize("up", WAYS_UP)
def test_unet_works_channels_last(up):
    model, images = tiny(up), torch.randn(2, 3, 37, 51)
    expected = model(images)
    found = model.to(memory_format=torch.channels_last)(
        images.contiguous(memory_format=torch.channels_last)
    )
    assert found.is_contiguous(memory_format=torch.channels_last)
    # Other kernels sum in another order: some hundred roundings of sums of this size.
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4 * expected.abs().max().item())


@pytest.mark.parametrize("up", WAYS_UP)
def test_unet_is_one_graph_to_the_compiler(up):
    model, images = tiny(up), torch.randn(1, 3, 37, 51)
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(images), model(images))


def test_unet_in_bfloat16_stays_finite():
    logits = tiny("bilinear").bfloat16()(torch.randn(1, 3, 37, 51).bfloat16())
    assert logits.dtype == torch.bfloat16
    assert logits.isfinite().all()


def test_unet_takes_an_empty_batch_and_other_channels():
    model = build_model("unet", num_classes=2, in_channels=1, width=3, depth=1, up="bilinear")
    assert model.eval()(torch.zeros(0, 1, 5, 5)).shape == (0, 2, 5, 5)


def test_unet_lets_distant_pixels_meet_only_through_its_depth():
    model, images = tiny(), torch.randn(1, 3, 64, 64)
    changed = images.clone()
    changed[0, :, 0, 0] += 1.0
    moved = (model(images) != model(changed)).any(1)[0]
    assert moved[0, 0]
    # 3x3 convolutions at sides 1, 2 and 4: two each down and two each up reach about 30 pixels.
    assert not moved[40:, :].any()
    assert not moved[:, 40:].any()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"up": "nearest"}, r"unknown way up of a U-Net 'nearest'\..* Known: bilinear, transposed"),
        ({"depth": 0}, "depth must be a positive integer, got 0"),
        ({"width": 0}, "width must be a positive integer, got 0"),
    ],
)
def test_unet_refuses_wrong_options(options, message):
    with pytest.raises(ValueError, match=message):
        UNet(**options)


def test_unet_refuses_images_that_pooling_would_empty():
    with pytest.raises(ValueError, match=r"sides of at least 4.* got \(1, 3, 3, 48\)"):
        tiny()(torch.zeros(1, 3, 3, 48))
