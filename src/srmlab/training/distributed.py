"""One process or many: everything that differs between the two, and nothing else of the training loop.

    torchrun --nproc-per-node 4 --no-python srmlab train srm-med …            four copies of the model (ddp)
    torchrun --nproc-per-node 4 --no-python srmlab train … --strategy fsdp    one model in four shards (fsdp)

A `World` is this process's place among the others. The global batch of a step is the same for any world
(see `srmlab.data`); every process takes its rows of it, PyTorch averages the gradients, and all of them take
the same step. Whatever they must decide together (stop? is the loss finite?) they decide on reduced
numbers, so they always agree.

FSDP2 shards every unit of the model (a step function, say), and the rest as one root. The layer is called n
times a pass with the same weights: they are therefore gathered once and kept until the backward pass is
over, not gathered again for every call.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import PrefixStore, TCPStore
from torch.nn.parallel import DistributedDataParallel

from srmlab.errors import UserError
from srmlab.models import LanguageModel
from srmlab.storage.weights import is_sharded
from srmlab.training.config import Strategy


@dataclass(frozen=True)
class World:
    rank: int
    size: int
    device: torch.device
    strategy: Strategy  # "single", "ddp" or "fsdp"

    @property
    def main(self) -> bool:
        """The one process that writes."""
        return self.rank == 0

    def total(self, *values: float) -> list[float]:
        """The sum of each value over all processes."""
        if self.size == 1:
            return list(values)
        tensor = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(tensor)
        return tensor.tolist()

    def gather(self, rows: Tensor) -> Tensor:
        """The rows [b, …] of all processes, in their order."""
        if self.size == 1:
            return rows
        parts = [torch.empty_like(rows) for _ in range(self.size)]
        dist.all_gather(parts, rows.contiguous())
        return torch.cat(parts)

    def share(self, value: Any) -> Any:
        """What the main process has, in all processes."""
        if self.size == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0, device=self.device)
        return box[0]

    @contextlib.contextmanager
    def only_main(self) -> Iterator[bool]:
        """A part that the main process does (`if mine:`) and the others wait for; if it fails, all fail."""
        failure: Exception | None = None
        try:
            yield self.main
        except Exception as error:
            if self.size == 1:
                raise
            failure = error
        message = self.share(None if failure is None else f"{failure}")
        if failure is not None:
            raise failure
        if message is not None:
            raise UserError(message)


@contextlib.contextmanager
def open_world(device: str = "auto", strategy: Strategy = "auto") -> Iterator[World]:
    """Join the other processes that torchrun started, if it did."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield World(0, 1, device_of(device), "single")
        return
    if strategy == "single":
        raise UserError(
            f'strategy = "single": there are {size} processes; use ddp or fsdp, or start without torchrun'
        )
    mine = device_of(device, int(os.environ.get("LOCAL_RANK", "0")))
    if mine.type == "cuda":
        torch.cuda.set_device(mine)
    ours = not dist.is_initialized()
    if ours:
        backend = "cpu:gloo,cuda:nccl" if mine.type == "cuda" else "gloo"
        dist.init_process_group(backend, **_store_of_this_attempt())
    try:
        yield World(dist.get_rank(), size, mine, "ddp" if strategy == "auto" else strategy)
    finally:
        if ours:
            dist.destroy_process_group()


def _store_of_this_attempt() -> dict[str, Any]:
    """Where processes find each other, apart from those of an earlier attempt.

    torchrun --max-restarts gives restarted processes the very store in which the dead ones left their
    addresses (pytorch#135712). On one node attempts are distinguished by their number. On several it is
    not the same everywhere, and TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 is the way (docs/cluster.md).
    """
    shared = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    if not shared or os.environ.get("GROUP_WORLD_SIZE") != "1":
        return {}
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = TCPStore(address, port, size, is_master=False)
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return {"store": PrefixStore(f"srmlab-{attempt}", store), "rank": rank, "world_size": size}


def device_of(name: str, local_rank: int = 0) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UserError(f"device = {name!r}: use cpu, cuda, cuda:1 or auto") from None
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise UserError(
                f"device = {name!r}: PyTorch sees no GPU here; use cpu, or install a CUDA build of torch"
            )
        if device.index is None:
            device = torch.device("cuda", local_rank)
        if (device.index or 0) >= torch.cuda.device_count():
            raise UserError(
                f"device = {name!r}: there are {torch.cuda.device_count()} GPUs; start fewer processes"
            )
    elif device.type != "cpu":
        try:
            torch.zeros(1, device=device).item()
        except (RuntimeError, AssertionError, NotImplementedError):
            raise UserError(f"device = {name!r}: nothing can be computed there; use cpu, or auto") from None
    return device


def distribute(
    model: LanguageModel, world: World, called: nn.Module | None = None, *, uses_all: bool = True
) -> nn.Module:
    """What to call for a forward pass: the model, or DDP's or FSDP2's form of it. Names stay the model's.

    `called` is a module that calls the model, if it is not the model itself; `uses_all` whether its gradient
    is then of all weights.
    """
    if world.strategy == "ddp":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # broadcast_buffers has another name from 2.13 on
            return DistributedDataParallel(
                called or model,
                device_ids=[world.device] if world.device.type == "cuda" else None,
                broadcast_buffers=False,  # they are functions of the config
                gradient_as_bucket_view=True,
                find_unused_parameters=not (uses_all and model.uses_all_weights),
            )
    if world.strategy == "fsdp":
        from torch.distributed.device_mesh import init_device_mesh  # two seconds that few runs need
        from torch.distributed.fsdp import fully_shard
        from torch.distributed.tensor import Shard

        mesh = init_device_mesh(world.device.type, (world.size,))
        warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view")  # nobody writes into it

        def placement(parameter: nn.Parameter) -> Shard:
            """The first axis that divides evenly: one or three streams do not divide among four GPUs."""
            even = [axis for axis, length in enumerate(parameter.shape) if length % world.size == 0]
            return Shard(even[0] if even else 0)

        for module in list(model.modules()):
            if isinstance(module, model.units):
                fully_shard(module, mesh=mesh, reshard_after_forward=False, shard_placement_fn=placement)
        fully_shard(model, mesh=mesh, reshard_after_forward=False, shard_placement_fn=placement)
    return called or model


@contextlib.contextmanager
def gradient_sync(module: nn.Module, now: bool) -> Iterator[None]:
    """Whether backward passes inside average over processes; only the last micro-batch's needs to."""
    if isinstance(module, DistributedDataParallel) and not now:
        with module.no_sync():
            yield
        return
    if sync := getattr(module, "set_requires_gradient_sync", None):  # FSDP2's
        sync(now)
    yield


def whole(tensor: Tensor) -> Tensor:
    """A DTensor's full value, gathered; any other tensor itself."""
    return tensor.full_tensor() if is_sharded(tensor) else tensor
