"""A run with its text: the same model, tokens and reading for every command."""

from __future__ import annotations

from pathlib import Path

import pytest

import srmlab
from srmlab.cli import main
from srmlab.data import PrepareConfig, byte_tokenizer, prepare
from srmlab.errors import UserError
from srmlab.storage import saved_tokenizer
from srmlab.training import TrainConfig, train
from srmlab.training.run_text import chosen, open_text, place_for
from subjects import OF_BYTES, trained_run

SHIPPED = srmlab.pretrained.folder()


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    return trained_run(tmp_path_factory.mktemp("text"))


@pytest.fixture(scope="module")
def masked(run) -> Path:
    """A run on the same data that was trained with attention within documents and shorter windows."""
    config = TrainConfig(
        steps=1, warmup=0, batch_size=2, eval_tokens=32, device="cpu", document_mask=True, context=8
    )
    train(config, OF_BYTES, run.parent / "data", run.parent / "masked", show=False)
    return run.parent / "masked"


def test_a_run_is_read_as_it_was_trained_and_so_are_its_checkpoints(run, masked):
    plain = open_text(run)
    assert (plain.context, plain.document_mask, plain.marks) == (OF_BYTES.context, False, None)
    for path in (masked, masked / "checkpoints" / "step-1"):
        text = open_text(path)
        assert (text.context, text.document_mask) == (8, True)
        assert next(iter(text.batches(2))).documents is not None


def test_options_say_how_to_read_what_was_not_trained_so(run):
    text = open_text(run, context=4, document_mask=True, answers_only=True)
    assert (text.context, text.document_mask) == (4, True)
    assert text.marks == text.tokenizer.answer_marks
    assert open_text(run, longest=3).context == 3


def test_an_export_needs_to_be_given_its_data(run, tmp_path):
    export = srmlab.save(srmlab.load(run), tmp_path / "export", tokenizer=byte_tokenizer())
    with pytest.raises(UserError, match="does not say what it was trained on: give --data DIR"):
        open_text(export)
    assert open_text(export, data=run.parent / "data").source == open_text(run).source


def test_a_file_is_one_document_and_known_by_what_it_says(masked, tmp_path):
    file = tmp_path / "speech.txt"
    file.write_text("alpha beta stream layer " * 4)
    text = open_text(masked, text=file)
    assert (text.data, text.document_mask) == (None, False)
    assert len(text.tokens) == 96
    name = text.name(text.batches(4))
    assert name.startswith("speech.txt ")
    assert name.endswith(", 11 windows of 8")
    file.write_text("alpha beta stream lawyer " * 4)
    assert open_text(masked, text=file).source != text.source
    with pytest.raises(UserError, match="does not come with its training data: give --data"):
        text.training_batches(2, seed=0)


def test_a_file_of_windows_is_read_as_it_is_prepared(run, tmp_path):
    file = tmp_path / "windows.txt"
    file.write_bytes(b"\xef\xbb\xbfalpha\r\nbeta\r\n")
    tokens = open_text(run, text=file).tokens
    assert bytes(tokens.read(0, len(tokens)).tolist()) == b"alpha\r\nbeta\r\n"


@pytest.mark.parametrize("context", [0, OF_BYTES.context + 1])
def test_windows_that_the_model_cannot_read_are_refused(run, context):
    with pytest.raises(
        UserError, match=f"--context {context}: .* has a context of {OF_BYTES.context}, give 1"
    ):
        open_text(run, context=context)


def test_data_of_another_vocabulary_is_refused(run):
    with pytest.raises(UserError, match=r"vocab_size = 512: .* has 257 ids; prepare the data with"):
        open_text(SHIPPED, data=run.parent / "data")


def test_data_of_another_tokenizer_is_refused_though_it_has_as_many_ids(tmp_path):
    """A loss on ids that stand for other bytes looks like a number, and is none."""
    (tmp_path / "other.txt").write_text(" ".join(str(number**3) for number in range(3000)))
    data = tmp_path / "other"
    prepare(PrepareConfig(str(tmp_path / "other.txt"), data, "bpe:512", section_chars=300, val_fraction=0.5))
    with pytest.raises(UserError, match=r"another tokenizer than .*srm-nano: prepare it with --tokenizer"):
        open_text(SHIPPED, data=data)


def test_the_shipped_model_comes_with_its_text():
    text = open_text(SHIPPED)
    assert text.source.startswith("validation.txt ")
    assert text.batches(8).windows == 15


def test_a_checkpoint_has_the_tokenizer_of_its_run_and_an_export_only_its_own(run, tmp_path, monkeypatch):
    assert saved_tokenizer(run / "checkpoints" / "step-6") is not None
    (tmp_path / "exports").mkdir()
    srmlab.save(srmlab.load(run), tmp_path / "exports" / "bare")
    byte_tokenizer().save(tmp_path / "tokenizer")  # nobody's
    monkeypatch.chdir(tmp_path)
    assert saved_tokenizer("exports/bare") is None


def test_a_run_or_the_shipped_model_must_be_chosen():
    assert chosen(None, pretrained=True) == SHIPPED
    assert chosen("runs/nano", pretrained=False) == Path("runs/nano")
    for path, pretrained in ((None, False), (Path("runs/nano"), True)):
        with pytest.raises(UserError, match="give either a run"):
            chosen(path, pretrained)


def test_what_is_about_a_model_goes_into_its_run_or_beside_it(run):
    assert place_for(run, "report.html") == run / "report.html"
    sealed = run / "checkpoints" / "step-6"
    assert place_for(sealed, "report.html") == run / "checkpoints" / "step-6-report.html"
    assert place_for(SHIPPED, "report.html") == Path("srm-nano-report.html")


@pytest.mark.parametrize(
    ("arguments", "made"),
    [
        (["evaluate", "--tokens", "512"], []),
        (["analyze", "--only", "routing", "--tokens", "256", "--formats", "svg"], ["srm-nano-analysis"]),
        (["export", "--to", "safetensors", "--out", "model"], ["model"]),
        (["generate", "--max-new-tokens", "2"], []),
    ],
    ids=lambda words: words[0] if words else "",
)
def test_commands_take_the_shipped_model_and_write_into_the_current_folder(
    arguments, made, tmp_path, monkeypatch
):
    before = sorted(SHIPPED.parent.rglob("*"))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        main([*arguments, "--pretrained"])
    assert stop.value.code == 0
    assert [path.name for path in tmp_path.iterdir()] == made
    assert sorted(SHIPPED.parent.rglob("*")) == before


def test_the_shipped_model_may_stand_for_one_of_the_papers(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        main(["paper", "--pretrained", "161m", "--out", "paper", "--tokens", "256"])
    assert stop.value.code == 0
    assert (tmp_path / "paper" / "data" / "161m_ablation_ranked.dat").is_file()


@pytest.mark.parametrize("command", ["dictionary", "solve"])
def test_what_needs_the_training_text_asks_for_it(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        main([command, "--pretrained"])
    assert stop.value.code == 2
    assert "does not come with its training data: give --data DIR" in capsys.readouterr().err
