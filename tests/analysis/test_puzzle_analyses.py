"""Analyses of puzzles: segments as depth, and what becomes of cells, boards and states."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

import srmlab
import srmlab.analysis
from srmlab.analysis.fixed_points import returns
from srmlab.analysis.survey import available
from srmlab.cli import main
from srmlab.data import Batch
from srmlab.errors import UserError
from srmlab.models import HRMConfig, LanguageModel, SRMConfig, TransformerConfig, build
from srmlab.models.loss import IGNORE
from srmlab.puzzles import PuzzleConfig, prepare_puzzles
from srmlab.training import TrainConfig, train
from srmlab.training.run_puzzles import open_boards, unrolled

PUZZLE = {"vocab_size": 6, "causal": False, "context": 17, "puzzle_positions": 1}
SRM = SRMConfig(
    **PUZZLE, embedding_dim=8, streams=3, stream_dim=8, mlp_dim=8, token_heads=1, head_dim=8,
    stream_heads=1, depth=2, gradient_depth=1, step_functions=2, order="AB",
)  # fmt: skip
HRM = HRMConfig(
    **PUZZLE, dim=8, heads=1, head_dim=8, mlp_dim=8, low_blocks=1, high_blocks=1, low_cycles=1, high_cycles=2
)
TRANSFORMER = TransformerConfig(**PUZZLE, dim=8, blocks=1, heads=1, head_dim=8, mlp_dim=8)


def boards(count: int = 12, seed: int = 0) -> list[Batch]:
    """Boards and answers that mean nothing; half of the cells are to be filled."""
    random = torch.Generator().manual_seed(seed)
    tokens, targets = torch.randint(1, 6, (2, count, 16), generator=random)
    targets[torch.rand(count, 16, generator=random) < 0.5] = IGNORE
    return [Batch(tokens[:5], targets[:5]), Batch(tokens[5:], targets[5:])]


def whole(batches: list[Batch]) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.cat([b.tokens for b in batches]), torch.cat([b.targets for b in batches])


@torch.no_grad()
def answers(model: LanguageModel, tokens: torch.Tensor, depths: range) -> np.ndarray:
    """[depth, board, cell] The slow way: a model of every depth."""
    return np.stack([model.at_depth(d)(tokens).argmax(-1).numpy() for d in depths])


@pytest.mark.parametrize("config", [SRM, HRM, HRM.replace(shared_net=True, gradient="last-cycle")])
def test_segments_one_after_the_other_are_one_deep_pass(config):
    model, board = build(config).eval(), torch.randint(1, 6, (3, 16))
    state = None
    with torch.no_grad():
        for _ in range(3):
            out = model.segment(board, state=state)
            state = out.state
        assert torch.equal(unrolled(model, 3)(board), out.logits)


@pytest.mark.parametrize(
    "config", [HRM.replace(high_blocks=0, high_cycles=1, low_cycles=2, x_enters="first"), TRANSFORMER]
)
def test_a_model_whose_segments_are_not_more_of_the_same_is_refused(config):
    with pytest.raises(UserError):
        unrolled(build(config), 2)
    model = build(config)
    assert unrolled(model, 1) is model


@pytest.mark.parametrize("config", [SRM, SRM.replace(context=16, puzzle_positions=0), HRM])
def test_cells_are_counted_as_by_hand(config):
    model, batches = unrolled(build(config).eval(), 3), boards()
    tokens, targets = whole(batches)
    values = answers(model, tokens, range(1, model.depth + 1))
    right = values == targets.numpy()
    counted = targets.numpy() != IGNORE
    P, B, _ = right.shape
    settles, lost, flipped, somewhere = np.zeros(P), np.zeros(P), 0, 0
    for b in range(B):
        for t in np.flatnonzero(counted[b]):
            history = right[:, b, t].tolist()
            for p in range(P):
                settles[p] += all(history[p:]) and (p == 0 or not history[p - 1])
                lost[p] += p > 0 and history[p - 1] and not history[p]
            somewhere += any(history)
            flipped += any(a and not b for a, b in pairwise(history))
    found = srmlab.analysis.cells(model, batches, segment_depth=model.depth // 3)
    cells = counted.sum()
    assert found.segments == 3
    assert found.right == pytest.approx((right & counted).sum((1, 2)) / cells)
    assert found.solved == pytest.approx((right | ~counted).all(2).mean(1))
    assert found.settles == pytest.approx(settles / cells)
    assert found.lost == pytest.approx(lost / cells)
    assert float(found.flipped) == pytest.approx(flipped / somewhere)
    said = found.headline() + found.summary()
    assert "unknown cells" in said
    assert "solved" not in said  # as `srmlab solve` means it: with the givens


def test_fixed_points_are_counted_as_by_hand():
    model = unrolled(build(SRM).eval(), 3)
    tokens, _ = whole(boards())
    ends = answers(model, tokens, range(2, 13, 2))  # after each of six segments
    targets = torch.from_numpy(ends[2]).clone()  # so that some boards are solved as trained …
    targets[6:] = torch.from_numpy(ends[5])[6:]  # … and others later
    targets[:, :4] = IGNORE
    batches = [Batch(tokens, targets)]
    found = srmlab.analysis.fixed_points(model, batches, segment_depth=2)
    counted = targets.numpy() != IGNORE
    solved = ((ends == targets.numpy()) | ~counted).all(2)  # [segment, board]
    assert found.trained == 3
    assert found.ends.tolist() == [1, 2, 3, 4, 5, 6]
    assert found.solved == pytest.approx(solved.mean(1))
    assert found.stays == pytest.approx(solved[:, solved[2]].mean(1))
    moved = [0.0] + [((a != b) & counted).sum() / counted.sum() for a, b in pairwise(ends)]
    assert found.moved == pytest.approx(moved)
    others = ~solved[2]
    assert float(found.escaping) == pytest.approx((solved[3:].any(0) & others).sum() / max(1, others.sum()))
    with torch.no_grad():
        states = [model.at_depth(d).run_with_cache(tokens, f"layers.{d - 1}.out")[1] for d in (10, 12)]
    last, now = (next(iter(cache.values()))[:, 1:].flatten(2) for cache in states)
    expected = ((now - last).norm(dim=-1) / last.norm(dim=-1)).mean()
    assert found.change[-1] == pytest.approx(float(expected), rel=1e-4)
    assert found.recurrence[0] == pytest.approx(found.change[-1], rel=1e-4)


@pytest.mark.parametrize("config", [TRANSFORMER, HRM.replace(high_blocks=0, high_cycles=1, x_enters="first")])
def test_fixed_points_are_of_models_that_go_on_for_more_segments(config):
    model, boards = build(config), [Batch(*torch.randint(1, 6, (2, 3, 16)))]
    assert "fixed_points" not in srmlab.analysis.survey(model, boards)
    with pytest.raises(UserError, match="repeat the same levels"):
        srmlab.analysis.fixed_points(model, boards, model.depth)
    with pytest.raises(UserError, match="greater max_depth"):
        srmlab.analysis.survey(build(SRM), boards, ["fixed_points"], max_depth=SRM.depth)


@pytest.mark.parametrize("solved", [True, False])
def test_where_all_boards_are_solved_or_none_no_share_of_the_others_is_given(solved):
    model = unrolled(build(SRM).eval(), 2)
    tokens, _ = whole(boards())
    (targets,) = torch.from_numpy(answers(model, tokens, [4]))
    found = srmlab.analysis.fixed_points(
        model, [Batch(tokens, targets if solved else (targets + 1) % 3)], segment_depth=2
    )
    assert "nan" not in found.headline() + found.summary()
    assert ("are stuck" in found.headline()) != solved
    assert ("stay solved" in found.headline()) == solved
    assert ("not solved as trained: none" in found.summary()) == solved
    found.figure()


def test_an_answer_returns_only_if_there_was_another_in_between():
    a, b, c = torch.tensor([1, 1]), torch.tensor([2, 1]), torch.tensor([1, 2])
    histories = [[a, b, a], [a, a, a], [a, b, c], [b, a, a], [a, b, b]]
    values = torch.stack([torch.stack(history) for history in histories], 1)  # [3, 5, 2]
    everything = torch.ones(5, 2, dtype=torch.bool)
    assert returns(values, everything).tolist() == [True, False, False, False, False]
    second_only = torch.tensor([False, True]).expand(5, 2)  # where only the second cell counts
    assert returns(values, second_only).tolist() == [False] * 5


def test_the_probe_is_least_squares_on_the_other_boards():
    model, batches = unrolled(build(SRM).eval(), 2), boards(24)
    tokens, targets = whole(batches)
    found = srmlab.analysis.cell_probe(model, batches, segment_depth=2)
    with torch.no_grad():
        _, cache = model.run_with_cache(tokens, "layers.3.out")
    state = cache["layers.3.out"][:, 1:].double().numpy()  # [B, T, S, D]
    part = np.arange(len(tokens)) % 8
    counted = targets.numpy() != IGNORE
    for stream in range(3):
        scores = []
        for held in range(8):
            x, y = {}, {}
            for name, rows in (("fit", part != held), ("try", part == held)):
                cells = counted[rows]
                z = state[rows][cells][:, stream]
                x[name] = np.concatenate((z, np.ones((len(z), 1))), 1)
                y[name] = np.eye(6)[targets.numpy()[rows][cells]]
            gram = x["fit"].T @ x["fit"]
            ridge = 1e-3 * np.trace(gram) / len(gram) * np.eye(len(gram))
            weights = np.linalg.solve(gram + ridge, x["fit"].T @ y["fit"])
            left = np.square(y["try"] - x["try"] @ weights).sum()
            scores.append(1 - left / np.square(y["try"] - y["fit"].mean(0)).sum())
        assert found.held[-1, stream] == pytest.approx(np.mean(scores), rel=1e-5)
        assert found.standard_error("held")[-1, stream] == pytest.approx(
            np.std(scores, ddof=1) / 8**0.5, rel=1e-5
        )


def test_the_probe_finds_what_is_there_and_its_null_does_not():
    """Where the answer is the cell's own value, the input holds it, and so do all streams."""
    model = build(SRM.replace(depth=1, gradient_depth=1)).eval()
    tokens = torch.randint(1, 6, (64, 16), generator=torch.Generator().manual_seed(1))
    found = srmlab.analysis.cell_probe(model, [Batch(tokens, tokens)])
    assert found.held.min() > 0.5
    assert abs(found.shuffled).max() < 0.1
    assert found.cell.shape == (3, 16)
    assert np.isnan(found.digit[:, 0]).all()  # a value that never occurs
    assert found.best > found.best_shuffled


def test_a_model_of_text_has_no_cells():
    model = srmlab.build(srmlab.preset("srm-nano"))
    assert not {"cells", "fixed_points", "cell_probe"} & set(available(model))
    with pytest.raises(UserError, match="reads text"):
        srmlab.analysis.cells(model, [torch.arange(16)[None]])


# on the command line


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("thinking")
    prepare_puzzles(PuzzleConfig("sudoku:4x4", folder / "data", count=60, held_out=0.3))
    config = TrainConfig(
        steps=2, warmup=1, batch_size=4, segments=2, halting="trm", peak_flops=1e11, device="cpu"
    )
    train(config, SRM, folder / "data", folder / "run", show=False)
    return folder / "run"


def call(*arguments: str) -> int:
    with pytest.raises(SystemExit) as stop:
        main(["analyze", *arguments])
    return stop.value.code or 0


def test_every_analysis_of_layers_is_one_of_segments_and_layers(run):
    boards = open_boards(run)
    found = srmlab.analysis.survey(boards.model, boards.batches(8, 128), lens_tokens=32, segment_depth=2)
    assert set(found) == set(available(boards.model))
    assert {"routing", "drift", "ablation", "logit_lens", "depth", "cells"} <= set(found)
    assert len(found["logit_lens"].full) == 4


def test_analyze_measures_cells_on_the_test_boards_and_on_twins(run, capsys):
    only = ["cells", "fixed_points", "cell_probe"]
    how = ["--tokens", "128", "--null", "1", "--formats", "png", "--json"]
    assert call(str(run), "--only", *only, *how) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found["results"]) == set(only)
    assert "2 segments of 2 layers" in found["text"]
    for name in ("cells", "fixed_points", "cell_probe"):
        assert (run / "figures" / f"{name}.png").stat().st_size > 1000
        assert srmlab.analysis.load(run / "analysis" / name).headline() == found["results"][name]["finding"]
    assert found["results"]["cells"]["twins"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["{run}", "--text", "a.txt"], "--text is for text"),
        (["{run}", "--only", "dynamics"], "measured on text"),
        (["{run}", "--segments", "0"], "1 or more"),
        (["--pretrained", "--segments", "2"], "--segments is for puzzle models"),
        (["--pretrained", "--only", "cells"], "reads puzzles"),
    ],
)
def test_what_does_not_go_together_is_one_line(arguments, says, run, tmp_path, capsys):
    arguments = [argument.format(run=run) for argument in arguments]
    assert call(*arguments, "--out", str(tmp_path)) == 2
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1
