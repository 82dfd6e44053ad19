"""Stage 3: predict, and know how sure."""

from bayesify.prediction.moment_correction import correct_moments
from bayesify.prediction.predict import predict
from bayesify.prediction.predictive import Predictive

__all__ = ["Predictive", "correct_moments", "predict"]
