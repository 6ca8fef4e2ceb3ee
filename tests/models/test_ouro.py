"""Ouro's own ways of spending less: the gate's exit, and a cache that keeps the last loop's keys only."""

from __future__ import annotations

import pytest
import torch
from small_models import OURO_TINY, SRM_TINY, small, some_tokens

from srmlab.errors import UserError
from srmlab.models import Exit, LanguageModel, Ouro, generate
from srmlab.models.ouro import exit_probabilities


def with_a_gate(bias: float = -0.5) -> LanguageModel:
    """A gate that says something else for every token."""
    model = small(OURO_TINY.replace(loops=4))
    assert isinstance(model, Ouro)
    with torch.no_grad():
        model.gate.weight.copy_(torch.linspace(-1, 1, OURO_TINY.dim)[None])
        model.gate.bias.fill_(bias)
    return model


def test_the_probabilities_of_stopping_add_up_and_the_last_loop_takes_the_rest():
    stop = torch.tensor([[0.2, 1.0], [0.5, 0.3], [0.1, 0.9]])
    expected = torch.tensor([[0.2, 1.0], [0.4, 0.0], [0.4, 0.0]])
    torch.testing.assert_close(exit_probabilities(stop), expected)


@pytest.mark.parametrize("threshold", [0.1, 0.5, 0.7, 0.9, 1.0])
def test_decoding_stops_each_row_where_the_cumulated_probability_reaches_the_threshold(threshold):
    model, tokens = with_a_gate(), some_tokens(3, 1)  # one token: nothing cached, so the full pass tells
    _, cache = model.run_with_cache(tokens, names_filter=[*model.exit_sites, "loops.*.out"])
    exit = Exit(threshold)
    with torch.no_grad():
        logits = model(tokens, cache=model.new_cache(), exit=exit)
    levels = 0
    for row in range(3):
        stop = torch.stack([cache[site][row, 0, 0] for site in model.exit_sites])
        reached = exit_probabilities(stop).cumsum(0) >= threshold - 1e-12
        last = next((t for t in range(4) if reached[t]), 3)
        levels += last + 1
        expected = cache[f"loops.{last}.out"][row] @ model.unembedding.T
        torch.testing.assert_close(logits[row], expected, rtol=0, atol=1e-10)
    assert exit.levels == levels


def test_a_lower_threshold_computes_less():
    model, prompt = with_a_gate(), some_tokens(2, 3)
    used = []
    for threshold in (0.0, 0.5, 0.8, 1.0):
        exit = Exit(threshold, by="gate")
        generate(model, prompt, 8, seed=0, exit=exit)
        used.append(exit.mean_levels)
    assert used == sorted(used)
    assert used[0] == 1
    assert used[-1] == 4


def test_a_pass_over_many_tokens_goes_on_until_the_last_of_them_may_stop():
    model, tokens = with_a_gate(), some_tokens(2, 6)
    exit = Exit(0.6)
    with torch.no_grad():
        logits = model(tokens, exit=exit)
        shallow = model.at_depth(int(exit.mean_levels))(tokens)
    assert 1 < exit.mean_levels <= 4
    torch.testing.assert_close(logits, shallow, rtol=0, atol=1e-12)


# A cache of the last loop


def with_the_last_loops_keys(model: LanguageModel, tokens: torch.Tensor, prefill: int) -> torch.Tensor:
    """The slow way: a token's loops look at the last loop's keys and values of all tokens before it."""
    logits, kept = [], {}
    for start, end in [(0, prefill), *((t, t + 1) for t in range(prefill, tokens.shape[1]))]:
        seen: dict[str, torch.Tensor] = {}
        hooks = []
        for loop in range(model.config.loops):
            for b in range(model.config.blocks):
                for part in "kv":
                    site = f"loops.{loop}.blocks.{b}.attention.{part}"

                    def hook(value, hook, key=(b, part), seen=seen, start=start):  # puts the kept ones in
                        seen[hook.name] = value
                        if start:
                            value = torch.cat((kept[key], value[:, start:]), dim=1)
                        return value

                    hooks.append((site, hook))
        logits.append(model.run_with_hooks(tokens[:, :end], hooks)[:, start:])
        last = model.config.loops - 1
        for b in range(model.config.blocks):
            for part in "kv":
                new = seen[f"loops.{last}.blocks.{b}.attention.{part}"][:, start:]
                kept[b, part] = torch.cat((kept[b, part], new), dim=1) if start else new
    return torch.cat(logits, dim=1)


@pytest.mark.parametrize("prefill", [1, 4])
def test_a_cache_with_reuse_is_the_slow_way_and_a_loops_share_of_the_memory(prefill):
    model, tokens = small(OURO_TINY), some_tokens(2, 8)
    cache, full = model.new_cache(reuse=True), model.new_cache()
    with torch.no_grad():
        expected = with_the_last_loops_keys(model, tokens, prefill)
        chunks = tokens.split([prefill] + [1] * (8 - prefill), dim=1)
        ours = torch.cat([model(chunk, cache=cache) for chunk in chunks], dim=1)
        model(tokens, cache=full)
        assert not torch.allclose(ours, model(tokens), atol=1e-4)  # it is not the full pass
    torch.testing.assert_close(ours, expected, rtol=0, atol=1e-10)
    assert cache.length == 8
    assert cache.nbytes * OURO_TINY.loops == full.nbytes


def test_generation_can_reuse_the_cache():
    model, prompt = small(OURO_TINY), some_tokens(2, 3)
    assert generate(model, prompt, 8, seed=0, reuse_cache=True).shape == (2, 11)


def test_reuse_without_exit_is_refused_where_it_is_not_defined():
    with pytest.raises(UserError, match="srm reuses its cache with early exit only: set exit too"):
        generate(small(SRM_TINY), some_tokens(), 2, reuse_cache=True)


def test_what_training_minimises_takes_targets_and_nothing_of_decoding():
    model = small(OURO_TINY)
    with pytest.raises(UserError, match="progress is for training: give targets"):
        model(some_tokens(), progress=0.5)
    with pytest.raises(UserError, match="progress is for training"):
        model(some_tokens(), some_tokens(), progress=0.5, exit=0.5)
