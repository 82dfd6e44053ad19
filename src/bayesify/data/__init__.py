"""Data sets in memory, and plain `DataLoader`s over them."""

from bayesify.data import camvid as camvid
from bayesify.data import cifar as cifar
from bayesify.data import corruption_blur as corruption_blur
from bayesify.data import corruption_digital as corruption_digital
from bayesify.data import corruption_noise as corruption_noise
from bayesify.data import corruption_spatter as corruption_spatter
from bayesify.data import corruption_weather as corruption_weather
from bayesify.data import digits as digits
from bayesify.data import imdb as imdb
from bayesify.data import mnist as mnist
from bayesify.data import synthetic as synthetic
from bayesify.data import tiny_imagenet as tiny_imagenet
from bayesify.data import volumes as volumes
from bayesify.data.catalogue import datasets, load_dataset
from bayesify.data.class_weights import median_frequency_weights
from bayesify.data.corruption import STANDARD, Corruption, corrupted, corruptions
from bayesify.data.dataset import DataSet, TensorData
from bayesify.data.download import DataNotFoundError
from bayesify.data.loader import loader
from bayesify.data.noisy import newly_noisy, noisy, uncertain
from bayesify.data.split import split
from bayesify.data.text import Vocabulary, build_vocabulary
from bayesify.data.transforms import CropAndFlip, Cutout, FlipPairs, Normalise, PairTransform

__all__ = [
    "STANDARD",
    "Corruption",
    "CropAndFlip",
    "Cutout",
    "DataNotFoundError",
    "DataSet",
    "FlipPairs",
    "Normalise",
    "PairTransform",
    "TensorData",
    "Vocabulary",
    "build_vocabulary",
    "corrupted",
    "corruptions",
    "datasets",
    "load_dataset",
    "loader",
    "median_frequency_weights",
    "newly_noisy",
    "noisy",
    "split",
    "uncertain",
]
