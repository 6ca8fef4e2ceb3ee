"""Looking inside a model: one file an analysis, each a function of a model and batches of tokens that returns
a result.

    >>> import srm, srm.analysis, torch
    >>> model = srm.build(srm.preset("srm-nano"))
    >>> print(srm.analysis.routing(model, [torch.arange(64).view(2, 32)]).summary().splitlines()[1].strip())
    8 layers × 2 heads × 8 streams; uniform 1/S = 0.125
"""

from srm.analysis.capture import Batch, capture, merge
from srm.analysis.result import Axes, Evidence, Result, ResultError, load
from srm.analysis.routing import Routing, routing

__all__ = [
    "Axes",
    "Batch",
    "Evidence",
    "Result",
    "ResultError",
    "Routing",
    "capture",
    "load",
    "merge",
    "routing",
]
