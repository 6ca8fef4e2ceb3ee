"""Deep supervision over segments: equal to the long way, exact to resume, refused where it cannot work."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_runs import loss_log, small_config, state, stop_after

import srmlab
from oracle import deep_supervision as oracle
from srmlab.errors import UserError
from srmlab.models import HRMConfig, LanguageModel, SRMConfig, TransformerConfig, build
from srmlab.puzzles import Boards, PuzzleBatches, PuzzleConfig, Puzzles, find_kind, prepare_puzzles
from srmlab.puzzles.folder import FORMAT, Manifest
from srmlab.storage import read_metrics
from srmlab.training import TrainConfig, resume, train
from srmlab.training.distributed import World
from srmlab.training.run import RunConfig
from srmlab.training.segments import DeepSupervision, least_segments, run_segments

WORLD = World(0, 1, torch.device("cpu"), "single")
PUZZLE = {"vocab_size": 6, "causal": False, "puzzle_positions": 1}
SRM = SRMConfig(
    **PUZZLE, context=17, embedding_dim=8, streams=2, stream_dim=8, mlp_dim=8, token_heads=1, head_dim=8,
    stream_heads=1, depth=2, gradient_depth=1, step_functions=2, order="AB",
)  # fmt: skip
HRM = HRMConfig(
    **PUZZLE, context=17, dim=8, heads=1, head_dim=8, mlp_dim=8, low_blocks=1, high_blocks=1, low_cycles=1,
    high_cycles=2, mlp="swiglu", tied=False,
)  # fmt: skip
TRM = HRM.replace(shared_net=True, gradient="last-cycle", low_cycles=2)
SR2 = HRM.replace(high_blocks=0, high_cycles=1, low_cycles=3, gradient="last-cycle", x_enters="first")
TRANSFORMER = TransformerConfig(**PUZZLE, context=17, dim=8, blocks=1, heads=1, head_dim=8, mlp_dim=8)
MODELS = {"srm": SRM, "hrm": HRM, "trm": TRM, "sr2": SR2, "transformer": TRANSFORMER}


@pytest.fixture(scope="module")
def sudokus(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("puzzles") / "sudoku4"
    prepare_puzzles(PuzzleConfig("sudoku:4x4", out, count=40, held_out=0.2))
    return out


def segments_config(**changes) -> TrainConfig:
    return small_config(**{"segments": 3, "halting": "trm", "puzzle_lr": 1e-2} | changes)


def some_puzzles(seed: int, ids: int) -> Puzzles:
    """Boards and answers of 3 × 3 cells that mean nothing; a few cells do not count."""
    random = np.random.default_rng(seed)
    kind, count = find_kind("maze:3"), 12
    inputs, labels = random.integers(1, 6, (2, count, 9)).astype(np.uint8)
    labels[random.random((count, 9)) < 0.2] = 0
    labels[:, 0] = 1
    boards = replace(
        Boards.single(inputs, labels, np.ones(count)), puzzle_identifiers=random.integers(0, ids, count)
    )
    manifest = Manifest(FORMAT, kind.name, "random", 0, ids, {"train": count, "test": count})
    return Puzzles(Path("nowhere"), manifest, kind, boards, boards, ["none"] * ids, "")


def objective(model: LanguageModel, config: TrainConfig, data: Puzzles) -> DeepSupervision:
    plan = RunConfig(model.config, config, Path("nowhere"), "", puzzles=data.kind.name)
    return DeepSupervision(plan, data, model, WORLD)


# --- the oracle ---------------------------------------------------------------------------------------------


@st.composite
def hrm_configs(draw) -> HRMConfig:
    shared, positions = draw(st.booleans()), draw(st.integers(0, 2))
    blocks = draw(st.integers(1, 2))
    return HRMConfig(
        vocab_size=6,
        context=9 + positions,
        causal=False,
        puzzle_positions=positions,
        puzzle_ids=3,
        tied=draw(st.booleans()),
        learned_positions=draw(st.booleans()),
        init_seed=draw(st.integers(0, 99)),
        dim=draw(st.integers(2, 5)),
        heads=draw(st.integers(1, 2)),
        head_dim=draw(st.sampled_from([2, 4])),
        mlp_dim=draw(st.integers(1, 5)),
        mlp=draw(st.sampled_from(["gelu", "swiglu"])),
        token_mlp=draw(st.sampled_from([0, 0, 3])),
        low_blocks=blocks,
        high_blocks=blocks if shared else draw(st.integers(1, 2)),
        low_cycles=draw(st.integers(1, 2)),
        high_cycles=draw(st.integers(1, 2)),
        shared_net=shared,
        gradient=draw(st.sampled_from(["last-call", "last-cycle"])),
    )


def random_weights(model: LanguageModel, seed: int) -> None:
    """With a Q head that halts now and then, and puzzles that differ."""
    generator = torch.Generator().manual_seed(seed)
    assert model.puzzle is not None
    with torch.no_grad():
        for value in (model.puzzle.weight, model.puzzle.bias, model.puzzle.rows):
            value.normal_(generator=generator)


@settings(max_examples=10)
@given(
    hrm_configs(),
    st.sampled_from(["hrm", "trm", "fixed"]),
    st.sampled_from(["stablemax", "softmax"]),
    st.integers(1, 3),
    st.integers(0, 99),
)
def test_segments_of_hrm_and_trm_are_those_of_the_long_way(model_config, halting, likelihood, most, seed):
    """Loss, every gradient, who halts, which puzzle comes next, and the state, over several steps."""
    config = small_config(
        batch_size=4, segments=most, halting=halting, likelihood=likelihood, exploration=0.5, augment=False,
        accumulate=2, seed=seed,
    )  # fmt: skip
    model = build(model_config).double().train()
    random_weights(model, seed)
    data = some_puzzles(seed, ids=3)
    fast, examples = objective(model, config, data), PuzzleBatches(data, seed, augment=False)
    weights = {name: value.detach().clone().requires_grad_() for name, value in model.named_parameters()}
    weights |= {name: value.clone() for name, value in model.named_buffers()}
    slots = [oracle.Slot(number) for number in range(4)]

    def example(index: int):
        board, answer, puzzle = examples.example(index)
        return board.tolist(), answer.tolist(), weights["puzzle.rows"][puzzle].clone().requires_grad_()

    for step in range(1, 4):
        model.zero_grad()
        loss = fast.backward(step, 0)["loss"]
        for slot in slots:
            slot.before = slot.before.detach().requires_grad_()
        expected = oracle.segment(
            weights, model_config, config, slots, least_segments(config, step).tolist(), example
        )
        for value in weights.values():
            value.grad = None
        expected.backward()
        close = {"rtol": 1e-10, "atol": 1e-10}
        torch.testing.assert_close(torch.tensor(loss, dtype=torch.float64), expected.detach(), **close)
        for name, weight in model.named_parameters():
            mine, theirs = weight.grad, weights[name].grad
            none = torch.zeros_like(weight)
            torch.testing.assert_close(
                none if mine is None else mine, none if theirs is None else theirs, **close
            )
        if model_config.puzzle_positions:
            theirs = torch.stack([slot.before.grad for slot in slots if slot.before.grad is not None])
            torch.testing.assert_close(fast.before.grad, theirs, **close)
        assert fast.next.halted.tolist() == [slot.halted for slot in slots]
        assert fast.next.index.tolist() == [slot.example for slot in slots]
        assert fast.next.segment.tolist() == [slot.segments for slot in slots]
        states = torch.stack([torch.stack((slot.z_low, slot.z_high)) for slot in slots])
        torch.testing.assert_close(fast.next.state, states, **close)
        fast.slots = fast.next


# --- the objective ------------------------------------------------------------------------------------------


def test_of_one_segment_there_is_no_extra_forward_pass_in_the_step_nor_in_its_flops(monkeypatch):
    model, data, passes = build(HRM.replace(context=10, puzzle_ids=3)).train(), some_puzzles(0, ids=3), []
    segment = model.segment
    monkeypatch.setattr(model, "segment", lambda *args, **how: passes.append(1) or segment(*args, **how))
    flops = {}
    for segments in (1, 2):
        fast = objective(model, segments_config(segments=segments, halting="hrm", augment=False), data)
        passes.clear()
        fast.backward(1, 0)
        assert len(passes) == segments  # with two, the second is for q_continue
        flops[segments] = fast.size(1)["flops"]
    forward = model.flops_per_token(10).forward
    assert flops[2] - flops[1] == forward * 4 * 10


def test_the_embedding_of_a_puzzle_moves_by_the_sign_of_its_summed_gradient_and_no_other_does():
    data = some_puzzles(0, ids=3)
    model = build(HRM.replace(context=10, puzzle_ids=3)).train()
    random_weights(model, 0)
    config = segments_config(batch_size=4, augment=False, weight_decay=0.5, lr=1.0, puzzle_lr=0.25)
    fast = objective(model, config, data)
    before = model.puzzle.rows.clone()
    fast.backward(1, 0)
    ids, gradient = fast.boards.identifiers, fast.before.grad
    fast.after(lr=0.5)  # half of the peak: so is the embeddings' rate, 0.125
    for puzzle in range(3):
        expected = before[puzzle]
        if (ids == puzzle).any():
            expected = expected * (1 - 0.125 * 0.5) - 0.125 * gradient[ids == puzzle].sum(0).sign()
        torch.testing.assert_close(model.puzzle.rows[puzzle], expected)


@pytest.mark.parametrize("name", MODELS)
def test_a_stop_after_any_step_changes_nothing(name, sudokus, tmp_path, monkeypatch):
    """Carry, slots, running mean, puzzle embedding: all of it is in the checkpoint."""
    halting = {"hrm": "hrm", "sr2": "fixed"}.get(name, "trm")
    explores = {} if halting == "fixed" else {"exploration": 0.5}
    config = segments_config(steps=6, ema=0.9, halting=halting, **explores)
    train(config, MODELS[name], sudokus, tmp_path / "never", show=False)
    for step in (1, 2, 5):
        with monkeypatch.context() as patch:
            stop_after(patch, step)
            train(config, MODELS[name], sudokus, tmp_path / f"{step}", show=False)
        assert resume(tmp_path / f"{step}", show=False).step == 6
        assert state(tmp_path / f"{step}") == state(tmp_path / "never")
        assert loss_log(tmp_path / f"{step}") == loss_log(tmp_path / "never")


def test_micro_batches_change_nothing_but_rounding(sudokus, tmp_path):
    for accumulate in (1, 2):
        config = segments_config(accumulate=accumulate, halting="hrm", ema=0.9)
        train(config, SRM, sudokus, tmp_path / f"{accumulate}", show=False)
    one, two = (loss_log(tmp_path / name) for name in "12")
    for key in ("loss", "grad_norm", "val_loss"):
        values = [[row[key] for row in rows if key in row] for rows in (one, two)]
        assert values[0] == pytest.approx(values[1], abs=1e-5)


def test_a_model_learns_to_copy_what_is_given(sudokus, tmp_path):
    config = segments_config(steps=120, batch_size=16, lr=3e-3, eval_every=120, eval_tokens=10**6)
    result = train(config, TRM.replace(dim=24, mlp_dim=32), sudokus, tmp_path / "run", show=False)
    rows = read_metrics(result.run / "metrics.jsonl")
    assert np.mean([row["loss"] for row in rows[-10:] if "loss" in row]) < 0.8 * rows[0]["loss"]
    assert {"cell_loss", "solved"} <= set(rows[0])
    assert 0 <= rows[-1]["val_solved"] <= 1


def test_the_model_of_a_checkpoint_is_the_running_mean(sudokus, tmp_path):
    """With a decay so near to 1 that it has hardly moved, it is still the initial model."""
    for ema in (0.0, 0.999999):
        train(segments_config(ema=ema), TRM, sudokus, tmp_path / f"{ema}", show=False)
    mean, last = (srmlab.load(tmp_path / name) for name in ("0.999999", "0.0"))
    initial = build(TRM)
    torch.testing.assert_close(mean.low[0].qkv.weight, initial.low[0].qkv.weight, atol=1e-4, rtol=0)
    assert (last.low[0].qkv.weight - initial.low[0].qkv.weight).abs().max() > 1e-2


def test_a_running_mean_begins_with_the_weights_that_a_run_begins_with(sudokus, tmp_path):
    train(segments_config(), TRM, sudokus, tmp_path / "first", show=False)
    config = segments_config(ema=0.999999, lr=1e-9)
    train(config, None, sudokus, tmp_path / "second", init_from=tmp_path / "first", show=False)
    first, second = (srmlab.load(tmp_path / name) for name in ("first", "second"))
    for name, weight in first.named_parameters():
        torch.testing.assert_close(second.get_parameter(name), weight, atol=1e-6, rtol=0)


def test_without_end_a_step_that_is_not_finite_is_skipped_and_its_puzzles_are_left(
    sudokus, tmp_path, monkeypatch
):
    backward = DeepSupervision.backward

    def bad(self, step, offset):
        return backward(self, step, offset) if step != 3 else {"loss": float("nan")}

    monkeypatch.setattr(DeepSupervision, "backward", bad)
    config = segments_config(steps=5, on_nonfinite="skip", halting="fixed")
    train(config, TRM, sudokus, tmp_path / "run", show=False)
    rows = read_metrics(tmp_path / "run" / "metrics.jsonl")
    bad_row = next(row for row in rows if "event" in row)
    assert bad_row["windows"] == [0, 1, 2, 3]  # the first four puzzles, in their third segment
    assert [row["step"] for row in rows if "segments" in row] == []  # the next four have had two by step 5


def test_puzzles_that_a_slot_was_just_given_are_left_too_if_their_step_is_not_finite(
    sudokus, tmp_path, monkeypatch
):
    def bad(self, step, offset):  # noqa: ARG001
        return {"loss": float("nan")}

    monkeypatch.setattr(DeepSupervision, "backward", bad)
    config = segments_config(steps=3, on_nonfinite="skip")
    train(config, TRM, sudokus, tmp_path / "run", show=False)
    rows = read_metrics(tmp_path / "run" / "metrics.jsonl")
    windows = [row["windows"] for row in rows if "windows" in row]
    assert windows == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]


@pytest.mark.parametrize(
    ("model", "changes", "message"),
    [
        (SRM.replace(causal=True, puzzle_positions=0), {}, "holds puzzles, but the model reads text"),
        (SRM.replace(vocab_size=5), {}, "set --model.vocab-size 6"),
        (SRM.replace(context=16), {}, "set --model.context 17"),
        (SRM.replace(vocab_size=5, context=16), {}, "set --model.vocab-size 6 --model.context 17$"),
        (SRM, {"answers_only": True}, "answers_only = True: is for text"),
        (SRM, {"eval_windows": "first"}, "eval_windows = 'first': is for text"),
        (SRM, {"depth_schedule": "grow:1"}, "depth_schedule = 'grow:1': is for text"),
        (HRM.replace(context=18, token_mlp=4), {}, "set --model.context 17"),
        (SRM, {"halting": "fixed", "exploration": 0.5}, "exploration = 0.5: .* with halting = 'fixed'"),
        (SRM, {"segments": 1, "exploration": 0.5}, "exploration = 0.5: .* with segments = 1"),
        (SRM.replace(puzzle_positions=0), {"puzzle_lr": 0.5}, "puzzle_lr = 0.5: is for puzzle embeddings"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_touched(model, changes, message, sudokus, tmp_path):
    with pytest.raises(UserError, match=message):
        train(segments_config(**changes), model, sudokus, tmp_path / "run", show=False)
    assert not (tmp_path / "run").exists()


def test_a_model_of_puzzles_is_not_trained_on_text(data, tmp_path):
    with pytest.raises(UserError, match="the model reads puzzles"):
        train(small_config(), SRM.replace(vocab_size=257), data, tmp_path / "run", show=False)


def test_segments_go_on_from_the_state_that_was_left(sudokus):
    model = build(SRM).eval()
    batch = PuzzleBatches(srmlab.puzzles.open_puzzles(sudokus)).batch(0, 2)
    with torch.no_grad():
        first, second = run_segments(model, batch, 2)
        again = model.segment(batch.inputs, state=first.state)
    assert torch.equal(second.logits, again.logits)
    assert not torch.equal(first.logits, second.logits)
