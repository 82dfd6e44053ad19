"""KL(posterior ‖ prior), summed over a tensor's entries, by the best way there is."""

from __future__ import annotations

from torch import Tensor

from bayesify.distributions.estimator import BEST_FIRST, Estimator, estimators
from bayesify.distributions.family import Family, Parameters, Prior

AUTO = "auto"


def divergence(
    family: Family,
    parameters: Parameters,
    prior: Prior,
    *,
    estimator: str = AUTO,
    num_samples: int = 1000,
) -> Tensor:
    """Return KL(family(parameters) ‖ prior) in nats, summed over all entries.

    Args:
        family: How entries are distributed.
        parameters: Its parameters.
        prior: What they are measured against.
        estimator: "closed", "exact_mc", "repar", "streamed", "direct", or "auto" for the first of
            these that the pair has.
        num_samples: Draws averaged by an estimator that draws.
    """
    if not isinstance(num_samples, int) or isinstance(num_samples, bool) or num_samples < 1:
        raise ValueError(f"num_samples must be a whole number >= 1, got {num_samples!r}")
    problem = divergence_problem(family, prior, estimator)
    if problem:
        raise ValueError(problem)
    return chosen_estimator(family, prior, estimator)(family, parameters, prior, num_samples)


def chosen_estimator(family: Family, prior: Prior, estimator: str = AUTO) -> Estimator:
    """Return the estimator that is asked for, or the best there is for this pair."""
    if estimator != AUTO:
        return estimators[estimator]
    return next(entry for entry in BEST_FIRST if entry.problem(family, prior) is None)


def divergence_problem(family: Family, prior: Prior, estimator: str = AUTO) -> str | None:
    """Return why this pair has no KL, or none by this estimator; None where it has one."""
    problem = prior.problem() or infinite_kl(family, prior)
    if problem is None and prior.is_fit():
        problem = _fit_problem(family, prior, estimator)
    if problem is None and estimator != AUTO:
        problem = estimators[estimator].problem(family, prior)
    return problem


def _fit_problem(family: Family, prior: Prior, estimator: str) -> str | None:
    if estimator in (AUTO, "closed"):
        return estimators["closed"].problem(family, prior)
    return f"{prior} is a published fit of the KL: estimator must be 'closed', got {estimator!r}"


def infinite_kl(family: Family, prior: Prior) -> str | None:
    """Return why the KL of this pair is infinite, or None."""
    names = f"the {family.name!r} family and the {prior.name!r} prior"
    if prior.support not in ("line", family.support):
        return f"the KL between {names} is infinite: {_outside(prior)}"
    for power in prior.moments_needed():
        if not family.has_moment(power):
            return f"the KL between {names} {_without_moment(family, power)}"
    if prior.needs_exponential_moments() and not family.has_exponential_moments:
        return f"the KL between {names} can be infinite: it needs the mean of exp(w)"
    return None


def _outside(prior: Prior) -> str:
    where = {
        "half line": "the prior covers one side of 0, the posterior both",
        "above a minimum": "the prior covers sizes above its minimum, the posterior smaller ones",
        "simplex": "the prior covers rows that sum to 1, which the posterior's do not",
    }
    remedy = {"half line": "; take a family of the half line, such as 'log_normal' or 'gamma'"}
    return where[prior.support] + remedy.get(prior.support, "")


def _without_moment(family: Family, power: float) -> str:
    needed = f"it needs the mean of |w|^{power:g}, which {family}"
    if hasattr(family, "least_shape"):
        return f"can be infinite: {needed} does not always have; raise its least_shape"
    return f"is infinite: {needed} does not have"
