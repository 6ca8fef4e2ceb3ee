"""Ablation after every layer: what the prediction needs a stream for, all in all.

At the final state (ablation.py) only what a stream adds to the output counts, and nothing of what others read
from it on the way. Here a stream's state is replaced by its mean after every layer, so that both count; the
two can rank streams in opposite order. One pass of the model a stream.

    >>> import srmlab, srmlab.analysis, torch
    >>> model = srmlab.build(srmlab.preset("srm-nano"))
    >>> batches = [torch.arange(64).view(2, 32)]
    >>> found = srmlab.analysis.survey(model, batches, only=["ablation_everywhere"])
    >>> len(found["ablation_everywhere"].points)
    8
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from srmlab.analysis.ablation import Ablation, RerunAblation
from srmlab.analysis.registry import Analysis, Request, has_streams, register
from srmlab.analysis.replacement import points_at
from srmlab.analysis.states import means_in


@dataclass(frozen=True, kw_only=True, eq=False)
class AblationEverywhere(Ablation):
    kind: ClassVar[str] = "ablation_everywhere"


class EveryLayer(RerunAblation):
    makes = AblationEverywhere


def _accumulator(request: Request) -> EveryLayer:
    model = request.model
    return EveryLayer(model, "mean", means_in(request), None, points_at(model, "every"))


register(Analysis(AblationEverywhere, _accumulator, has_streams, needs="means"))
