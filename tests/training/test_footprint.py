"""The memory of a step, estimated without taking it, beside what a process really takes."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys

import pytest

import srmlab
from srmlab.training import TrainConfig
from srmlab.training.footprint import Layout, layouts, peak_bytes

NANO = srmlab.preset("srm-nano")
TRAINING = TrainConfig(batch_size=8, context=256, dtype="float32")

# Tensors of their own pages: what is freed is the system's at once, so the peak is that of live tensors.
STEP = """
import json, os, sys
import torch, srmlab
from srmlab.training import TrainConfig
from srmlab.training.optimizer import build_optimizer
from srmlab.training.recompute import recompute_activations
torch.set_num_threads(1)
config, training, recompute = json.loads(sys.argv[1])
tokens = torch.zeros(1, 40, dtype=torch.long)
small = srmlab.build(srmlab.preset("gpt2-nano")).train()  # loads what is loaded on first use
recompute_activations(small)
small(tokens, tokens).backward()
before = int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
training = TrainConfig(**training)
model = srmlab.build(srmlab.config_from_dict(config)).train()
if recompute:
    recompute_activations(model)
optimizer = build_optimizer(training, model)
tokens = torch.zeros(training.batch_size, training.context, dtype=torch.long)
for _ in range(2):
    model(tokens, tokens).backward()
    optimizer.step()
    optimizer.zero_grad()
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(int(peak.split()[1]) * 1024 - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/statm and sets glibc's allocator")
@pytest.mark.parametrize("recompute", [False, True])
def test_the_estimate_is_within_15_percent_of_what_a_process_takes(recompute):
    given = json.dumps([NANO.to_dict(), {"batch_size": 8, "context": 256}, recompute])
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", STEP, given], capture_output=True, text=True, check=True, env=environment
    )
    assert peak_bytes(NANO, TRAINING, Layout(recompute=recompute)) == pytest.approx(
        float(done.stdout), rel=0.15
    )


def test_shards_and_copies_take_what_they_should():
    shallow = NANO.replace(depth=2, gradient_depth=1)  # the weights are the same at any depth

    def peak(devices, strategy):
        return peak_bytes(shallow, TRAINING, Layout(devices, strategy))

    weights = 4 * srmlab.build(shallow, device="meta").num_parameters()
    assert peak(4, "ddp") < peak(1, "single")  # fewer rows on each
    saved = peak(8, "ddp") - peak(8, "fsdp")  # of gradients and optimizer, but not of gathered weights
    assert weights < saved < 4 * weights


def test_every_layout_has_a_name_of_its_own():
    names = [str(layout) for layout in layouts(gpu=True)]
    assert len(set(names)) == len(names) == 10


def test_two_chunks_of_the_loss_take_the_memory_of_all(monkeypatch):
    config, many = srmlab.preset("gpt2-nano"), TRAINING.replace(batch_size=32)  # eight chunks
    short = peak_bytes(config, many, Layout())
    monkeypatch.setattr("srmlab.training.footprint.for_memory_alone", contextlib.nullcontext)
    assert short == peak_bytes(config, many, Layout())
