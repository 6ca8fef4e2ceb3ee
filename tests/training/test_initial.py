"""A run that begins with the weights of another: only they are taken, and they are needed only once."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from small_runs import GPT2, MODEL, RANDOM_ORDER, loss_log, small_config, state, stop_after, write_data

import srmlab
from srmlab.data import Batches, EvaluationBatches, PrepareConfig, byte_tokenizer, open_tokens, prepare
from srmlab.errors import Notice, UserError
from srmlab.storage import read_metrics
from srmlab.storage.weights import CheckpointError, checkpoint_steps
from srmlab.training import evaluate, resume, train
from srmlab.training.loop import Trainer
from srmlab.training.run import RunConfig


@pytest.fixture(scope="module")
def finished(data, tmp_path_factory) -> Path:
    run = tmp_path_factory.mktemp("source") / "run"
    train(small_config(), MODEL, data, run, show=False)
    return run


@pytest.fixture(scope="module")
def other(tmp_path_factory) -> Path:
    """Other text than the source was trained on."""
    return write_data(tmp_path_factory.mktemp("other"), sections=50)


@pytest.fixture
def source(finished, tmp_path) -> Path:
    """A copy of the source, for tests that change it."""
    return Path(shutil.copytree(finished, tmp_path / "source"))


def tune(source, data, out, model=None, **changes):
    return train(small_config(**changes), model, data, out, init_from=source, show=False)


def stopped_before_its_first_checkpoint(source, data, out, monkeypatch) -> None:
    def killed(_: Trainer) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "save", killed)
        with pytest.raises(KeyboardInterrupt):
            tune(source, data, out)
    assert checkpoint_steps(out / "checkpoints") == []


def test_it_begins_with_the_sources_loss_and_then_learns(finished, other, tmp_path):
    result = tune(finished, other, tmp_path / "run", steps=40, eval_every=40)
    model, tokens = srmlab.load(finished), open_tokens(other)
    rows = read_metrics(tmp_path / "run/metrics.jsonl")
    before = evaluate(model, EvaluationBatches(tokens.val, MODEL.context, 8, 128, spread=True)).loss.mean
    assert (rows[0]["step"], rows[0]["val_loss"]) == (0, pytest.approx(before, abs=1e-6))
    batch = Batches(tokens.train, MODEL.context, 4, seed=0).batch(0)
    assert rows[1]["loss"] == pytest.approx(model(batch.tokens, batch.targets).item(), abs=1e-6)
    assert result.val_loss is not None
    assert result.val_loss < before - 0.1


def test_weights_are_taken_and_neither_optimizer_nor_schedule(finished, other, tmp_path):
    tune(finished, other, tmp_path / "run", steps=2, warmup=2, lr=1e-2)
    rows = read_metrics(tmp_path / "run/metrics.jsonl")
    assert [row["lr"] for row in rows if "lr" in row] == [5e-3, 1e-2]
    tune(srmlab.save(srmlab.load(finished), tmp_path / "export"), other, tmp_path / "same", steps=2, warmup=2)
    assert loss_log(tmp_path / "same") == loss_log(tmp_path / "run")  # an export has no optimizer to take


def test_a_run_its_checkpoint_and_its_export_are_the_same_start(finished, other, tmp_path):
    model = srmlab.load(finished)
    sources = {
        "run": finished,
        "checkpoint": finished / "checkpoints/step-12",
        "export": srmlab.save(model, tmp_path / "saved", tokenizer=byte_tokenizer()),
    }
    for name, path in sources.items():
        tune(path, other, tmp_path / name)
    assert loss_log(tmp_path / "run") == loss_log(tmp_path / "checkpoint") == loss_log(tmp_path / "export")
    begun = RunConfig.read(tmp_path / "run").init_from
    assert begun == RunConfig.read(tmp_path / "checkpoint").init_from
    assert begun is not None
    assert begun.path == finished.absolute() / "checkpoints/step-12"


@pytest.mark.parametrize("model", [MODEL, RANDOM_ORDER, GPT2], ids=["fixed order", "random order", "dropout"])
def test_a_stop_after_any_step_changes_nothing_though_the_source_is_gone(model, other, tmp_path, monkeypatch):
    source = srmlab.save(srmlab.build(model.replace(init_seed=7)), tmp_path / "source")
    tune(source, other, tmp_path / "never", steps=5)
    for step in range(1, 5):
        run, mine = tmp_path / f"stopped-{step}", shutil.copytree(source, tmp_path / f"source-{step}")
        with monkeypatch.context() as patch:
            stop_after(patch, step)
            assert tune(mine, other, run, steps=5).exit_code == 143
        shutil.rmtree(mine)
        assert resume(run, show=False).step == 5
        assert state(run) == state(tmp_path / "never")
        assert loss_log(run) == loss_log(tmp_path / "never")


def test_a_run_without_a_checkpoint_begins_again_from_the_same_weights(source, other, tmp_path, monkeypatch):
    tune(source, other, tmp_path / "never")
    stopped_before_its_first_checkpoint(source, other, tmp_path / "run", monkeypatch)
    resume(tmp_path / "run", show=False)
    assert state(tmp_path / "run") == state(tmp_path / "never")
    assert loss_log(tmp_path / "run") == loss_log(tmp_path / "never")


def test_a_run_without_a_checkpoint_does_not_begin_again_from_others(source, other, tmp_path, monkeypatch):
    run = tmp_path / "run"
    stopped_before_its_first_checkpoint(source, other, run, monkeypatch)
    taken = source / "checkpoints/step-12"
    kept = Path(shutil.move(taken, tmp_path / "kept"))
    with pytest.raises(UserError, match=r"step-12, whose weights the run started from, is gone: "):
        resume(run, show=False)
    srmlab.save(srmlab.build(MODEL), taken)
    with pytest.raises(UserError, match=r"step-12, whose weights the run started from, has changed: "):
        resume(run, show=False)
    shutil.rmtree(taken)
    shutil.move(kept, taken)
    damage(taken / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"model\.safetensors is damaged"):
        resume(run, show=False)


def test_the_weights_may_be_run_at_another_depth_and_on_a_longer_context(finished, other, tmp_path):
    deeper = MODEL.replace(depth=5, gradient_depth=3, context=32)
    tune(finished, other, tmp_path / "run", deeper, steps=2, warmup=0)
    start = srmlab.load(tmp_path / "run/checkpoints/step-0")
    assert start.config == deeper
    saved = srmlab.load(finished).state_dict()
    assert all(torch.equal(tensor, saved[name]) for name, tensor in start.state_dict().items())


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (MODEL.replace(mlp_dim=24), r"is \[3, 8, 16\] there, \[3, 8, 24\] here"),
        (MODEL.replace(tied=False), r"is missing there, \[257, 8\] here"),
        (MODEL.replace(z0="zero"), r"z0 is 'fixed' there, 'zero' here"),
        (GPT2, r"is missing there"),
    ],
    ids=["shape", "more weights", "first state", "architecture"],
)
def test_a_model_that_the_weights_do_not_fit_is_refused(model, message, finished, other, tmp_path):
    with pytest.raises(UserError, match=message):
        tune(finished, other, tmp_path / "run", model)
    assert not (tmp_path / "run").exists()


def test_data_with_other_ids_is_refused(finished, tmp_path):
    def prepared(name: str, tokenizer: str, text: str) -> Path:
        (tmp_path / f"{name}.txt").write_text(text)
        words = str(tmp_path / f"{name}.txt")
        prepare(PrepareConfig(words, tmp_path / name, tokenizer, val_fraction=0.0, section_chars=300))
        return tmp_path / name

    numbers = prepared("numbers", "bpe:265", "one two three four five six seven eight nine ten " * 40)
    letters = prepared("letters", "bpe:265", "alpha beta gamma delta epsilon zeta eta theta iota " * 40)
    with pytest.raises(UserError, match="has 265 ids; prepare the data with the model's tokenizer"):
        tune(finished, numbers, tmp_path / "run")
    train(small_config(steps=3), MODEL.replace(vocab_size=265), numbers, tmp_path / "source", show=False)
    with pytest.raises(UserError, match=r"another tokenizer than .*prepare it with --tokenizer .*/tokenizer"):
        tune(tmp_path / "source", letters, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def damage(path: Path) -> None:
    changed = bytearray(path.read_bytes())
    changed[-5] ^= 1
    path.write_bytes(changed)


def test_a_damaged_checkpoint_is_refused_and_of_a_run_the_one_before_is_taken(source, other, tmp_path):
    damage(source / "checkpoints/step-12/model.safetensors")
    with pytest.raises(CheckpointError, match=r"step-12: model\.safetensors is damaged"):
        tune(source / "checkpoints/step-12", other, tmp_path / "run")
    with pytest.warns(Notice, match="trying the checkpoint before it"):
        tune(source, other, tmp_path / "run")
    begun = RunConfig.read(tmp_path / "run").init_from
    assert begun is not None
    assert begun.path.name == "step-8"
    (source / "checkpoints/step-12/config.json").write_text('{"format": 1}')
    with pytest.raises(CheckpointError, match="does not describe a model"):
        tune(source / "checkpoints/step-12", other, tmp_path / "next")


def test_a_run_goes_on_only_as_what_it_was_begun_as(finished, other, tmp_path):
    def again(model, source):
        run = tmp_path / "run"
        return train(small_config(), model, other, run, init_from=source, resume=True, show=False)

    tune(finished, other, tmp_path / "run")
    with pytest.raises(UserError, match=r"init_from has changed \(.*step-12 → none\)"):
        again(MODEL, None)
    with pytest.raises(UserError, match=r"init_from has changed \(.*step-12 → .*elsewhere\)"):
        again(None, tmp_path / "elsewhere")
    assert again(None, finished).step == 12


def test_a_run_from_before_the_option_is_read(finished):
    file = finished / "run.json"
    content = json.loads(file.read_text())
    assert content.pop("init_from") is None
    file.write_text(json.dumps(content))
    (finished / "run.sha256").unlink()  # nor was there a seal
    assert RunConfig.read(finished).init_from is None
