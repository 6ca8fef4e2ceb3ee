"""Huginn's random start and its exits."""

from __future__ import annotations

import pytest
import torch
from small_models import HUGINN_TINY, small, some_tokens

from srmlab.models import Exit, build
from srmlab.models.huginn import huginn_nano

DEEP = HUGINN_TINY.replace(steps=6)


def test_training_starts_every_token_elsewhere_and_evaluation_all_in_one_place():
    model, like = small(DEEP), torch.zeros(2, 5, DEEP.dim, dtype=torch.float64)
    assert torch.equal(model.first_state(like), model.start.expand_as(like))
    model.train()
    first, second = model.first_state(like), model.first_state(like)
    assert not torch.equal(first, second)
    assert not torch.equal(first[0, 0], first[0, 1])
    wide = model.first_state(torch.zeros(64, 64, DEEP.dim))
    assert wide.std() == pytest.approx((2 / 5) ** 0.5, rel=0.02)


@torch.no_grad()
def test_weights_begin_at_the_published_scale():
    """Std sqrt(2 / 5·dim) wherever something is read, whatever its width; what is added is smaller by the
    root of how often.
    """
    config = huginn_nano().replace(mlp_dim=512)
    model, std = build(config), (2 / (5 * config.dim)) ** 0.5 * 0.88  # of a normal cut at two deviations
    depth = config.prelude + config.coda + config.core * config.steps
    for block in model.core_blocks:
        for linear in (block.qkv, block.mlp_up):
            assert float(linear.weight.std()) == pytest.approx(std, rel=0.03)
        for linear in (block.attn_out, block.mlp_down):
            assert float(linear.weight.std()) == pytest.approx(std / (2 * depth) ** 0.5, rel=0.03)
    assert float(model.adapter.weight.std()) == pytest.approx(std, rel=0.03)
    assert float(model.embedding.weight.std()) == pytest.approx(std, rel=0.03)


def test_the_draws_are_those_of_the_seed():
    one, two, other = (small(DEEP.replace(start_seed=seed)).train() for seed in (3, 3, 4))
    tokens = some_tokens()
    assert torch.equal(one(tokens), two(tokens))
    assert not torch.allclose(one(tokens), other(tokens))
    assert DEEP.seeded(5).start_seed == 5


def row_by_rule(model, tokens, rule: str, tolerance: float) -> tuple[torch.Tensor, int]:
    """One row of one token, the slow way: the model of every depth, until two of them agree."""
    V = model.config.vocab_size
    before = torch.full((1, 1, V), 1 / V, dtype=torch.float64).log()
    for depth in range(1, model.depth + 1):
        logits = model.at_depth(depth)(tokens)
        now = logits.log_softmax(-1)
        kl = (now.exp() * (now - before)).sum()
        entropy = ((now.exp() * now).sum() - (before.exp() * before).sum()).abs()
        if (kl if rule == "kl" else entropy) < tolerance:
            break
        before = now
    return logits, depth


@pytest.mark.parametrize("rule", ["kl", "entropy"])
@pytest.mark.parametrize("tolerance", [0.0, 0.02, 0.1, 0.5, 100.0])
@torch.no_grad()
def test_a_row_stops_where_its_distribution_no_longer_changes(rule, tolerance):
    model, tokens = small(DEEP), some_tokens(4, 1)
    exit = Exit(tolerance, by=rule)
    ours = model(tokens, cache=model.new_cache(), exit=exit)
    rows = [row_by_rule(model, row[None], rule, tolerance) for row in tokens]
    torch.testing.assert_close(ours, torch.cat([logits for logits, _ in rows]), rtol=0, atol=1e-10)
    assert exit.levels == sum(depth for _, depth in rows)


@pytest.mark.parametrize("rule", ["kl", "entropy"])
@torch.no_grad()
def test_rows_that_decode_together_stop_as_each_does_alone(rule):
    model, tokens = small(DEEP), some_tokens(4, 8)

    def read(tokens):
        exit, cache = Exit(0.05, by=rule), model.new_cache()
        return torch.cat([model(column, cache=cache, exit=exit) for column in tokens.split(1, 1)], 1), exit

    together, exit = read(tokens)
    alone = [read(row[None]) for row in tokens]
    torch.testing.assert_close(together, torch.cat([logits for logits, _ in alone]), rtol=0, atol=1e-10)
    assert exit.levels == sum(one.levels for _, one in alone)
    assert len({one.levels for _, one in alone}) > 1


@torch.no_grad()
def test_peeking_through_the_coda_leaves_the_cache_as_it_was():
    """With a tolerance that nothing meets, decoding is the full pass, though every step was read out."""
    model, tokens = small(DEEP), some_tokens(2, 7)
    for rule in ("kl", "entropy"):
        exit, cache = Exit(0.0, by=rule), model.new_cache()
        pieces = [model(chunk, cache=cache, exit=exit) for chunk in tokens.split([3, 1, 2, 1], dim=1)]
        torch.testing.assert_close(torch.cat(pieces, 1), model(tokens), rtol=0, atol=1e-10)
        assert exit.mean_levels == 6
