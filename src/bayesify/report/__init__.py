"""Pictures of predictions, and one page about reproduced studies."""

from bayesify.report.curves import (
    Line,
    confidence_figure,
    energy_figure,
    error_by_samples_figure,
    log_uniform_kl_figure,
    regression_figure,
    reliability_panels_figure,
    set_spread_figure,
    sparsity_figure,
)
from bayesify.report.figures import (
    Example,
    Plane,
    demo_figure,
    examples_figure,
    plane_figure,
    reliability_figure,
)
from bayesify.report.json_value import ResultError
from bayesify.report.page import Report, write_report
from bayesify.report.partial_figures import (
    input_std_figure,
    random_share_figure,
    weight_distribution_figure,
)
from bayesify.report.results import Cell, CellGroup, Results, Study, read_results
from bayesify.report.segmentation import Scene, segmentation_figure

__all__ = [
    "Cell",
    "CellGroup",
    "Example",
    "Line",
    "Plane",
    "Report",
    "ResultError",
    "Results",
    "Scene",
    "Study",
    "confidence_figure",
    "demo_figure",
    "energy_figure",
    "error_by_samples_figure",
    "examples_figure",
    "input_std_figure",
    "log_uniform_kl_figure",
    "plane_figure",
    "random_share_figure",
    "read_results",
    "regression_figure",
    "reliability_figure",
    "reliability_panels_figure",
    "segmentation_figure",
    "set_spread_figure",
    "sparsity_figure",
    "weight_distribution_figure",
    "write_report",
]
