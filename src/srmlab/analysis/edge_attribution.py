"""Edge attribution: how much each edge between streams contributes to the logit of one prediction.

The streams of a token interact only in the connection. With the patterns frozen, what a target receives is
exactly a sum over sources and heads, pattern × value × output; so with g the gradient of the logit with
respect to a weight of the pattern,

    edge[source → target] = weight · g

is exactly that message's part of (gradient of the logit) · (what the target receives): over sources and heads
the edges into a target sum to it. What happens to a message after that, through norms, MLPs and attention
over tokens, is not linear: there the gradient is an approximation, and an edge is an estimate of how much the
logit would drop without it, to be checked by cutting it. Between the layers

    node[stream] = gradient · (state − mean state)

is the same estimate for mean-ablating the stream's state at this token. The last states are read out
linearly: `direct` sums to the logit exactly. All logits are relative to the vocabulary mean.

    >>> import srmlab, torch
    >>> model = srmlab.build(srmlab.preset("srm-nano"))
    >>> found = edge_attribution(model, torch.arange(12), token=11)
    >>> found.edges.shape                               # layer, head, target, source
    torch.Size([8, 2, 8, 8])
    >>> bool(abs(found.direct.sum() - found.logit) < 1e-4)
    True
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from srmlab.analysis.interventions import Hook, within
from srmlab.analysis.readout import Readout
from srmlab.analysis.registry import pattern_sites, streams_of
from srmlab.analysis.states import StateMeans, points_of, state_means
from srmlab.models import HookPoint, LanguageModel, gradient_everywhere


@dataclass(frozen=True)
class EdgeAttribution:
    """Of the prediction of `target` after `token`, in logits."""

    token: int
    target: int
    logit: float  # above the vocabulary's mean
    edges: Tensor  # [L, H, target, source] at the token itself
    earlier: Tensor  # [L, H, target, source] the same summed over earlier tokens; of a board, all other cells
    nodes: Tensor  # [P, S] the state at each point in depth, at the token
    direct: Tensor  # [S] what each stream writes to the logit; adds up to it


def edge_attribution(
    model: LanguageModel,
    tokens: Tensor,
    token: int,
    target: int | None = None,
    means: StateMeans | None = None,
    hooks: Sequence[Hook] = (),
) -> EdgeAttribution:
    """What the logit of `target` (by default the likeliest) after `token` of the prompt `tokens` [T] owes to
    every edge. `means` are the mean states, by default the prompt's own; `hooks` intervene while it runs."""
    model = streams_of(model, "edge_attribution")
    sites = pattern_sites(model, "edge_attribution")
    within("token", token, len(tokens))
    if target is not None:
        within("target", target, model.config.vocab_size)
    tokens = (tokens[: token + 1] if model.config.causal else tokens).to(model.device)  # what can matter
    here = token + model.config.puzzle_positions  # a board has places before its cells
    means = means or state_means(model, [tokens[None]])
    points = points_of(model)
    weights: dict[str, Tensor] = {}
    states: dict[str, Tensor] = {}

    def keep_pattern(value: Tensor, hook: HookPoint) -> Tensor:
        # a leaf: no gradient goes back into what the weights were computed from
        weights[hook.name] = value.detach().clone().requires_grad_()
        return weights[hook.name]

    def keep_state(value: Tensor, hook: HookPoint) -> None:
        states[hook.name] = value

    kept = [*((site, keep_pattern) for site in sites), *((point, keep_state) for point in points)]
    with model.evaluating(), torch.enable_grad(), gradient_everywhere(), model.hooks([*hooks, *kept]):
        logits = model(tokens[None])[0, token].float()
        target = int(logits.argmax()) if target is None else target
        centred = logits[target] - logits.mean()
    slopes = torch.autograd.grad(centred, [*(weights[s] for s in sites), *(states[p] for p in points)])
    with torch.no_grad():
        pairs = zip(sites, slopes, strict=False)
        edges = torch.stack([(weights[site] * slope)[0] for site, slope in pairs])  # [L, T, H, S, S]
        moved = [states[p][0, here] - means.at(p, model.device) for p in points]  # [S, D] each
        at = torch.stack([slope[0, here] for slope in slopes[len(sites) :]])  # [P, S, D]
        nodes = (torch.stack(moved) * at).sum(-1)  # of a model in half precision, too
        read = Readout(model)
        direction = read.unembedding[target] - read.unembedding.mean(0)
        direct = read.parts(states[points[-1]][0, here][:, None, None])[:, 0, 0] @ direction
    elsewhere = edges[:, :here].sum(1) + edges[:, here + 1 :].sum(1)
    logit = float(centred.detach())
    return EdgeAttribution(token, target, logit, edges[:, here], elsewhere, nodes, direct)
