"""`srmlab export`: folders for Hugging Face and for `srmlab.load`, and back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import srmlab
import srmlab.interop.huggingface  # registers the model type
from srmlab.cli import main
from srmlab.data import byte_tokenizer
from srmlab.models import HRMConfig, LanguageModel
from srmlab.storage import load_tokenizer

CONFIG = HRMConfig(
    vocab_size=257,
    context=40,
    dim=16,
    heads=2,
    head_dim=8,
    mlp_dim=24,
    low_blocks=2,
    high_blocks=2,
    shared_net=True,
)


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    return srmlab.build(CONFIG).eval()


@pytest.fixture
def folder(model, tmp_path) -> Path:
    return srmlab.save(model, tmp_path / "plain", tokenizer=byte_tokenizer())


def run(capsys, *arguments: object) -> tuple[int | str | None, str, str]:
    with pytest.raises(SystemExit) as stop:
        main(["export", *map(str, arguments)])
    out, err = capsys.readouterr()
    return stop.value.code, out, err


def same_weights(first: LanguageModel, second: LanguageModel) -> bool:
    state = second.state_dict()
    return first.config == second.config and all(
        torch.equal(value, state[name]) for name, value in first.state_dict().items()
    )


def test_the_hugging_face_folder_opens_with_the_auto_classes(capsys, model, folder, tmp_path):
    out = tmp_path / "hf"
    code, said, err = run(capsys, folder, "--to", "hf", "--out", out)
    assert (code, err) == (0, "")
    assert said == f"{out}: load it with AutoModelForCausalLM.from_pretrained, trust_remote_code=True\n"
    theirs, tokenizer = AutoModelForCausalLM.from_pretrained(out), AutoTokenizer.from_pretrained(out)
    assert same_weights(model, theirs.model)
    prompt = tokenizer("né", return_tensors="pt")
    written = theirs.generate(**prompt, max_new_tokens=8, do_sample=False)
    expected = srmlab.generate(
        model, prompt["input_ids"], 8, temperature=0, stop_token=tokenizer.eos_token_id
    )
    assert torch.equal(written, expected)
    assert theirs.generation_config.eos_token_id == byte_tokenizer().end_of_text


def test_a_hugging_face_folder_becomes_a_plain_one_again(capsys, folder, tmp_path):
    assert run(capsys, folder, "--out", tmp_path / "hf")[0] == 0
    code, said, _ = run(capsys, tmp_path / "hf", "--to", "safetensors", "--out", tmp_path / "back")
    assert code == 0
    assert said == f'{tmp_path / "back"}: load it with srmlab.load("{tmp_path / "back"}")\n'
    assert same_weights(srmlab.load(folder), srmlab.load(tmp_path / "back"))
    tokenizer = load_tokenizer(tmp_path / "back")
    assert tokenizer is not None
    assert tokenizer.fingerprint == byte_tokenizer().fingerprint


def test_srm_generate_reads_a_hugging_face_folder(capsys, folder, tmp_path):
    run(capsys, folder, "--out", tmp_path / "hf")
    answers = []
    for source in (folder, tmp_path / "hf"):
        with pytest.raises(SystemExit):
            main(
                ["generate", str(source), "--prompt", "ab", "--max-new-tokens", "8", "--seed", "1", "--json"]
            )
        answers.append(json.loads(capsys.readouterr().out)["new_tokens"])
    assert answers[0] == answers[1]


@pytest.mark.parametrize("kind", ["hf", "safetensors"])
def test_without_a_tokenizer_it_says_so_and_takes_one(capsys, model, tmp_path, kind):
    bare = srmlab.save(model, tmp_path / "bare")
    assert "It has no tokenizer" in run(capsys, bare, "--to", kind, "--out", tmp_path / "one")[1]
    said = run(capsys, bare, "--to", kind, "--out", tmp_path / "two", "--tokenizer", "byte")[1]
    assert "no tokenizer" not in said
    assert list((tmp_path / "two").rglob("tokenizer.json"))


@pytest.mark.parametrize("kind", ["hf", "safetensors"])
def test_what_is_there_is_not_overwritten(capsys, folder, tmp_path, kind):
    out = tmp_path / "out"
    out.mkdir()
    (out / "precious").write_text("x")
    code, _, err = run(capsys, folder, "--to", kind, "--out", out)
    assert code == 2
    assert err == f"srmlab export: {out} exists and is not overwritten: choose another folder, or delete it\n"
    assert [path.name for path in out.iterdir()] == ["precious"]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["nowhere", "--out", "x"], "nowhere does not exist: give a run, a checkpoint or an export"),
        (["FOLDER", "--out", "x", "--to", "onnx"], "onnx"),
        (["FOLDER"], "--out missing"),
        (["FOLDER", "--out", "x", "--tokenizer", "gpt2"], "has its own, byte; leave it out"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(capsys, folder, arguments, complaint):
    code, _, err = run(capsys, *(folder if word == "FOLDER" else word for word in arguments))
    assert (code, err.count("\n")) == (2, 1)
    assert complaint in err


def test_a_tokenizer_larger_than_the_model_is_refused_and_leaves_nothing(capsys, tmp_path):
    small = srmlab.save(srmlab.build(CONFIG.replace(vocab_size=100)), tmp_path / "small")
    code, _, err = run(capsys, small, "--out", tmp_path / "hf", "--tokenizer", "byte")
    assert code == 2
    assert "tokenizer byte has 257 ids, the model 100" in err
    assert [path.name for path in tmp_path.iterdir()] == ["small"]
