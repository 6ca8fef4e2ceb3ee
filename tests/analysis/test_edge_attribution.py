"""Edge attribution: by the slow reference, what adds up, and what cutting one really does."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from constructed import build

import srmlab
from oracle.messages import messages
from srmlab.analysis import cut_edges, edge_attribution
from srmlab.errors import UserError

TOKENS = torch.tensor([3, 1, 4, 1, 5, 9])
LAST = len(TOKENS) - 1


def held(model, tokens, changes):
    """The pass with all patterns as they are without `changes`, whatever is changed before them."""
    sites = [exchange.pattern for exchange in model.exchanges]
    with torch.no_grad():
        _, cache = model.run_with_cache(tokens[None], names_filter=sites)
    kept = [(site, lambda _, hook: cache[hook.name]) for site in sites]
    return model.hooks([*kept, *changes])


@pytest.mark.parametrize("post_steps", [0, 1])
def test_an_edge_is_the_gradient_on_its_message_by_the_slow_reference(post_steps):
    model = build(post_steps=post_steps)
    found = edge_attribution(model, TOKENS, LAST)
    whole = model.at_depth(model.depth, model.depth)
    given = {}

    def keep(value, hook):
        given[hook.name] = value
        value.retain_grad()

    with torch.enable_grad(), held(whole, TOKENS, [(e.message, keep) for e in whole.exchanges]):
        logits = whole(TOKENS[None])[0, LAST]
        (logits[found.target] - logits.mean()).backward()
    _, cache = model.run_with_cache(TOKENS[None])
    for layer in (1, model.depth - 1):
        exchange = model.exchanges[layer]
        z, pattern = cache[f"layers.{layer - 1}.out"][0, LAST], cache[exchange.pattern or ""][0, LAST]
        parts = messages(model, z, pattern).detach()
        torch.testing.assert_close(parts.sum((0, 2)), cache[exchange.message][0, LAST], atol=1e-5, rtol=1e-4)
        slope = given[exchange.message].grad[0, LAST]  # [S, D]
        expected = (parts * slope[None, :, None]).sum(-1)
        torch.testing.assert_close(found.edges[layer], expected, atol=1e-5, rtol=1e-3)


def test_what_the_streams_write_adds_up_to_the_logit():
    model = build(post_steps=1)
    found = edge_attribution(model, TOKENS, 3, target=7)
    logits = model(TOKENS[None])[0, 3].detach()
    assert found.logit == pytest.approx(float(logits[7] - logits.mean()), abs=1e-5)
    assert float(found.direct.sum()) == pytest.approx(found.logit, abs=1e-5)
    assert found.nodes.shape == (len(model.points), model.config.streams)


@pytest.mark.parametrize("cell", [1, 15])
def test_on_a_board_all_cells_matter_and_what_the_streams_write_adds_up_to_the_cells_logit(cell):
    model = srmlab.load("sudoku")
    board = torch.tensor([3, 1, 4, 2, 1, 2, 3, 1, 1, 1, 1, 3, 5, 3, 2, 4])
    logits = model(board[None])[0, cell].detach()
    found = edge_attribution(model, board, cell)
    assert found.target == int(logits.argmax())
    assert found.logit == pytest.approx(float(logits.max() - logits.mean()), rel=1e-4)
    assert float(found.direct.sum()) == pytest.approx(found.logit, rel=1e-4)


def test_a_small_change_of_a_weight_changes_the_logit_by_the_edge():
    model = build().double()
    found = edge_attribution(model, TOKENS, LAST)

    def logit(scale: float, layer: int, token: int) -> float:
        def grow(pattern, hook):  # noqa: ARG001
            pattern = pattern.clone()
            pattern[0, token, 1, 2, 0] *= scale
            return pattern

        with torch.no_grad(), held(model, TOKENS, [(model.exchanges[layer].pattern, grow)]):
            logits = model(TOKENS[None])[0, LAST]
        return float(logits[found.target] - logits.mean())

    slope = (logit(1.001, 2, LAST) - logit(0.999, 2, LAST)) / 0.002
    assert float(found.edges[2, 1, 2, 0]) == pytest.approx(slope, rel=1e-3)
    before = sum((logit(1.001, 1, t) - logit(0.999, 1, t)) / 0.002 for t in range(LAST))
    assert float(found.earlier[1, 1, 2, 0]) == pytest.approx(before, rel=1e-3)


def test_an_edge_that_is_cut_owes_nothing_and_the_model_is_left_as_it_was():
    model = build()
    before = model(TOKENS[None]).detach()
    cut = cut_edges(model, [(1, 0, 2, 1, None)], renormalise=False)
    assert float(edge_attribution(model, TOKENS, LAST).edges[1, 0, 2, 1]) != 0
    assert float(edge_attribution(model, TOKENS, LAST, hooks=cut).edges[1, 0, 2, 1]) == 0
    assert torch.equal(model(TOKENS[None]), before)
    assert all(weight.grad is None for weight in model.parameters())


def test_an_edge_says_what_cutting_it_does_on_the_shipped_model():
    model = srmlab.load("srm-nano")
    tokens = torch.tensor(srmlab.load_tokenizer("srm-nano").encode("My fellow citizens, it is"))
    last = len(tokens) - 1
    found = edge_attribution(model, tokens, last)
    best = found.edges.flatten().abs().topk(12).indices.tolist()

    def logit(hooks) -> float:
        with torch.no_grad():
            logits = model.run_with_hooks(tokens[None], fwd_hooks=hooks)[0, last]
        return float(logits[found.target] - logits.mean())

    whole = logit([])
    expected, measured = [], []
    for place in best:
        layer, head, target, source = map(int, np.unravel_index(place, found.edges.shape))
        expected.append(float(found.edges[layer, head, target, source]))
        edge = (layer, head, target, source, last)
        measured.append(whole - logit(cut_edges(model, [edge], renormalise=False)))
    assert np.corrcoef(expected, measured)[0, 1] > 0.8
    shuffled = np.random.default_rng(0).permutation(measured)
    assert abs(np.corrcoef(expected, shuffled)[0, 1]) < 0.6


def test_it_is_refused_where_it_is_not_defined():
    with pytest.raises(UserError, match="pattern"):
        edge_attribution(build(connection="mixing"), TOKENS, 0)
    with pytest.raises(UserError, match=r"token 6: must be 0 to 5"):
        edge_attribution(build(), TOKENS, 6)
    gpt2 = srmlab.build(srmlab.preset("gpt2", vocab_size=24, dim=16, blocks=1, heads=2, mlp_dim=16))
    with pytest.raises(UserError, match="edge_attribution"):
        edge_attribution(gpt2, TOKENS, 0)
