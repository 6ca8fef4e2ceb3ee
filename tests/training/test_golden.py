"""Checkpoints of earlier versions keep loading, and training goes on from them with the losses of then."""

import json
import shutil
from pathlib import Path

import pytest
from golden.make_golden import MODEL, take_steps

import srmlab
from srmlab.errors import UserError
from srmlab.models import build
from srmlab.storage import load_tokenizer
from srmlab.storage.weights import verify
from srmlab.training import AdamAtan2
from srmlab.training.checkpoint import load_checkpoint

FORMATS = sorted((Path(__file__).parent / "golden").glob("format-*"))
CHECKPOINTS = [folder / kind / "step-4" for folder in FORMATS for kind in ("whole", "sharded")]


@pytest.fixture(params=CHECKPOINTS, ids=lambda path: f"{path.parents[1].name} {path.parent.name}")
def golden(request) -> Path:
    return request.param


def test_a_golden_checkpoint_goes_on_as_it_did(golden):
    verify(golden)
    model = build(MODEL).train()
    optimizer = AdamAtan2(model.parameters(), lr=1e-2)
    load_checkpoint(golden, model, optimizer)
    expected = json.loads((golden.parents[1] / "expected.json").read_text())["losses"]
    assert take_steps(model, optimizer, 4) == pytest.approx(expected, abs=1e-5)


def test_a_golden_checkpoint_is_a_model_with_its_tokenizer(golden):
    assert srmlab.load(golden).config == MODEL
    tokenizer = load_tokenizer(golden)
    assert tokenizer is not None
    assert tokenizer.decode(tokenizer.encode("golden")) == "golden"


def test_a_checkpoint_of_a_later_version_says_what_to_do(golden, tmp_path):
    copy = Path(shutil.copytree(golden, tmp_path / "step-4"))
    (copy / "config.json").write_text(json.dumps({"format": 2, "model": {}}))
    with pytest.raises(UserError, match="has format 2, this version reads up to 1: upgrade"):
        srmlab.load(copy, verify=False)


def test_the_golden_files_are_small():
    assert sum(path.stat().st_size for folder in FORMATS for path in folder.rglob("*")) < 200_000
