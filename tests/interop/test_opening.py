"""An exported folder where nobody has imported the package, and where it is not installed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import Trainer, TrainingArguments

import srmlab
from srmlab.cli.generate import Command as Generate
from srmlab.data import byte_tokenizer
from srmlab.interop.huggingface import SRMForCausalLM, export, export_tokenizer

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


def test_the_folder_says_what_it_is(folder):
    card = (folder / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: transformers\n")
    assert f"{srmlab.load(folder).num_parameters():,} parameters" in card
    assert 'pip install "srmlab[hf]"' in card
    assert (folder / "generation_config.json").is_file()


def test_a_checkpoint_of_their_trainer_is_read_and_written_from(tmp_path, capsys):
    theirs = SRMForCausalLM.wrap(srmlab.build(CONFIG))
    tokenizer = export_tokenizer(byte_tokenizer(), tmp_path / "tokenizer", CONFIG.context)
    texts = tokenizer(["to be or not", "that is", "the", "question"], padding=True, return_tensors="pt")
    rows = [
        {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}
        for ids, mask in zip(texts["input_ids"], texts["attention_mask"], strict=True)
    ]
    arguments = TrainingArguments(
        str(tmp_path / "out"), max_steps=2, save_steps=2, per_device_train_batch_size=2, report_to=[],
        use_cpu=True, gradient_checkpointing=True, disable_tqdm=True,
    )  # fmt: skip
    Trainer(theirs, arguments, train_dataset=rows, processing_class=tokenizer).train()
    checkpoint = tmp_path / "out" / "checkpoint-2"
    loaded = srmlab.load(checkpoint)
    assert all(torch.equal(a, b) for a, b in zip(loaded.parameters(), theirs.parameters(), strict=True))
    capsys.readouterr()
    Generate(path=checkpoint, prompt="to be", max_new_tokens=3, seed=0).run()
    assert capsys.readouterr().out.startswith("to be")
