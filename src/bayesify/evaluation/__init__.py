"""How good a Bayesian network is: right, calibrated, and unsure where it should be."""

from bayesify.evaluation.evaluate import evaluate
from bayesify.evaluation.evaluation import Evaluation
from bayesify.evaluation.metric import metrics

__all__ = ["Evaluation", "evaluate", "metrics"]
