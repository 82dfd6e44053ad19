"""Data sets in memory, and plain `DataLoader`s over them."""

from bayesify.data import cifar as cifar
from bayesify.data import digits as digits
from bayesify.data import imdb as imdb
from bayesify.data import mnist as mnist
from bayesify.data import synthetic as synthetic
from bayesify.data import volumes as volumes
from bayesify.data.catalogue import datasets, load_dataset
from bayesify.data.dataset import DataSet, TensorData
from bayesify.data.download import DataNotFoundError
from bayesify.data.loader import loader
from bayesify.data.split import split
from bayesify.data.text import Vocabulary, build_vocabulary
from bayesify.data.transforms import CropAndFlip, Normalise

__all__ = [
    "CropAndFlip",
    "DataNotFoundError",
    "DataSet",
    "Normalise",
    "TensorData",
    "Vocabulary",
    "build_vocabulary",
    "datasets",
    "load_dataset",
    "loader",
    "split",
]
