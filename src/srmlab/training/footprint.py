"""An estimate of the peak memory of a training step on one device, without running it.

One step runs on fake tensors, which have shapes and lifetimes but no data, under PyTorch's own `MemTracker`.
Sharding is real FSDP2 in a fake process group. What an allocator adds (rounding, fragmentation, the
libraries' workspaces) is not included.

    >>> import srmlab
    >>> from srmlab.training import TrainConfig
    >>> small, training = srmlab.preset("gpt2-nano"), TrainConfig(batch_size=8, dtype="float32")
    >>> peak_bytes(small, training, Layout()) > peak_bytes(small, training, Layout(recompute=True))
    True
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker
from torch.testing._internal.distributed.fake_pg import FakeStore

from srmlab.models import LanguageModel, ModelConfig, build
from srmlab.models.kernels import torchs_own
from srmlab.models.loss import for_memory_alone
from srmlab.training.config import Strategy, TrainConfig
from srmlab.training.distributed import World, distribute
from srmlab.training.recompute import recompute_activations

CPU = torch.device("cpu")  # fake tensors of a GPU need a GPU's build of PyTorch for their gradients


@dataclass(frozen=True)
class Layout:
    """How a training is laid out."""

    devices: int = 1
    strategy: Strategy = "single"
    recompute: bool = False
    gpu: bool = False  # torch's fused attention instead of what is written for the CPU

    def __str__(self) -> str:
        name = {"ddp": "DDP", "fsdp": "FSDP2"}.get(self.strategy, "")
        devices = f"{self.devices} device{'s' * (self.devices > 1)}"
        return ", ".join(filter(None, (devices, name, "recompute" * self.recompute)))


def layouts(gpu: bool) -> list[Layout]:
    """One, four and eight devices, copies and shards, with and without recomputing."""
    placed: list[tuple[int, Strategy]] = [(1, "single"), (4, "ddp"), (4, "fsdp"), (8, "ddp"), (8, "fsdp")]
    return [Layout(n, strategy, recompute, gpu) for n, strategy in placed for recompute in (False, True)]


def peak_bytes(config: ModelConfig, training: TrainConfig, layout: Layout) -> int:
    """Bytes of weights, gradients, optimizer and activations when they are most, on each device."""
    model = build(config, device="meta").train()
    weights = 4 * model.num_parameters()
    largest = 4 * max(parameter.numel() for parameter in model.parameters())
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    with fake:
        weights_on(model, CPU)
    if layout.recompute:
        recompute_activations(model)
    with _process_group(layout):
        if layout.strategy == "fsdp":
            distribute(model, World(0, layout.devices, CPU, "fsdp"))
        with fake:
            most = _most_bytes(model, training, layout)
    shards = layout.devices if layout.strategy == "fsdp" else 1
    update = 4 * weights + (weights if layout.gpu else largest)  # the optimizer's step, with its roots
    return max(most, update // shards)


def _most_bytes(model: LanguageModel, training: TrainConfig, layout: Layout) -> int:
    """While the loss is computed and differentiated."""
    rows = max(1, training.batch_size // (layout.devices * training.accumulate))
    context = training.context or model.config.context - model.config.puzzle_positions
    tokens = torch.zeros(rows, context, dtype=torch.long)
    bf16 = training.compute_dtype(torch.device("cuda" if layout.gpu else "cpu")) == torch.bfloat16
    tracker = WholeStep()
    tracker.track_external(model)
    kernels = torchs_own() if layout.gpu else contextlib.nullcontext()
    with tracker, kernels, for_memory_alone(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        moments = [torch.zeros_like(parameter) for parameter in model.parameters() for _ in range(2)]
        if layout.strategy == "ddp":  # its buckets of gradients stay
            for parameter in model.parameters():
                parameter.grad = torch.zeros_like(parameter)
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16, cache_enabled=False):
            if model.puzzle is not None:
                loss = model(tokens, tokens)  # a segment
            else:
                loss = model(tokens, tokens, progress=0.0)["loss"]  # what training computes
        loss.backward()
    del moments
    return int(tracker.get_tracker_snapshot("peak")[CPU]["Total"])


class WholeStep(MemTracker):
    """The peak of the step. Torch's tracker also keeps every module's own, which takes half of its time."""

    def _update_peak_stats(self, peak_state: Any) -> None:
        by_module, self.memory_tracking = self.memory_tracking, type(self.memory_tracking)()
        super()._update_peak_stats(peak_state)
        self.memory_tracking = by_module


def weights_on(model: LanguageModel, device: torch.device) -> None:
    """Give a model of the meta device weights on another one, tied ones staying tied; inside a fake mode
    they are fake."""
    made: dict[int, nn.Parameter] = {}
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                new = made.setdefault(id(parameter), nn.Parameter(_empty(parameter, device)))
                module._parameters[name] = new
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = _empty(buffer, device)


def _empty(like: Tensor, device: torch.device) -> Tensor:
    return torch.empty(like.shape, dtype=like.dtype, device=device)


@contextlib.contextmanager
def _process_group(layout: Layout) -> Iterator[None]:
    if layout.strategy != "fsdp":
        yield
        return
    dist.init_process_group("fake", rank=0, world_size=layout.devices, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()
