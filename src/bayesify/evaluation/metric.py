"""What a metric is, and the registry a new one joins with one decorator.

@metric("error_rate", tasks=("classification",), higher_is_better=False)
def error_rate(predictive, targets):
    return float((predictive.classes != targets).double().mean())
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from bayesify.prediction.predictive import Predictive, Task
from bayesify.registry import Registry

# Any: a function may ask for the record of its own task.
Score = Callable[[Any, Tensor], float]


@dataclass(frozen=True)
class Metric:
    """A named number that says how good a prediction is.

    Attributes:
        name: What tables and recipes call it.
        function: Takes a prediction and its targets, gives the number; NaN when undefined.
        tasks: The tasks it is defined for.
        higher_is_better: The direction of better; None where neither is, as for a coverage.
    """

    name: str
    function: Score
    tasks: tuple[Task, ...]
    higher_is_better: bool | None

    def __call__(self, predictive: Predictive, targets: Tensor) -> float:
        """Return the metric of a prediction for a task it is defined for."""
        self.check_task(predictive.task)
        return float(self.function(predictive, targets))

    def check_task(self, task: Task) -> None:
        """Raise if the metric is not defined for a task."""
        if task not in self.tasks:
            raise ValueError(
                f"metric {self.name!r} is defined for {' and '.join(self.tasks)}, got a {task} "
                f"prediction; for {task} there are: {', '.join(metrics_for(task)) or 'none yet'}"
            )


metrics: Registry[Metric] = Registry("metric")


def metric(
    name: str, *, tasks: tuple[Task, ...], higher_is_better: bool | None
) -> Callable[[Score], Metric]:
    """Return a decorator that registers a function of (predictive, targets) as a metric."""

    def add(function: Score) -> Metric:
        return metrics.register(name)(Metric(name, function, tasks, higher_is_better))

    return add


def metrics_for(task: Task) -> list[str]:
    """Return the names of the metrics registered for a task."""
    return [name for name in metrics if task in metrics[name].tasks]
