"""Stage 5: a smaller model, without what its posterior says is noise."""

from bayesify.compression.compress import compress
from bayesify.compression.cost import Cost, Costs, count_costs
from bayesify.compression.flops import Flops, count_flops
from bayesify.compression.score import scores
from bayesify.compression.sparsity import Sparsity, sparsity

__all__ = [
    "Cost",
    "Costs",
    "Flops",
    "Sparsity",
    "compress",
    "count_costs",
    "count_flops",
    "scores",
    "sparsity",
]
