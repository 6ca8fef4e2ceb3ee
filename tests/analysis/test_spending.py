"""What early exit costs, against one token at a time that stops where its rule says; and what routing ran."""

from __future__ import annotations

import pytest
import torch

import srmlab
from models.small_models import HUGINN_TINY, OURO_TINY, SRM_TINY, VOCAB, small
from srmlab.analysis.spending import spending
from srmlab.data import Batch

POST = SRM_TINY.replace(post_steps=1, post_input="state+update")


def batches() -> list[Batch]:
    draw = torch.Generator().manual_seed(2)
    shapes = ((3, 6), (2, 4))
    tokens = [torch.randint(VOCAB, shape, generator=draw) for shape in shapes]
    targets = [torch.randint(VOCAB, shape, generator=draw) for shape in shapes]
    targets[0][0, :3] = -100
    return [Batch(*both) for both in zip(tokens, targets, strict=True)]


def stops(rule: str, threshold: float, level: int, states, log_p, gates) -> bool:
    """Whether a token stops at a level, by the definitions of the rules."""
    if rule == "gate":
        going = 1.0
        for gate in gates[: level + 1]:
            going *= 1 - float(gate)
        return 1 - going >= threshold
    if level == 0:
        return False
    now, was, p, q = states[level], states[level - 1], log_p[level], log_p[level - 1]
    found = {
        "change": (now - was).norm() / now.norm(),
        "kl": (p.exp() * (p - q)).sum(),
        "entropy": ((p.exp() * p).sum() - (q.exp() * q).sum()).abs(),
    }[rule]
    return float(found) < threshold


@torch.no_grad()
@pytest.mark.parametrize("config", [POST, OURO_TINY, HUGINN_TINY], ids=lambda config: config.architecture)
def test_each_token_stops_where_its_rule_says(config):
    model = small(config)
    depth, text = model.depth, batches()
    shallow = [model.at_depth(d) for d in range(1, depth + 1)]
    flops = [one.flops_per_token(config.context).forward for one in shallow]
    tokens = []  # of each that counts: its losses, states, log-probabilities and gates, level by level
    for batch in text:
        logits = torch.stack([one(batch.tokens) for one in shallow]).log_softmax(-1)
        sites = [site for point in model.points[:depth] for site in point.sites]
        _, cache = model.run_with_cache(batch.tokens, [*sites, *model.exit_sites])
        states = [model.state_at(point, cache).flatten(2) for point in model.points[:depth]]
        for b, t in batch.counted.nonzero().tolist():
            losses = -logits[:, b, t, batch.targets[b, t]]
            gates = [cache[site][b, t] for site in model.exit_sites]
            tokens.append((losses, [state[b, t] for state in states], logits[:, b, t], gates))
    found = spending(model, text)
    assert {one.rule for one in found} == {"full", "fixed", *model.exit_rules}
    for one in found:
        ends = []
        for _, *seen in tokens:
            if one.rule in ("full", "fixed"):
                ends.append(int(one.threshold or depth) - 1)
            else:
                levels = range(depth - 1)
                ends.append(next((d for d in levels if stops(one.rule, one.threshold, d, *seen)), depth - 1))
        losses = [float(token[0][end]) for token, end in zip(tokens, ends, strict=True)]
        count = len(tokens)
        assert one.loss == pytest.approx(sum(losses) / count, abs=1e-6)
        assert one.levels == pytest.approx(sum(ends) / count + 1)
        assert one.flops == pytest.approx(sum(flops[end] for end in ends) / count)


@torch.no_grad()
def test_what_routing_ran_is_a_mean_over_tokens_whatever_the_batches():
    model = srmlab.build(srmlab.preset("mor-nano", vocab_size=VOCAB, context=16)).eval()
    for router in model.route_sites:  # a gate that is open at some tokens only
        model.sites[router].register_forward_hook(
            lambda _m, _i, out: out * (torch.arange(out.shape[1]) % 3 > 0)[:, None]
        )
    one = spending(model, batches())[0]
    counts = torch.zeros(len(model.route_sites))
    for batch in batches():
        _, cache = model.run_with_cache(batch.tokens, list(model.route_sites))
        counts += torch.stack([(cache[site][..., 0] != 0)[batch.counted].sum() for site in model.route_sites])
    shares = counts / sum(int(batch.counted.sum()) for batch in batches())
    assert one.levels == pytest.approx(float(shares.sum()))
    assert one.flops == pytest.approx(model.routed_flops(16, shares.tolist()))
