"""NaN or Inf in the loss or the gradient: no weight is changed, a policy decides, the batch is logged."""

import pytest
import torch
from small_runs import MODEL, RANDOM_ORDER, losses, small_config, state

from srmlab.data import Batches, open_tokens
from srmlab.models import build
from srmlab.storage import read_metrics
from srmlab.storage.weights import load_tensors, model_tensors
from srmlab.training import NonfiniteLoss, resume, train
from srmlab.training.loop import Trainer
from srmlab.training.metrics import MetricsLog

BAD_STEP = 6


@pytest.fixture(params=["loss", "gradient"])
def poison(request, monkeypatch):
    """Make one batch of the data (that of step 6) bad, whenever it is used."""
    gradient = Trainer.gradient

    def poisoned(self, step):
        losses, norm = gradient(self, step)
        if step + self.data_offset == BAD_STEP:
            parameter = next(self.model.parameters())
            parameter.grad = torch.full_like(parameter, float("nan"))
            bad = dict.fromkeys(losses, float("nan"))
            return (bad, norm) if request.param == "loss" else (losses, float("inf"))
        return losses, norm

    monkeypatch.setattr(Trainer, "gradient", poisoned)


@pytest.fixture
def events(tmp_path):
    return lambda: [row for row in read_metrics(tmp_path / "run/metrics.jsonl") if "event" in row]


@pytest.mark.usefixtures("poison")
def test_stop_leaves_the_weights_of_the_step_before_and_names_the_windows(data, tmp_path, events):
    config = small_config(on_nonfinite="stop")
    with pytest.raises(NonfiniteLoss, match=r"step 6: .*no weight was changed and step 5 is saved") as error:
        train(config, RANDOM_ORDER, data, tmp_path / "run", show=False)
    assert "\n" not in str(error.value)
    train(config.replace(steps=5), RANDOM_ORDER, data, tmp_path / "five", show=False)
    for file in ("model.safetensors", "optimizer.safetensors"):  # the generator of orders included
        assert state(tmp_path / "run")[file] == state(tmp_path / "five")[file]
    windows = Batches(open_tokens(data).train, 16, 4, seed=0).windows(BAD_STEP - 1)
    assert [row["windows"] for row in events()] == [windows.tolist()]


@pytest.mark.usefixtures("poison")
def test_stop_then_resume_with_skip_finishes(data, tmp_path, events):
    with pytest.raises(NonfiniteLoss):
        train(small_config(), MODEL, data, tmp_path / "run", show=False)
    assert resume(tmp_path / "run", on_nonfinite="skip", show=False).step == 12
    assert [row["step"] for row in events()] == [BAD_STEP]


@pytest.mark.usefixtures("poison")
def test_skip_takes_every_other_step(data, tmp_path, events):
    result = train(small_config(on_nonfinite="skip"), MODEL, data, tmp_path / "run", show=False)
    assert result.step == 12
    assert [(row["step"], row["policy"]) for row in events()] == [(BAD_STEP, "skip")]
    model = build(MODEL)
    load_tensors(tmp_path / "run/checkpoints/step-12", model_tensors(model))
    assert all(parameter.isfinite().all() for parameter in model.parameters())


@pytest.mark.usefixtures("poison")
def test_rewind_goes_back_and_on_with_later_batches(data, tmp_path, events):
    result = train(small_config(on_nonfinite="rewind"), MODEL, data, tmp_path / "run", show=False)
    assert result.step == 12
    assert [(row["step"], row["policy"]) for row in events()] == [(BAD_STEP, "rewind")]
    steps = [
        row["step"]
        for row in read_metrics(tmp_path / "run/metrics.jsonl")
        if "loss" in row and "event" not in row
    ]
    assert steps == list(range(1, 13))


@pytest.mark.usefixtures("poison")
def test_rewind_before_the_first_checkpoint_goes_back_to_the_start(data, tmp_path, events):
    config = small_config(on_nonfinite="rewind", checkpoint_every=100)
    assert train(config, MODEL, data, tmp_path / "run", show=False).step == 12
    assert len(events()) == 1


def test_a_run_that_only_ever_fails_ends(data, tmp_path, monkeypatch):
    monkeypatch.setattr(Trainer, "gradient", lambda _self, _step: ({"loss": float("nan")}, float("nan")))
    with pytest.raises(NonfiniteLoss, match="not finite again after 10 rewinds to step 0"):
        train(small_config(on_nonfinite="rewind"), MODEL, data, tmp_path / "run", show=False)


def test_a_clean_run_logs_no_event(data, tmp_path, events):
    train(small_config(steps=3), MODEL, data, tmp_path / "run", show=False)
    assert events() == []
    assert len(losses(tmp_path / "run")) == 3


def test_a_log_that_is_cut_keeps_its_other_lines_to_the_byte(tmp_path):
    path = tmp_path / "metrics.jsonl"
    log = MetricsLog(path, [])
    for step, loss in enumerate((1.5, float("nan"), float("inf"), 1.25), 1):
        log.write({"step": step, "loss": loss})
    lines = path.read_text().splitlines()
    log.cut(3)
    log.close()
    assert path.read_text().splitlines() == lines[:3]
