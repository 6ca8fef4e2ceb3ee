"""Models of puzzles: attention in both directions, a state that is carried, the published sizes."""

from __future__ import annotations

import pytest
import torch
from small_models import HRM_TINY, SMALL, SRM_TINY, TRANSFORMER_TINY, TRM_TINY

import srmlab
from srmlab.errors import UserError
from srmlab.models import LanguageModel, ModelConfig, build, config_from_dict
from srmlab.models.puzzle import log_stablemax

PUZZLE = {"causal": False, "puzzle_positions": 2, "puzzle_ids": 3}
MODELS: dict[str, ModelConfig] = {
    "srm": SRM_TINY.replace(**PUZZLE),
    "srm with post-steps": SRM_TINY.replace(**PUZZLE, post_steps=1, pre_steps=1),
    "hrm": HRM_TINY.replace(**PUZZLE),
    "trm": TRM_TINY.replace(**PUZZLE, mlp="swiglu", tied=False),
    "single": HRM_TINY.replace(**PUZZLE, high_blocks=0),
    "transformer": TRANSFORMER_TINY.replace(**PUZZLE),
    "srm, learned positions": SRM_TINY.replace(**PUZZLE, learned_positions=True, post_steps=1),
}
CELLS = 6


@pytest.fixture(params=MODELS)
def model(request) -> LanguageModel:
    return build(MODELS[request.param]).double().eval()


def boards(count: int = 3) -> torch.Tensor:
    return torch.randint(0, 13, (count, CELLS), generator=torch.Generator().manual_seed(0))


def test_every_cell_is_seen_by_every_other(model):
    """Whichever cell changes, the logits of all change."""
    for cell in range(CELLS):
        one, other = boards(1), boards(1)
        other[0, cell] = (other[0, cell] + 1) % 13
        moved = (model(one) - model(other)).abs().amax(-1)[0]
        assert bool((moved > 0).all())


def test_boards_do_not_see_each_other(model):
    torch.testing.assert_close(model(boards(3))[1:2], model(boards(3)[1:2]))


def test_a_segment_from_the_initial_state_is_the_first(model):
    first = model.segment(boards())
    S, D = model.initial_state.shape
    state = model.initial_state[:, None, None].expand(S, 3, CELLS + 2, D)
    again = model.segment(boards(), state=state, fresh=torch.ones(3, dtype=torch.bool))
    torch.testing.assert_close(first.logits, again.logits)
    torch.testing.assert_close(first.state, again.state)
    torch.testing.assert_close(first.logits, model(boards()))


def test_the_state_is_all_that_is_carried(model):
    first = model.segment(boards())
    second = model.segment(boards(), state=first.state)
    assert second.state.shape == first.state.shape
    assert (second.logits - first.logits).abs().max() > 1e-6
    alone = model.segment(boards()[1:2], state=first.state[:, 1:2])
    torch.testing.assert_close(alone.logits, second.logits[1:2])


def test_the_puzzle_is_read_before_the_board(model):
    with torch.no_grad():
        model.puzzle.rows.normal_(generator=torch.Generator().manual_seed(1))
    one, other = (model.segment(boards(1), puzzles=torch.tensor([puzzle])) for puzzle in (1, 2))
    assert (one.logits - other.logits).abs().max() > 1e-6
    assert one.logits.shape == (1, CELLS, 13)


def test_q_is_minus_five_everywhere_at_the_start(model):
    assert torch.equal(model.segment(boards()).q, torch.full((3, 2), -5.0, dtype=torch.float64))


def test_padding_is_not_looked_at_from_either_side():
    """A row with padding behind it has the logits that it has alone."""
    for name in ("srm", "hrm", "transformer"):
        model = build(MODELS[name]).double().eval()
        mask = torch.tensor([[1, 1, 1, 1, 0, 0]])
        torch.testing.assert_close(model(boards(1), attention_mask=mask)[:, :4], model(boards(1)[:, :4]))


def test_learned_positions_are_all_that_tells_one_cell_from_another():
    """Without them, whatever is done to the order of the cells is done to the logits."""
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    for name in ("srm", "hrm", "transformer"):
        model = build(MODELS[name].replace(learned_positions=True)).double().eval()
        assert (model(boards())[:, order] - model(boards()[:, order])).abs().max() > 1e-3
        with torch.no_grad():
            model.puzzle.places.zero_()
        torch.testing.assert_close(model(boards())[:, order], model(boards()[:, order]))


def test_learned_positions_begin_unlike_the_values():
    for name in ("srm", "hrm", "transformer"):
        model = build(MODELS[name].replace(learned_positions=True))
        places, values = model.puzzle.places.detach(), model.embedding.weight.detach()
        assert float(torch.cosine_similarity(places[:, None], values, dim=-1).abs().max()) < 0.99


def test_sites_watch_a_segment(model):
    state = model.segment(boards()).state
    seen: dict[str, torch.Tensor] = {}
    with model.hooks(
        [(["q", "output.embedding", "logits"], lambda value, hook: seen.update({hook.name: value}))]
    ):
        out = model.segment(boards(), state=state)
    plain = model.segment(boards(), state=state)
    assert torch.equal(seen["logits"], out.logits)
    assert torch.equal(seen["q"], out.q)
    assert seen["output.embedding"].shape[1] == CELLS + 2
    torch.testing.assert_close(out.logits, plain.logits)


def test_attention_weights_at_a_site_are_those_that_are_used(model):
    names = [name for name in model.site_names if name.endswith("attention.weights")]
    logits, cache = model.run_with_cache(boards(), names)
    torch.testing.assert_close(logits, model(boards()))
    for pattern in cache.values():
        torch.testing.assert_close(pattern.sum(-1), torch.ones_like(pattern[..., 0]))
        assert float(pattern.min()) > 0  # the first position looks at the last, too


def test_another_depth_is_on_the_same_weights():
    for name in ("srm", "hrm"):
        model = build(MODELS[name]).eval()
        torch.testing.assert_close(
            model.segment(boards(), depth=5).logits, model.at_depth(5).segment(boards()).logits
        )


def test_a_config_survives_its_dictionary_and_a_causal_one_says_nothing_new():
    for config in MODELS.values():
        assert config_from_dict(config.to_dict()) == config
    assert not {"causal", "puzzle_positions", "puzzle_ids"} & set(SRM_TINY.to_dict())


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (SMALL["gpt2"], "cannot carry its state"),
        (SRM_TINY.replace(z0="input"), "begins from a constant state"),
    ],
)
def test_what_has_no_state_to_carry_is_no_model_of_puzzles(config, message):
    with pytest.raises(UserError, match=message):
        build(config.replace(causal=False), device="meta")


@pytest.mark.parametrize(
    "ask",
    [
        lambda model: model.new_cache(),
        lambda model: model.generate(boards(), 2, use_cache=False, overflow="slide"),
        lambda model: model(boards(), return_type="loss"),
        lambda model: model(boards(), boards(), progress=0.5),
    ],
)
def test_a_model_of_puzzles_has_no_next_token(model, ask):
    with pytest.raises(UserError, match="use `srmlab solve`"):
        ask(model)


def test_a_causal_model_has_no_segments():
    with pytest.raises(UserError, match="causal = False"):
        build(SRM_TINY).segment(boards())


@pytest.mark.parametrize(
    ("preset", "parameters"),
    [
        ("hrm-sudoku", 27_275_266),  # published
        ("trm-sudoku", 5_028_866),  # "5M": docs/reasoning.md derives it
        ("trm-maze", 6_822_914),  # "7M"
        # embeddings, both maps of all streams; connection and step of each; positions, Q head
        ("srm-sudoku", 22 * 512 + 2 * 512 * 1536 + 8 * (8 * 192**2 + 2 * 192 * 768) + 82 * 512 + 1026),
        ("srm-maze", 6_345_730 - 5 * 2 * 512 + (901 - 82) * 512),
        ("srm-arc", 6_759_938 + 6 * 2 * 512),
        ("trm-arc", 6_822_914 + 6 * 2 * 512),  # six values more, embedded and unembedded
        ("hrm-maze", 27_275_266 - 5 * 2 * 512),  # a sudoku has eleven values, a maze six, ARC twelve
        ("hrm-arc", 27_275_266 + 2 * 512),
        *((f"{name}-sudoku-nano", 72_322) for name in ("srm", "hrm", "trm", "hrm1", "sr2", "loop")),
    ],
)
def test_the_published_sizes(preset, parameters):
    assert build(srmlab.preset(preset), device="meta").num_parameters() == parameters


def test_stablemax_is_a_distribution_that_keeps_the_order():
    logits = torch.tensor([[-30.0, -1.0, 0.0, 2.0, 500.0]])
    p = log_stablemax(logits).exp()
    assert p.dtype == torch.float64
    assert float(p.sum()) == pytest.approx(1, abs=1e-12)
    assert p.argsort().tolist() == logits.argsort().tolist()


def test_positions_are_learned_of_boards_alone():
    with pytest.raises(UserError, match="learned_positions = True: is for puzzles"):
        SRM_TINY.replace(learned_positions=True)


def test_an_mlp_over_positions_refuses_padding_that_it_could_not_leave_out():
    model = build(HRM_TINY.replace(**PUZZLE, token_mlp=4, context=CELLS + 2))
    with pytest.raises(UserError, match="leave attention_mask out"):
        model(boards(), attention_mask=torch.ones(3, CELLS))


def test_boards_padded_on_the_left_are_refused(model):
    """Their cells would stand farther from the puzzle's positions than those of a board alone."""
    mask = torch.tensor([[0, 0, 1, 1, 1, 1]])
    with pytest.raises(UserError, match="pad it on the right"):
        model(boards(1), attention_mask=mask)
