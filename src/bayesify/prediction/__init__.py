"""Stage 3: predict, and know how sure."""

from bayesify.prediction.predict import predict
from bayesify.prediction.predictive import Predictive

__all__ = ["Predictive", "predict"]
