"""An exported folder where nobody has imported the package, and where it is not installed."""

from __future__ import annotations

import json
import os
import pty
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    Trainer,
    TrainingArguments,
    pipeline,
)

import srmlab
from srmlab.cli.generate import Command as Generate
from srmlab.data import byte_tokenizer
from srmlab.interop.huggingface import export

CONFIG = srmlab.preset("srm-nano").replace(vocab_size=257, depth=2, gradient_depth=1, context=32)

WITHOUT_THE_PACKAGE = """
import sys
sys.modules["srmlab"] = None  # as if it were not installed
from transformers import AutoModelForCausalLM, AutoTokenizer
for answer in ({"trust_remote_code": False}, {}):  # without a terminal nobody need answer
    print("\\n", AutoTokenizer.from_pretrained(sys.argv[1], **answer)("hi")["input_ids"], sep="")
try:
    AutoModelForCausalLM.from_pretrained(sys.argv[1], trust_remote_code=True)
except ImportError as error:
    print(error)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("export")
    export(srmlab.build(CONFIG), path, byte_tokenizer())
    return path


def test_without_the_package_the_tokenizer_opens_and_the_model_names_the_package(folder, tmp_path):
    told = subprocess.run(
        [sys.executable, "-c", WITHOUT_THE_PACKAGE, str(folder)],
        env=os.environ | {"HF_HOME": str(tmp_path)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
    )
    *_, error = lines = told.stdout.strip().splitlines()
    assert lines.count(str(byte_tokenizer().encode("hi"))) == 2
    assert 'pip install "srmlab[hf]"' in error


AT_A_TERMINAL = """
import sys
from transformers import AutoModelForCausalLM, AutoTokenizer
folder, without = sys.argv[1:]
for where, answer in ((folder, {"trust_remote_code": False}), (without, {}), (folder, {})):
    print("\\nids:", AutoTokenizer.from_pretrained(where, **answer)("hi")["input_ids"])
try:
    AutoModelForCausalLM.from_pretrained(without, trust_remote_code=True)
except ValueError as error:
    print(error)
"""


def test_transformers_asks_before_a_tokenizer_whose_model_brings_code(folder, tmp_path):
    """Why the pages write `trust_remote_code=False`: `AutoTokenizer` opens the model's config first, and only
    a config that does not say where the code is spares the question; a model then does not open."""
    without = shutil.copytree(folder, tmp_path / "without")
    config = json.loads((without / "config.json").read_text())
    del config["auto_map"]["AutoConfig"]
    (without / "config.json").write_text(json.dumps(config))
    ours, theirs = pty.openpty()
    os.write(ours, b"n\n")  # the answer to the one question
    command = [sys.executable, "-c", AT_A_TERMINAL, folder, without]
    environment = os.environ | {"HF_HOME": str(tmp_path)}
    subprocess.run(command, env=environment, stdin=theirs, stdout=theirs, stderr=theirs, check=True)
    os.close(theirs)
    shown = b""
    try:
        while part := os.read(ours, 1 << 16):
            shown += part
    except OSError:  # all is read
        os.close(ours)
    before, question, after = shown.decode().partition("Do you wish to run the custom code? [y/N]")
    ids = f"ids: {byte_tokenizer().encode('hi')}"
    assert question
    assert before.count(ids) == 2
    assert after.count(ids) == 1
    assert "does not recognize this architecture" in after


def test_a_pipeline_writes_from_the_first_line_and_in_padded_batches(folder):
    writer = pipeline("text-generation", model=str(folder), trust_remote_code=True)
    model, tokenizer = srmlab.load(folder), byte_tokenizer()
    ((first,),) = (writer("to be"),)  # nothing else said: to the end of the context, or of the text
    assert first["generated_text"].startswith("to be")
    texts, how = (
        ["to be or not", "that", "is the question"],
        GenerationConfig(max_new_tokens=8, do_sample=False),
    )
    written = writer(texts, batch_size=3, generation_config=how, return_full_text=False)
    for text, (answer,) in zip(texts, written, strict=True):
        tokens = torch.tensor([tokenizer.encode(text)])
        ours = srmlab.generate(model, tokens, 8, temperature=0, stop_token=tokenizer.end_of_text)
        new = [token for token in ours[0, tokens.shape[1] :].tolist() if token != tokenizer.end_of_text]
        assert answer["generated_text"] == tokenizer.decode(new)


def test_the_folder_says_what_it_is(folder):
    card = (folder / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: transformers\n")
    assert f"{srmlab.load(folder).num_parameters():,} parameters" in card
    assert 'pip install "srmlab[hf]"' in card
    assert (folder / "generation_config.json").is_file()


def test_an_export_is_tuned_by_their_trainer_and_written_from(folder, tmp_path, capsys):
    model, tokenizer = (
        kind.from_pretrained(folder, trust_remote_code=True) for kind in (AutoModelForCausalLM, AutoTokenizer)
    )
    texts = tokenizer(["to be or not", "that is", "the", "question"], padding=True, return_tensors="pt")
    rows = [
        {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}
        for ids, mask in zip(texts["input_ids"], texts["attention_mask"], strict=True)
    ]
    arguments = TrainingArguments(
        str(tmp_path / "out"), max_steps=3, save_steps=3, per_device_train_batch_size=2, report_to=[],
        use_cpu=True, gradient_checkpointing=True, disable_tqdm=True, learning_rate=1e-3,
    )  # fmt: skip
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    trainer = Trainer(model, arguments, train_dataset=rows, eval_dataset=rows[:3], processing_class=tokenizer)
    measured = trainer.evaluate()["eval_loss"]
    alone = [row["input_ids"][row["attention_mask"] == 1][None].to(model.device) for row in rows[:3]]
    losses = torch.cat([model.model(text, return_type="loss", loss_per_token=True)[0] for text in alone])
    assert measured == pytest.approx(losses.mean().item(), abs=1e-5)
    trainer.train()
    assert not all(torch.equal(before[name], weight) for name, weight in model.state_dict().items())
    checkpoint = tmp_path / "out" / "checkpoint-3"
    again = AutoModelForCausalLM.from_pretrained(checkpoint, trust_remote_code=True)
    for loaded in (again.model, srmlab.load(checkpoint)):
        assert all(torch.equal(a, b) for a, b in zip(loaded.parameters(), model.parameters(), strict=True))
    capsys.readouterr()
    Generate(path=checkpoint, prompt="to be", max_new_tokens=3, seed=0).run()
    assert capsys.readouterr().out.startswith("to be")


def test_a_stop_string_ends_the_text_and_needs_no_more_than_the_tokenizer(folder):
    model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    prompt = tokenizer(["My fellow"], return_tensors="pt")
    whole = model.generate(**prompt, max_new_tokens=8, do_sample=False)
    (text,) = tokenizer.batch_decode(whole[:, -8:-6])
    how = {"stop_strings": [text], "tokenizer": tokenizer}
    for options in ({"do_sample": False}, {"do_sample": False, "use_cache": False}):
        stopped = model.generate(**prompt, max_new_tokens=8, **options, **how)
        assert torch.equal(stopped, whole[:, : stopped.shape[1]])
        assert stopped.shape[1] < whole.shape[1]


def test_new_tokens_alone_bring_no_warning_of_a_length_that_nobody_gave(folder, monkeypatch):
    said = []
    monkeypatch.setattr("transformers.generation.utils.logger.warning", lambda text, *_: said.append(text))
    model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)
    prompt = torch.tensor([[1, 2, 3]])
    model.generate(prompt, max_new_tokens=2, do_sample=False)
    assert not said
    model.generate(prompt, max_new_tokens=2, max_length=9, do_sample=False)  # both were given
    assert any("max_length" in text for text in said)
