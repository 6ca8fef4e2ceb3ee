"""lm-evaluation-harness, unmodified, on an exported folder: its loglikelihoods and its texts are ours."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import srmlab
from srmlab.data import Tokenizer, byte_tokenizer
from srmlab.interop.huggingface import export
from srmlab.models import LanguageModel
from subjects import SMALL

TASK = Path(__file__).parent / "task"
NEW_TOKENS = 12  # max_gen_toks of the task

# In a process of its own: nothing there has imported srmlab, so the folder must open by `trust_remote_code`.
HARNESS = """
import json, sys
import lm_eval, torch
from lm_eval.tasks import TaskManager
torch.set_num_threads(1)
assert "srmlab" not in sys.modules
results = lm_eval.simple_evaluate(
    model="hf", model_args=f"pretrained={sys.argv[1]},trust_remote_code=True", device="cpu", batch_size=3,
    tasks=["srm_cloze", "srm_continue"], task_manager=TaskManager(include_path=".", include_defaults=False),
    log_samples=True, bootstrap_iters=0,
)
samples = {
    name: [{"doc": sample["doc"], "answers": sample["resps"]} for sample in of_task]
    for name, of_task in results["samples"].items()
}
with open(sys.argv[2], "w") as out:
    json.dump({"accuracy": results["results"]["srm_cloze"]["acc,none"], "samples": samples}, out)
"""


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    config = SMALL.replace(vocab_size=257, context=96, embedding_dim=32, depth=3)
    return srmlab.build(config).eval()


@pytest.fixture(scope="module")
def evaluation(model, tmp_path_factory) -> dict:
    folder = tmp_path_factory.mktemp("lm-eval")
    export(model, folder / "model", byte_tokenizer())
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(folder / "home")}
    command = [sys.executable, "-c", HARNESS, str(folder / "model"), str(folder / "out.json")]
    subprocess.run(command, cwd=TASK, env=os.environ | offline, check=True, timeout=300)
    return json.loads((folder / "out.json").read_text())


def loglikelihood(model: LanguageModel, tokenizer: Tokenizer, text: str, ending: str) -> tuple[float, bool]:
    """ln p(ending | text), and whether it is what greedy decoding would write."""
    tokens = torch.tensor([tokenizer.encode(text + ending)])
    size = len(tokenizer.encode(ending))
    with torch.inference_mode():
        log_probs = model(tokens[:, :-1])[0, -size:].log_softmax(-1)
    targets = tokens[0, -size:]
    chosen = log_probs.gather(-1, targets[:, None]).sum()
    return float(chosen), bool((log_probs.argmax(-1) == targets).all())


@pytest.mark.slow
def test_the_harness_finds_our_loglikelihoods(model, evaluation):
    samples = evaluation["samples"]["srm_cloze"]
    assert len(samples) == 5
    right = []
    for sample in samples:
        question = sample["doc"]
        ours = [
            loglikelihood(model, byte_tokenizer(), question["sentence"], end) for end in question["endings"]
        ]
        for ((value, is_greedy),), (expected, expected_greedy) in zip(sample["answers"], ours, strict=True):
            assert value == pytest.approx(expected, abs=1e-3, rel=1e-6)
            assert is_greedy == expected_greedy
        best = max(range(len(ours)), key=lambda i: ours[i][0])
        right.append(best == question["answer"])
    assert evaluation["accuracy"] == pytest.approx(sum(right) / len(right))


@pytest.mark.slow
def test_the_harness_writes_our_greedy_text_from_left_padded_batches(model, evaluation):
    tokenizer = byte_tokenizer()
    samples = evaluation["samples"]["srm_continue"]
    assert len({len(tokenizer.encode(sample["doc"]["sentence"])) for sample in samples}) > 1
    for sample in samples:
        prompt = tokenizer.encode(sample["doc"]["sentence"])
        written = srmlab.generate(
            model, torch.tensor([prompt]), NEW_TOKENS, temperature=0, stop_token=tokenizer.end_of_text
        )
        new = [token for token in written[0, len(prompt) :].tolist() if token != tokenizer.end_of_text]
        assert sample["answers"] == [[tokenizer.decode(new).split("\n\n")[0]]]
