"""Loss, perplexity and bits per byte against their definitions; and what a person sees of a run."""

import doctest
import math
import sys

import numpy as np
import pytest
import torch
from small_runs import GPT2, MODEL, small_config

import srmlab.training.adam_atan2
import srmlab.training.config
import srmlab.training.recipes
import srmlab.training.schedule
import srmlab.training.step_display
from srmlab.data import Batch, EvaluationBatches, open_tokens
from srmlab.errors import UserError
from srmlab.models import build
from srmlab.storage import load
from srmlab.storage.metrics_file import iter_metrics
from srmlab.training import evaluate, train
from srmlab.training.evaluation import token_losses
from srmlab.training.metrics import scalars
from srmlab.training.step_display import Progress


def test_the_losses_of_tokens_are_those_of_the_logits():
    model = build(MODEL).eval()
    tokens = torch.randint(257, (2, 16), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = torch.nn.functional.cross_entropy(model(tokens).transpose(1, 2), tokens, reduction="none")
        torch.testing.assert_close(token_losses(model, Batch(tokens, tokens)), expected)


@pytest.mark.parametrize("config", [MODEL, GPT2], ids=["SRM", "GPT-2"])
def test_an_evaluation_is_the_mean_over_windows_with_its_standard_error(config, data):
    opened = open_tokens(data)
    model = build(config).train()
    batches = EvaluationBatches(opened.val, model.config.context, batch_size=3, limit_tokens=160)
    result = evaluate(model, batches, tokenizer=opened.tokenizer)
    assert model.training  # as it was
    model.eval()
    stream = torch.from_numpy(opened.val.read(0, 161))
    windows = [(stream[i : i + 16], stream[i + 1 : i + 17]) for i in range(0, 160, 16)]
    with torch.no_grad():
        losses = np.array([float(model(inputs[None], targets[None])) for inputs, targets in windows])
    assert (result.windows, result.tokens) == (10, 160)
    assert result.loss.mean == pytest.approx(losses.mean(), rel=1e-6)
    assert result.loss.standard_error == pytest.approx(losses.std(ddof=1) / math.sqrt(10), rel=1e-4)
    assert result.perplexity.mean == pytest.approx(math.exp(losses.mean()), rel=1e-5)
    assert result.bits_per_byte is not None
    assert result.text_bytes == sum(int(token) != 256 for _, targets in windows for token in targets)
    expected = losses.sum() * 16 / math.log(2) / result.text_bytes
    assert result.bits_per_byte.mean == pytest.approx(expected, rel=1e-6)
    assert result.bits_per_byte.standard_error > 0


def test_an_evaluation_with_early_exit_is_that_of_the_depth_it_stops_at(data):
    model = build(MODEL.replace(depth=6)).eval()
    batches = EvaluationBatches(open_tokens(data).val, 16, batch_size=10, limit_tokens=160)
    early = evaluate(model, batches, exit=0.65)
    assert early.mean_levels in (2, 3, 4, 5)  # one batch has one depth
    assert early.loss.mean == pytest.approx(
        evaluate(model.at_depth(int(early.mean_levels)), batches).loss.mean
    )
    assert evaluate(model, batches).mean_levels is None


@pytest.mark.parametrize(
    "module",
    [
        srmlab.training.adam_atan2,
        srmlab.training.config,
        srmlab.training.step_display,
        srmlab.training.recipes,
        srmlab.training.schedule,
    ],
    ids=lambda module: module.__name__,
)
def test_the_examples_in_the_documentation_run(module):
    results = doctest.testmod(module)
    assert results.attempted > 0
    assert results.failed == 0


def test_validation_may_be_spread_over_the_text_and_trains_the_same(data, tmp_path):
    losses = {}
    for windows in ("first", "spread"):
        config = small_config(steps=5, eval_windows=windows)
        train(config, MODEL, data, tmp_path / windows)
        rows = [*iter_metrics(tmp_path / windows / "metrics.jsonl")]
        losses[windows] = [row["loss"] for row in rows if "loss" in row], rows[-1]["val_loss"]
    assert losses["first"][0] == losses["spread"][0]
    model = load(tmp_path / "spread")
    text = EvaluationBatches(open_tokens(data).val, MODEL.context, 4, 128, spread=True)
    assert losses["spread"][1] == pytest.approx(evaluate(model, text).loss.mean, abs=1e-5)
    assert losses["spread"][1] != losses["first"][1]


def test_without_a_terminal_there_are_plain_lines(capsys):
    with Progress(steps=20, first=0, every=10) as progress:
        for step in range(1, 21):
            progress.row({"step": step, "loss": 5.0 / step, "tokens_per_second": 1234.5, "mfu": 0.5})
        progress.row({"step": 20, "val_loss": 0.3})
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in lines] == ["1/20", "10/20", "20/20", "20"]
    assert "1,234 tokens/s  50% of peak" in lines[1]
    assert "\x1b" not in "".join(lines)


def test_a_row_becomes_named_numbers_for_tensorboard():
    row = {
        "step": 3,
        "loss": 2.0,
        "event": "x",
        "windows": [1, 2],
        "state_norms": {"layers.7.out": [1.0, 2.0]},
    }
    assert scalars(row) == {"loss": 2.0, "state_norms/layers.7.out/0": 1.0, "state_norms/layers.7.out/1": 2.0}


@pytest.mark.parametrize(
    "changes", [{"wandb": "project"}, {"tensorboard": True}], ids=["wandb", "tensorboard"]
)
def test_a_writer_that_is_not_installed_is_named_before_anything_is_touched(
    changes, data, tmp_path, monkeypatch
):
    monkeypatch.setitem(sys.modules, "wandb", None)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    name = next(iter(changes))
    with pytest.raises(UserError, match=f"{name} is not installed: pip install {name}"):
        train(small_config(**changes), MODEL, data, tmp_path / "run", show=False)
    assert not (tmp_path / "run").exists()


def test_on_a_terminal_a_loss_that_is_not_finite_is_shown_and_left_out_of_the_curve(capsys):
    with Progress(steps=4, first=0, every=1) as progress:
        progress.live = True
        for step, loss in enumerate((4.0, float("inf"), float("nan"), 2.0), 1):
            progress.row({"step": step, "loss": loss, "tokens_per_second": 1.0})
        assert progress.losses == [4.0, 2.0]
    capsys.readouterr()
