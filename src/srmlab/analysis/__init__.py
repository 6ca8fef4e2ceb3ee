"""The analyses: one file each, each a function of a model and batches of tokens.

    >>> import srmlab, srmlab.analysis, torch
    >>> model = srmlab.build(srmlab.preset("srm-nano"))
    >>> found = srmlab.analysis.routing(model, [torch.arange(64).view(2, 32)])
    >>> print(found.summary().splitlines()[1].strip())
    8 layers × 2 heads × 8 streams; uniform 1/S = 0.125

A result can be saved (`result.save(path)`, `srmlab.analysis.load(path)`), summarised (`summary()`), plotted
(`figure()`) and written as data files for LaTeX (`to_pgfplots(directory, prefix)`).
"""

from srmlab.analysis.capture import Accumulator, Mean, Placed, capture, merge
from srmlab.analysis.registry import ANALYSES, Analysis, Request, register
from srmlab.analysis.result import Axes, Coordinate, Evidence, Measured, Result, ResultError, load

# Analyses register themselves, and results are shown in this order.
# isort: off
from srmlab.analysis.routing import Routing, routing
from srmlab.analysis.alignment import Alignment, alignment
from srmlab.analysis.drift import Convergence, Drift, convergence, drift
from srmlab.analysis.states import StateMeans, state_means
from srmlab.analysis.routing_controls import RoutingControls, routing_controls
from srmlab.analysis.effective_sources import EffectiveSources, effective_sources
from srmlab.analysis.token_similarity import TokenSimilarity, token_similarity
from srmlab.analysis.stream_similarity import StreamSimilarity, stream_similarity
from srmlab.analysis.ablation import Ablation, AblationEverywhere, ablation
from srmlab.analysis.attribution import Attribution, attribute, attribution
from srmlab.analysis.edge_attribution import EdgeAttribution, edge_attribution
from srmlab.analysis.logit_lens import LogitLens, lens_cost, logit_lens
from srmlab.analysis.interaction import Interaction, interaction
from srmlab.analysis.induction import Induction, induction
from srmlab.analysis.interventions import (
    AblatedStream,
    CutEdge,
    HeldFeature,
    Intervention,
    cut_edges,
    hold_features,
    patch_streams,
    replace_streams,
)
from srmlab.analysis.effect import Effect, effect
from srmlab.analysis.prompt_pairs import kl_from, log_probability, logit_difference
from srmlab.analysis.patching import PatchGrid, patch_grid
from srmlab.analysis.paths import PathGrid, path_grid
from srmlab.analysis.depth import Depth, at_depth, depth
from srmlab.analysis.cells import Cells, cells
from srmlab.analysis.fixed_points import FixedPoints, fixed_points
from srmlab.analysis.cell_probe import CellProbe, cell_probe
from srmlab.analysis.dynamics import Dynamics, checkpoints_of, dynamics
from srmlab.analysis.edges import Edges, edges, gate_edges
from srmlab.analysis.survey import survey
# isort: on

__all__ = [
    "ANALYSES",
    "AblatedStream",
    "Ablation",
    "AblationEverywhere",
    "Accumulator",
    "Alignment",
    "Analysis",
    "Attribution",
    "Axes",
    "CellProbe",
    "Cells",
    "Convergence",
    "Coordinate",
    "CutEdge",
    "Depth",
    "Drift",
    "Dynamics",
    "EdgeAttribution",
    "Edges",
    "Effect",
    "EffectiveSources",
    "Evidence",
    "FixedPoints",
    "HeldFeature",
    "Induction",
    "Interaction",
    "Intervention",
    "LogitLens",
    "Mean",
    "Measured",
    "PatchGrid",
    "PathGrid",
    "Placed",
    "Request",
    "Result",
    "ResultError",
    "Routing",
    "RoutingControls",
    "StateMeans",
    "StreamSimilarity",
    "TokenSimilarity",
    "ablation",
    "alignment",
    "at_depth",
    "attribute",
    "attribution",
    "capture",
    "cell_probe",
    "cells",
    "checkpoints_of",
    "convergence",
    "cut_edges",
    "depth",
    "drift",
    "dynamics",
    "edge_attribution",
    "edges",
    "effect",
    "effective_sources",
    "fixed_points",
    "gate_edges",
    "hold_features",
    "induction",
    "interaction",
    "kl_from",
    "lens_cost",
    "load",
    "log_probability",
    "logit_difference",
    "logit_lens",
    "merge",
    "patch_grid",
    "patch_streams",
    "path_grid",
    "register",
    "replace_streams",
    "routing",
    "routing_controls",
    "state_means",
    "stream_similarity",
    "survey",
    "token_similarity",
]
