"""What early exit costs: loss against FLOP, threshold by threshold, for each of the model's exit rules.

Every token stops at the first level at which the rule says so (see `models.exit`), and is read out there. All
levels are computed once and the rules are applied afterwards, so that many thresholds cost one pass. Keys and
values are therefore those of the full pass; in decoding, those of skipped levels are copies of the last
computed one's, which `srmlab bench exit` measures.

    >>> import srmlab, torch
    >>> model = srmlab.build(srmlab.preset("ouro-nano", blocks=1, vocab_size=64))
    >>> from srmlab.data import Batch
    >>> tokens = torch.arange(32).view(2, 16)
    >>> found = spending(model, [Batch(tokens, tokens.roll(-1, 1))])
    >>> found[0].rule, found[0].levels           # the full model comes first
    ('full', 4.0)
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from srmlab.data import Batch
from srmlab.errors import UserError
from srmlab.models import LanguageModel
from srmlab.models.exit import moved
from srmlab.models.loss import token_losses

THRESHOLDS = {
    "change": (0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8),
    "gate": (0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95),
    "kl": (1e-3, 1e-2, 0.03, 0.1, 0.3, 1.0),
    "entropy": (1e-3, 1e-2, 0.03, 0.1, 0.3, 1.0),
}


@dataclass(frozen=True)
class Spent:
    rule: str  # "full", "fixed" (all tokens at one depth), or a rule of early exit
    threshold: float  # the depth, of "fixed"
    levels: float  # computed, mean over tokens
    flops: float  # of a forward pass, per token
    loss: float  # nats per token


@torch.no_grad()
def spending(model: LanguageModel, batches: Iterable[Batch]) -> list[Spent]:
    """The full model, every lesser depth, and every threshold of every rule; the full model alone where there
    is no early exit.
    """
    try:
        model.check_exit()
        rules = model.exit_rules
    except UserError:
        rules = ()
    computed: list[Tensor] = []  # of every batch, [levels, tokens that count]: whether by routing each was
    losses: list[Tensor] = []  # of every batch, [levels, tokens that count]
    scores: dict[str, list[Tensor]] = {rule: [] for rule in rules}
    with model.evaluating():
        for batch in batches:
            batch = batch.to(model.device)
            read = levels_of(model, batch, rules)
            counted = batch.counted.to(model.device)
            losses.append(read["loss"][:, counted])
            if model.route_sites:
                computed.append(routed(model, batch)[:, counted])
            for rule in rules:
                scores[rule].append(read[rule][:, counted])
    loss = torch.cat(losses, dim=1)
    flops = torch.tensor(level_flops(model, bool(rules)), dtype=torch.float64)
    last = len(loss) - 1
    used, cost = float(model.depth), float(flops[-1])
    if computed:  # what routing really ran
        shares = torch.cat(computed, dim=1).double().mean(1)
        used, cost = float(shares.sum()), model.routed_flops(model.config.context, shares.tolist())
    found = [Spent("full", 0.0, used, cost, float(loss[-1].mean()))]
    if rules:
        found += [Spent("fixed", d + 1, d + 1, float(flops[d]), float(loss[d].mean())) for d in range(last)]
    for rule in rules:
        score = torch.cat(scores[rule], dim=1)
        for threshold in THRESHOLDS[rule]:
            stops = score >= threshold if rule == "gate" else score < threshold
            stops[-1] = True
            level = stops.int().argmax(0)  # the first that stops
            chosen = loss.gather(0, level[None])[0]
            mean_flops = float(flops[level.cpu()].mean())
            found.append(
                Spent(rule, threshold, float(level.double().mean()) + 1, mean_flops, float(chosen.mean()))
            )
    return found


def routed(model: LanguageModel, batch: Batch) -> Tensor:
    """[levels, B, T] Whether each level was computed for a token."""
    _, cache = model.run_with_cache(batch.tokens, list(model.route_sites), documents=batch.documents)
    return torch.stack([cache[site].squeeze(-1) != 0 for site in model.route_sites])


def level_flops(model: LanguageModel, exits: bool) -> list[float]:
    """Forward FLOP per token if the model stops after each level."""
    context = model.config.context
    if not exits:
        return [float(model.flops_per_token(context).forward)]
    return [
        float(model.at_depth(depth).flops_per_token(context).forward) for depth in range(1, model.depth + 1)
    ]


def levels_of(model: LanguageModel, batch: Batch, rules: tuple[str, ...]) -> dict[str, Tensor]:
    """By name, [levels, B, T]: the loss read out after every level, and what each rule decides by."""
    points = model.points[: model.depth] if rules else model.points[-1:]
    sites = [site for point in points for site in (*point.sites, *point.needs)]
    gates = model.exit_sites if "gate" in rules else ()
    _, cache = model.run_with_cache(batch.tokens, [*sites, *gates], documents=batch.documents)
    rows: dict[str, list[Tensor]] = {name: [] for name in ("loss", *rules)}
    going = torch.ones(batch.tokens.shape, device=model.device)
    state_before: Tensor | None = None
    log_p: Tensor | None = None
    for level, point in enumerate(points):
        finished = model.finish(point, cache, batch.documents) if rules else model.state_at(point, cache)
        embedding = model.read_out(finished)
        rows["loss"].append(token_losses(embedding, model.unembedding, batch.targets))
        state = model.state_at(point, cache).flatten(2)  # [B, T, S·D]
        if "change" in rules:
            change = torch.full_like(going, torch.inf)
            if state_before is not None:
                change = (state - state_before).norm(dim=-1) / state.norm(dim=-1)
            rows["change"].append(change)
        if gates:
            going = going * (1 - cache[gates[level]].squeeze(-1))
            rows["gate"].append(1 - going)
        if by_prediction := [rule for rule in rules if rule in ("kl", "entropy")]:
            was, log_p = log_p, (embedding @ model.unembedding.T).float().log_softmax(-1)
            for rule in by_prediction:
                far = torch.full_like(going, torch.inf) if was is None else moved(rule, was, log_p)
                rows[rule].append(far)
        state_before = state
    return {name: torch.stack(values) for name, values in rows.items()}
