"""Exports from when the package was called `srm`: `made_by_srm` was written by it, before it was renamed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import srmlab
from srmlab.cli import main

OLD = Path(__file__).parent / "made_by_srm"
EXPECTED = json.loads((OLD / "expected.json").read_text())


def last_logits(model) -> list[float]:
    with torch.no_grad():
        found = model(torch.tensor([EXPECTED["tokens"]]))
    logits = found if isinstance(found, torch.Tensor) else found.logits
    return logits[0, -1, : len(EXPECTED["last_logits"])].tolist()


@pytest.mark.parametrize("folder", ["plain", "huggingface"])
def test_an_old_export_loads_with_its_tokenizer_and_computes_what_it_did(folder):
    model, tokenizer = srmlab.load(OLD / folder), srmlab.load_tokenizer(OLD / folder)
    assert tokenizer.encode(EXPECTED["text"])[: len(EXPECTED["tokens"])] == EXPECTED["tokens"]
    assert last_logits(model) == pytest.approx(EXPECTED["last_logits"], abs=1e-5)


def test_transformers_opens_it_without_the_old_packages_code():
    from transformers import AutoModelForCausalLM

    import srmlab.interop.huggingface  # noqa: F401 registers the model type

    model = AutoModelForCausalLM.from_pretrained(OLD / "huggingface", trust_remote_code=False)
    assert last_logits(model) == pytest.approx(EXPECTED["last_logits"], abs=1e-5)


def test_exported_again_it_names_the_package_of_today(tmp_path):
    with pytest.raises(SystemExit) as stop:
        main(["export", str(OLD / "huggingface"), "--to", "hf", "--out", str(tmp_path / "new")])
    assert stop.value.code == 0
    assert "from srmlab." in (tmp_path / "new" / "modeling_srm.py").read_text()
    assert last_logits(srmlab.load(tmp_path / "new")) == pytest.approx(EXPECTED["last_logits"], abs=1e-5)
