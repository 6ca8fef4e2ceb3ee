"""An attribution graph the other way round: what one source alone does to everything after it, forwards.

Every pattern (over tokens and over streams) and every norm's scale is what it was on the prompt; only what
the source writes enters, and all else that enters is 0. `attribute` goes backwards from the targets instead.

Axes: N source, T token, S stream, D dim.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

import srmlab
from srmlab.dictionaries import Transcoders
from srmlab.models.connection import StreamAttention
from srmlab.models.step import Step
from srmlab.models.streams import RMSNorm


class Held:
    """An SRM on one prompt [T], with what is held of its pass."""

    def __init__(self, model: srmlab.SRM, transcoders: Transcoders, tokens: Tensor) -> None:
        self.model = model
        with torch.no_grad():
            _, cache = model.run_with_cache(tokens[None], model.site_names)
        self.was = {site: value[0] for site, value in cache.items()}
        self.skips = {site: member.skip for member in transcoders for site in member.writes}

    def norm(self, x: Tensor, was: Tensor, module: RMSNorm) -> Tensor:
        x = x / torch.sqrt((was * was).mean(-1, keepdim=True) + module.eps)
        return x if module.weight is None else x * module.weight[:, 0, 0]

    def step(self, u: Tensor, step: Step, name: str, mlp: Mapping[str, Tensor]) -> Tensor:
        self.read[f"{name}.in"] = u
        written = mlp[f"{name}.mlp"]
        skip = self.skips.get(f"{name}.mlp")
        if skip is not None:
            written = written + torch.stack([u[:, :, s] @ skip[s] for s in range(len(skip))], 2)
        attended = torch.zeros_like(u)
        heads, K = step.heads, self.model.config.head_dim
        for s in range(u.shape[2]):
            value = (u[:, :, s] @ step.qkv.weight[s])[..., 2 * heads * K :]
            for h in range(heads):
                seen = self.was[f"{name}.attention.weights"][s, h] @ value[..., h * K : (h + 1) * K]
                attended[:, :, s] += seen @ step.attn_out.weight[s, h * K : (h + 1) * K]
        was = sum(self.was[f"{name}.{part}"] for part in ("in", "attn", "mlp"))
        assert isinstance(was, Tensor)
        return self.norm(u + attended + written, was, step.norm)

    def connection(self, z: Tensor, name: str) -> Tensor:
        weights, H, K = (
            self.model.layer.connection,
            self.model.config.stream_heads,
            self.model.config.head_dim,
        )
        assert isinstance(weights, StreamAttention)
        given = torch.zeros_like(z)
        for source in range(z.shape[2]):
            value = (z[:, :, source] @ weights.qkv.weight[source])[..., 2 * H * K :]
            for target in range(z.shape[2]):
                for h in range(H):
                    rows = slice(h * K, (h + 1) * K)
                    share = self.was[f"{name}.pattern"][:, h, target, source, None]
                    given[:, :, target] += share * (value[..., rows] @ weights.out.weight[target, rows])
        return given

    def __call__(self, x: Tensor, z: Tensor, mlp: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], Tensor]:
        """Token input and first state [N, T, S, D], and what is added to every MLP's site → what every step
        reads, and the output's embedding."""
        model, config = self.model, self.model.config
        self.read: dict[str, Tensor] = {}
        for i, step in enumerate(model.pre):
            x = self.step(x, step, f"pre.{i}", mlp)
        x_was = self.was[model.input_site]
        z, y = x if config.z0 == "input" else z, x
        for t, order in enumerate(model.evaluation_orders):
            c, c_was = self.connection(z, f"layers.{t}.connection"), self.was[f"layers.{t}.connection.out"]
            norm = model.layer.norm
            if config.update == "norm(c + x)":
                y = self.norm(c + x, c_was + x_was, norm)
            else:
                assert config.update == "norm(c) + norm(x)"
                y = self.norm(c, c_was, norm) + self.norm(x, x_was, norm)
            for i, number in enumerate(order):
                z = self.step(z + y, model.layer.steps[number], f"layers.{t}.steps.{i}", mlp)
        for i, step in enumerate(model.post):
            z = self.step(z + y if config.post_input == "state+update" else z, step, f"post.{i}", mlp)
        return self.read, z.flatten(2) @ model.output_function.from_streams.weight.T


@torch.no_grad()
def edges(model: srmlab.SRM, transcoders: Transcoders, graph) -> tuple[Tensor, Tensor]:
    """The graph's edges [1 + N, nodes] and constants [1 + N], from its list of active features."""
    held, a = Held(model, transcoders, torch.tensor(graph.tokens)), graph.active
    members = [transcoders[name] for name in graph.members]
    T, S, D = held.was["input.streams"].shape
    rows = graph.nodes + 1  # the last is what does not depend on the prompt
    x, z = torch.zeros(rows, T, S, D).double(), torch.zeros(rows, T, S, D).double()
    mlp = {site: torch.zeros(rows, T, S, D).double() for site in model.site_names if site.endswith(".mlp")}
    calls = [site for site in mlp if site.startswith("layers.")]
    for n in range(len(a)):
        member, s, f = members[a.call[n]], a.stream[n], a.feature[n]
        for c in range(a.call[n], len(calls)):
            ahead = graph.levels[c] - graph.levels[a.call[n]]
            later = member.config.reach > 1 and ahead < member.config.reach
            if members[c] is member and (c == a.call[n] or later):
                writes = member.directions if ahead == 0 else member.later[ahead - 1]
                mlp[calls[c]][n, a.token[n], s] = a.activation[n] * writes[s, f]
    for c, site in enumerate(calls):
        mlp[site][-1] = members[c].target
    n = len(a)
    for place in [*calls, *(site for site in mlp if site not in calls)]:
        error = held.was[place] - mlp[place].sum(0)
        skip = held.skips.get(place)
        if skip is not None:
            error -= torch.einsum("tsd,sde->tse", held.was[place.removesuffix("mlp") + "in"], skip)
        for t in range(T):
            for s in range(S):
                mlp[place][n, t, s] = error[t, s]
                n += 1
    for t in range(T):
        x[n + t, t] = held.was["input.streams"][t]
    z[-1] = model.z0
    read, embedding = held(x, z, mlp)
    U, target = model.unembedding, graph.target
    against = U.mean(0) if target.against is None else U[target.against]
    found = [embedding[:, target.position] @ (U[target.token] - against)]
    for n in graph.expanded:
        member, s, f = members[a.call[n]], a.stream[n], a.feature[n]
        reads = member.encoder[s, :, f]
        into = read[calls[a.call[n]].removesuffix("mlp") + "in"][:, a.token[n], s] @ reads
        into[-1] += member.bias[s, f] - member.centre[s] @ reads
        found.append(into)
    table = torch.stack(found)
    return table[:, :-1], table[:, -1]
