import subprocess
import sys
from pathlib import Path

import pytest
import torch

from bayesify.data import Normalise, TensorData, loader
from bayesify.data.cifar import read_records
from bayesify.models import cifar_resnet, models, resnet_18, resnet_20
from bayesify.models.residual import PaddingShortcut

SHARED = Path(__file__).parents[2].parent / "shared" / "data"
CHECKPOINTS = {"resnet_20": "resnet20-12fca82f.th", "resnet_56": "resnet56-4bfd9763.th"}
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def num_parameters(model):
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(
    ("name", "count"), [("resnet_20", 269_722), ("resnet_56", 853_018), ("resnet_18", 11_173_962)]
)
def test_resnet_has_the_published_size(name, count):
    assert num_parameters(models[name]()) == count


@pytest.mark.parametrize(("depth", "millions"), [(32, 0.46), (44, 0.66), (110, 1.73)])
def test_cifar_resnet_has_the_published_size_at_other_depths(depth, millions):
    assert num_parameters(cifar_resnet(depth)) == pytest.approx(millions * 1e6, abs=1e4)


@pytest.mark.parametrize("depth", [2, 18, 21])
def test_cifar_resnet_refuses_a_depth_it_cannot_have(depth):
    with pytest.raises(ValueError, match=rf"depth must be 6n \+ 2 .* got {depth}"):
        cifar_resnet(depth)


def test_resnet_18_takes_width_channels_and_classes():
    model = resnet_18(num_classes=7, in_channels=1, width=8).eval()
    assert model(torch.randn(2, 1, 28, 28)).shape == (2, 7)
    assert model.get_submodule("layer4.1.conv2").weight.shape == (64, 64, 3, 3)


def test_resnet_18_keeps_the_resolution_in_its_stem():
    model = resnet_18(width=4)
    sizes = []
    for name in ("bn1", "layer1", "layer2", "layer3", "layer4"):
        model.get_submodule(name).register_forward_hook(
            lambda module, inputs, output: sizes.append(output.shape[-1])
        )
    model(torch.randn(1, 3, 32, 32))
    assert sizes == [32, 32, 16, 8, 4]


def test_padding_shortcut_keeps_every_second_pixel_between_zero_channels():
    features = torch.randn(2, 3, 4, 4)
    padded = PaddingShortcut(3, 6, 2)(features)
    assert torch.equal(padded[:, 1:4], features[:, :, ::2, ::2])
    assert padded.shape == (2, 6, 2, 2)
    assert padded[:, 0].count_nonzero() == 0
    assert padded[:, 4:].count_nonzero() == 0


def test_resnet_forward_does_not_change_its_input():
    images = torch.randn(2, 3, 32, 32)
    before = images.clone()
    resnet_20()(images)
    assert torch.equal(images, before)


def load_checkpoint(name):
    path = SHARED / "packed" / "weights" / CHECKPOINTS[name]
    if not path.exists():
        pytest.skip(f"the published weights {path.name} are not here")
    state = torch.load(path, map_location="cpu", weights_only=True)["state_dict"]
    model = models[name]()
    model.load_state_dict({key.removeprefix("module."): state[key] for key in state}, strict=True)
    return model.eval()


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_resnet_loads_the_published_weights(name):
    model = load_checkpoint(name)
    assert model.bn1.running_mean.count_nonzero() > 0


UNPACK_TEST_BATCH = """
import sys
sys.path.insert(0, sys.argv[1])
import packed_images, unpack
images, labels, _ = packed_images.load(unpack.PACKED / "cifar10_test.medz")
open(sys.argv[2], "wb").write(unpack.cifar_records(images, labels))
"""


@pytest.fixture(scope="module")
def cifar10_test_images(tmp_path_factory):
    if not (SHARED / "packed" / "cifar10_test.medz").exists():
        pytest.skip("the CIFAR-10 test images are not here")
    path = tmp_path_factory.mktemp("cifar") / "test_batch.bin"
    subprocess.run([sys.executable, "-c", UNPACK_TEST_BATCH, str(SHARED), str(path)], check=True)
    return TensorData(*read_records(path, 1, 10), Normalise(IMAGENET_MEAN, IMAGENET_STD))


@pytest.mark.slow
def test_resnet_20_scores_its_published_accuracy(cifar10_test_images):
    model = load_checkpoint("resnet_20").to(memory_format=torch.channels_last)
    num_correct = 0
    with torch.inference_mode():
        for images, labels in loader(cifar10_test_images, 200):
            logits = model(images.contiguous(memory_format=torch.channels_last))
            num_correct += int((logits.argmax(1) == labels).sum())
    # One image more or less, for ties that another order of summation may break.
    assert num_correct / len(cifar10_test_images) == pytest.approx(0.9173, abs=0.0001)
