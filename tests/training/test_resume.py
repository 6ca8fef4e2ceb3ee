"""Resume equals never having stopped, bitwise: weights, optimizer, random state and loss log."""

import pytest
from small_runs import GPT2, MODEL, RANDOM_ORDER, TRM, loss_log, small_config, state, stop_after, train_twice

from srmlab.errors import UserError
from srmlab.training import resume, train
from srmlab.training.signals import StopRequest


def check_stop_at_every_step(model, steps, data, folder, monkeypatch):
    config = small_config(steps=steps)
    never = folder / "never-stopped"
    train(config, model, data, never, show=False)
    for step in range(1, steps):
        run = folder / f"stopped-{step}"
        with monkeypatch.context() as patch:
            stop_after(patch, step)
            result = train(config, model, data, run, show=False)
            assert (result.step, result.exit_code) == (step, 143)
        assert resume(run, show=False).step == steps
        assert state(run) == state(never)
        assert loss_log(run) == loss_log(never)


@pytest.mark.parametrize(
    ("model", "steps"), [(MODEL, 5), (RANDOM_ORDER, 12)], ids=["fixed order", "random order"]
)
def test_a_stop_after_any_step_changes_nothing(model, steps, data, tmp_path, monkeypatch):
    check_stop_at_every_step(model, steps, data, tmp_path, monkeypatch)


@pytest.mark.soak
@pytest.mark.parametrize("model", [MODEL, RANDOM_ORDER], ids=["fixed order", "random order"])
def test_a_stop_after_each_of_39_steps_changes_nothing(model, data, tmp_path, monkeypatch):
    check_stop_at_every_step(model, 40, data, tmp_path, monkeypatch)
    print("\n39 of 39 stops resumed bitwise")


@pytest.mark.parametrize(
    ("model", "changes"),
    [
        (GPT2, {}),
        (TRM, {"optimizer": "adamw", "schedule": "cosine"}),
        (MODEL, {"depth_schedule": "grow:1/1"}),
        (RANDOM_ORDER, {"depth_schedule": "draw:1/1", "accumulate": 2}),
        (TRM, {"depth_schedule": "draw:1"}),
        (MODEL, {"accumulate": 2, "clip": 0.5, "document_mask": True, "optimizer": "adam-atan2-published"}),
    ],
    ids=["GPT-2 with dropout", "TRM with AdamW", "growing", "drawn", "drawn cycles", "everything on"],
)
def test_other_models_and_settings_resume_bitwise_too(model, changes, data, tmp_path, monkeypatch):
    config = small_config(steps=8, **changes)
    whole, stopped = train_twice(config, model, data, tmp_path, monkeypatch)
    assert state(stopped) == state(whole)
    assert loss_log(stopped) == loss_log(whole)


def test_stopped_during_evaluation_it_evaluates_after_resuming(data, tmp_path, monkeypatch):
    config = small_config()
    train(config, MODEL, data, tmp_path / "never-stopped", show=False)
    with monkeypatch.context() as patch:

        def interrupted(*_args, interrupted, **_settings):
            patch.undo()
            stop_request[0].signal = 2
            return None if interrupted() else 1 / 0

        stop_request = []
        enter = StopRequest.__enter__
        patch.setattr(StopRequest, "__enter__", lambda self: stop_request.append(self) or enter(self))
        patch.setattr("srmlab.training.language.validation_loss", interrupted)
        result = train(config, MODEL, data, tmp_path / "stopped", show=False)
    assert (result.step, result.exit_code) == (5, 130)
    resume(tmp_path / "stopped", show=False)
    assert loss_log(tmp_path / "stopped") == loss_log(tmp_path / "never-stopped")


def test_a_finished_run_resumes_to_itself(data, tmp_path):
    train(small_config(), MODEL, data, tmp_path / "run", show=False)
    before = state(tmp_path / "run"), loss_log(tmp_path / "run")
    assert resume(tmp_path / "run", show=False).step == 12
    assert (state(tmp_path / "run"), loss_log(tmp_path / "run")) == before


def test_a_run_that_recorded_an_option_without_meaning_still_resumes(data, tmp_path, monkeypatch):
    config, run = small_config(ema=0.9), tmp_path / "run"  # for puzzles; earlier versions let it pass
    with pytest.raises(UserError, match=r"ema = 0\.9: is for puzzles"):
        train(config, MODEL, data, run, show=False)
    with monkeypatch.context() as patch:
        patch.setattr("srmlab.training.plan.refuse_without_meaning", lambda *_, **__: None)
        stop_after(patch, 5)
        train(config, MODEL, data, run, show=False)
    assert resume(run, show=False).step == config.steps
