"""Methods: each file names its choice of where × what × how × objective."""

from bayesify.methods.mean_field import MeanField

__all__ = ["MeanField"]
