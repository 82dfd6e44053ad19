"""Means and variances through an unmodified forward: one rule for each torch function."""

# Imported for their rules.
from bayesify.moments import (
    activation_rules,  # noqa: F401
    arithmetic_rules,  # noqa: F401
    attention_rules,  # noqa: F401
    averaging_rules,  # noqa: F401
    batch_norm,  # noqa: F401
    dropout_rules,  # noqa: F401
    extreme_rules,  # noqa: F401
    linear_rules,  # noqa: F401
    norm_rules,  # noqa: F401
    pooled_rules,  # noqa: F401
    pooling_rules,  # noqa: F401
    reduction_rules,  # noqa: F401
    shape_rules,  # noqa: F401
    shared_rules,  # noqa: F401
    smooth_rules,  # noqa: F401
    softmax_rules,  # noqa: F401
)
from bayesify.moments.full_covariance import FullMoments
from bayesify.moments.missing_rule import MissingRuleError
from bayesify.moments.moments import Moments, precise, precise_dtype, rule
from bayesify.moments.propagate import propagate
from bayesify.moments.rule_table import current_rules, moment_rules, registered_functions

__all__ = [
    "FullMoments",
    "MissingRuleError",
    "Moments",
    "current_rules",
    "moment_rules",
    "precise",
    "precise_dtype",
    "propagate",
    "registered_functions",
    "rule",
]
