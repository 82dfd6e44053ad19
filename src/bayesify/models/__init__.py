"""Networks to start from: plain modules that know nothing of posteriors."""

from bayesify.models.catalogue import build_model, models
from bayesify.models.dense import MLP
from bayesify.models.lenet import LeNet5, lenet_300_100
from bayesify.models.residual import ResNet, cifar_resnet, resnet_18, resnet_20, resnet_56
from bayesify.models.text import TextTransformer

__all__ = [
    "MLP",
    "LeNet5",
    "ResNet",
    "TextTransformer",
    "build_model",
    "cifar_resnet",
    "lenet_300_100",
    "models",
    "resnet_18",
    "resnet_20",
    "resnet_56",
]
