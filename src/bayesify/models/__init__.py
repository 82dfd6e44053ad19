"""Networks to start from: plain modules that know nothing of posteriors."""

from bayesify.models.alexnet import AlexNet
from bayesify.models.catalogue import build_model, models
from bayesify.models.dense import MLP
from bayesify.models.densenet import (
    DenseNet,
    densenet_121,
    densenet_161,
    densenet_169,
    densenet_201,
)
from bayesify.models.lenet import LeNet5, lenet_300_100
from bayesify.models.preact_resnet import (
    PreActResNet,
    preact_resnet_18,
    preact_resnet_34,
    preact_resnet_50,
    preact_resnet_101,
    preact_resnet_152,
)
from bayesify.models.residual import ResNet, cifar_resnet, resnet_18, resnet_20, resnet_56
from bayesify.models.text import TextTransformer
from bayesify.models.unet import UNet
from bayesify.models.vgg import VGG, vgg_11, vgg_13, vgg_16, vgg_19
from bayesify.models.vit import (
    VisionTransformer,
    resized_position,
    vit_base,
    vit_mini,
    vit_small,
    vit_tiny,
)
from bayesify.models.volume_encoder import VolumeEncoder

__all__ = [
    "MLP",
    "VGG",
    "AlexNet",
    "DenseNet",
    "LeNet5",
    "PreActResNet",
    "ResNet",
    "TextTransformer",
    "UNet",
    "VisionTransformer",
    "VolumeEncoder",
    "build_model",
    "cifar_resnet",
    "densenet_121",
    "densenet_161",
    "densenet_169",
    "densenet_201",
    "lenet_300_100",
    "models",
    "preact_resnet_18",
    "preact_resnet_34",
    "preact_resnet_50",
    "preact_resnet_101",
    "preact_resnet_152",
    "resized_position",
    "resnet_18",
    "resnet_20",
    "resnet_56",
    "vgg_11",
    "vgg_13",
    "vgg_16",
    "vgg_19",
    "vit_base",
    "vit_mini",
    "vit_small",
    "vit_tiny",
]
