"""Alignment: does what a layer adds point along what is already there? Cosines, averaged over tokens.

Connection alignment, per layer and stream: cos(c_t, x), the connection's output against the token input. The
paper finds them nearly orthogonal, with a small positive bias (means 0.067, 0.056, 0.064).

Update–state alignment, per layer, step and stream, for the update y = RMSNorm(c_t + x):

    output      cos(y, the step's output)      the paper's body text; the default where only one is shown
    incoming    cos(y, RMSNorm(the step's state before y is added))      the paper's appendix

RMSNorm without weights only scales, so the norm around the incoming state changes no cosine; and within a
layer the incoming state of a step is the output of the one before it: incoming[:, 1:] equals output[:, :-1].

    >>> import srmlab, srmlab.analysis, torch
    >>> model = srmlab.build(srmlab.preset("srm-nano"))
    >>> found = srmlab.analysis.alignment(model, [torch.arange(64).view(2, 32)])
    >>> found.connection.shape, found.output.shape              # layer, stream; layer, step, stream
    ((8, 8), (8, 3, 8))

Layer 0 reads z_0, so its c is the same for every token (`token_independent`).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from srmlab.analysis.capture import Accumulator, Batches, Mean, capture
from srmlab.analysis.registry import Analysis, has_exchanges, register
from srmlab.analysis.result import Array, Measured, Result, derived, require, write_table
from srmlab.analysis.states import stream_major
from srmlab.errors import UserError
from srmlab.models import LanguageModel

State = Literal["output", "incoming"]
STEPS = "layer step stream"


@dataclass(frozen=True, kw_only=True, eq=False)
class Alignment(Result):
    """Cosines of connection, update and state; made by `alignment`."""

    kind: ClassVar[str] = "alignment"

    token_independent: tuple[int, ...]  # layers whose connection output cannot depend on the token
    connection: Annotated[Array, Measured("layer stream", "cosine of c and x, mean over tokens")]
    output: Annotated[Array, Measured(STEPS, "cosine of update and step output, mean over tokens")]
    incoming: Annotated[Array, Measured(STEPS, "cosine of update and incoming state, mean over tokens")]

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("connection", "output", "incoming"):
            require(bool((np.abs(getattr(self, name)) <= 1 + 1e-5).all()), f"{name}: a cosine lies in −1…1")

    @derived("", "cosine")
    def mean(self) -> float:
        """Mean connection alignment over layers and streams."""
        return float(self.connection.mean())

    @derived("layer", "cosine")
    def layer_mean(self) -> Array:
        """[layer] Mean connection alignment over streams."""
        return self.connection.mean(1)

    @derived("", "share of (layer, stream) pairs")
    def negative_share(self) -> float:
        """The share of (layer, stream) pairs whose connection alignment is negative."""
        return float((self.connection < 0).mean())

    @derived("state", "cosine")
    def update_mean(self) -> Array:
        """[output, incoming] Mean update–state alignment over layers, steps and streams."""
        return np.array([self.output.mean(), self.incoming.mean()])

    @derived("layer", "cosine")
    def update_layer_mean(self) -> Array:
        """[layer] Mean alignment of update and step output, over steps and streams."""
        return self.output.mean((1, 2))

    @derived("state step", "cosine")
    def update_step_mean(self) -> Array:
        """[output, incoming; step] Mean update–state alignment over layers and streams."""
        return np.stack([self.output.mean((0, 2)), self.incoming.mean((0, 2))])

    @derived("state stream", "cosine")
    def update_stream_mean(self) -> Array:
        """[output, incoming; stream] Mean update–state alignment over layers and steps."""
        return np.stack([self.output.mean((0, 1)), self.incoming.mean((0, 1))])

    @derived("state", "share of (layer, step, stream) triples")
    def update_negative_share(self) -> Array:
        """[output, incoming] The share of cosines that are negative."""
        return np.array([(self.output < 0).mean(), (self.incoming < 0).mean()])

    def headline(self) -> str:
        update = f"cos(update, output) {self.output.mean():+.3f}"
        return f"cos(c, x) {self.mean:+.3f}, {self.negative_share:.0%} negative; {update}"

    def summary(self) -> str:
        peak = int(self.layer_mean.argmax())
        layers, steps, _ = self.output.shape
        each = ", ".join(self.text("layer_mean", "+.3f", (l,)) for l in range(layers))
        lines = [
            f"Connection alignment cos(c, x) ({self.evidence})",
            f"  mean {self.text('mean', '+.3f')}, range {self.connection.min():+.3f} to "
            f"{self.connection.max():+.3f}, negative in {self.text('negative_share', '.1%')} "
            "of (layer, stream) pairs",
            f"  per layer: {each} (peak at layer {peak})",
        ]
        if self.token_independent:
            lines.append("  layer 0's c is the same for every token")
        for i, state in enumerate(("step output", "incoming state")):
            low = self.update_stream_mean[i].argsort(kind="stable")[:3]
            lowest = ", ".join(f"S{s} {self.text('update_stream_mean', '+.2f', (i, s))}" for s in low)
            each = ", ".join(self.text("update_step_mean", "+.3f", (i, k)) for k in range(steps))
            lines += [
                f"Update–state alignment, {state}",
                f"  mean {self.text('update_mean', '+.3f', (i,))}, negative in "
                f"{self.text('update_negative_share', '.1%', (i,))} of (layer, step, stream); "
                f"lowest streams {lowest}",
                f"  per step of a layer: {each}",
            ]
        return "\n".join(lines)

    def to_pgfplots(self, directory: str | Path, prefix: str, state: State = "output") -> list[Path]:
        """`{prefix}_attn_token_cos.dat` (layers from 1) and `{prefix}_update_state_cos.dat` (steps from 0,
        through all layers).

        Rows run through the streams first: the paper's matrix plots say mesh/cols = S.
        """
        connection, update = self.connection, getattr(self, state)
        update = update.reshape(-1, update.shape[-1])
        tables = {
            "attn_token_cos": ("layer", 1, connection),
            "update_state_cos": ("step", 0, update),
        }
        return [
            write_table(
                Path(directory) / f"{prefix}_{name}.dat",
                ["stream", axis, "value"],
                ((stream, row + first, float(value)) for (row, stream), value in np.ndenumerate(values)),
            )
            for name, (axis, first, values) in tables.items()
        ]


class AlignmentSums(Accumulator):
    makes = Alignment

    def __init__(self, model: LanguageModel) -> None:
        assert model.input_site is not None, "checked by has_exchanges"
        self.known = {"token_independent": model.token_independent}
        self.roles = {model.input_site: ("x", -1, -1)}
        for l, exchange in enumerate(model.exchanges):
            calls = [call for call in model.calls if call.level == l]
            self.roles[exchange.message] = ("c", l, -1)
            self.roles[exchange.update] = ("y", l, -1)
            self.roles |= {call.site: ("z", l, i) for i, call in enumerate(calls)}
        self.first = model.calls[0].before  # a site (x itself), or a constant
        L, S = len(model.exchanges), len(model.streams)
        n = max(i for _, _, i in self.roles.values()) + 1
        self.sites = list(self.roles)
        self.means = {"connection": Mean(L, S), "output": Mean(L, n, S), "incoming": Mean(L, n, S)}

    def see(self, name: str, value: Tensor) -> None:
        role, l, i = self.roles[name]
        value = stream_major(value)
        norm = torch.linalg.vector_norm(value, dim=-1)
        match role:
            case "x":
                self.x, self.x_norm = value, norm
                self.z = value
                if isinstance(self.first, Tensor):
                    self.z = self.first.float()[:, None, None].expand_as(value)
                self.z_norm = torch.linalg.vector_norm(self.z, dim=-1)
            case "c":
                self.sums["connection"][:, l] = token_sum(cosine(value, self.x, norm, self.x_norm))
            case "y":
                self.y, self.y_norm = value, norm
                self.before = token_sum(cosine(value, self.z, norm, self.z_norm))
            case "z":
                after = token_sum(cosine(value, self.y, norm, self.y_norm))
                self.sums["incoming"][:, l, i] = self.before
                self.sums["output"][:, l, i] = after
                self.before, self.z, self.z_norm = after, value, norm


def alignment(model: LanguageModel, batches: Batches) -> Alignment:
    """Connection alignment and update–state alignment in one pass."""
    if not has_exchanges(model):
        raise UserError(f"alignment needs streams that exchange messages; {type(model).__name__} has none")
    return capture(model, batches, AlignmentSums(model))[0]


def cosine(a: Tensor, b: Tensor, a_norm: Tensor | None = None, b_norm: Tensor | None = None) -> Tensor:
    """Cosines over the last axis, with the lengths if they are known already; 0 where a vector is zero."""
    a_norm = torch.linalg.vector_norm(a, dim=-1) if a_norm is None else a_norm
    b_norm = torch.linalg.vector_norm(b, dim=-1) if b_norm is None else b_norm
    return torch.linalg.vecdot(a, b) / (a_norm * b_norm).clamp(min=1e-12)


def token_sum(values: Tensor) -> Tensor:
    """[S, B, T] → per-sequence sums [B, S]."""
    return values.sum(-1).T


register(Analysis(Alignment, lambda request: AlignmentSums(request.model), has_exchanges))
