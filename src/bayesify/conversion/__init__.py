"""Stage 1: a PyTorch model becomes Bayesian, and back."""

from bayesify.conversion.convert import convert, convert_, revert
from bayesify.conversion.kl import kl
from bayesify.conversion.method import Method, methods
from bayesify.conversion.scope import mean_weights, one_sample
from bayesify.conversion.summary import Summary, summary

__all__ = [
    "Method",
    "Summary",
    "convert",
    "convert_",
    "kl",
    "mean_weights",
    "methods",
    "one_sample",
    "revert",
    "summary",
]
