"""Pictures of predictions."""

from bayesify.report.figures import (
    Example,
    Plane,
    demo_figure,
    examples_figure,
    plane_figure,
    reliability_figure,
)

__all__ = [
    "Example",
    "Plane",
    "demo_figure",
    "examples_figure",
    "plane_figure",
    "reliability_figure",
]
