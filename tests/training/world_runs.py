"""A chain of training runs for several processes, started by torchrun: python world_runs.py DATA FOLDER.

FOLDER then holds the runs `ddp`, `fsdp`, `random` (DDP, random order), `drawn-ddp` and
`drawn-fsdp` (a depth drawn for every step), `answers` and `answers-fsdp` (loss on
the answers of FOLDER/sums), `puzzles` and `stopped-puzzles` (DDP, of FOLDER/sudokus), `tuned-ddp` and
`tuned-fsdp` (begun with the weights of FOLDER/single) and `chain`, which must exist, begun by one process
and continued here with DDP and then with FSDP2, each stopped by a signal to one process.
"""

import os
import signal
import sys
from pathlib import Path

import torch.distributed as dist
from small_runs import MODEL, PUZZLES, RANDOM_ORDER, small_config

from srmlab.errors import UserError
from srmlab.training import resume, train
from srmlab.training.loop import Trainer


def stop_at(step: int):
    """Send SIGTERM to the last process during `step`, and to no other."""
    advance = Trainer.advance

    def told(self: Trainer) -> int:
        if self.step + 1 == step and self.world.rank == self.world.size - 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return advance(self)

    Trainer.advance = told
    return lambda: setattr(Trainer, "advance", advance)


def main() -> None:
    data, folder = Path(sys.argv[1]), Path(sys.argv[2])
    dist.init_process_group("gloo")  # one group for all runs
    configs = {
        "ddp": (small_config(strategy="ddp"), MODEL),
        "fsdp": (small_config(strategy="fsdp", accumulate=2), MODEL),
        "random": (small_config(strategy="ddp"), RANDOM_ORDER),
        "drawn-ddp": (small_config(strategy="ddp", depth_schedule="draw:1/1"), MODEL),
        "drawn-fsdp": (small_config(strategy="fsdp", depth_schedule="draw:1/1"), MODEL),
    }
    for name, (config, model) in configs.items():
        train(config, model, data, folder / name, show=False)
    answers = {  # with one row a micro-batch, some of them have no answer at all
        "answers": small_config(strategy="ddp", accumulate=2, answers_only=True),
        "answers-fsdp": small_config(strategy="fsdp", accumulate=2, answers_only=True),
    }
    for name, config in answers.items():
        train(config, MODEL, folder / "sums", folder / name, show=False)
    puzzles = small_config(strategy="ddp", accumulate=2, segments=3, ema=0.9)
    train(puzzles, PUZZLES, folder / "sudokus", folder / "puzzles", show=False)
    undo = stop_at(7)  # in the midst of a puzzle's segments
    stopped = train(puzzles, PUZZLES, folder / "sudokus", folder / "stopped-puzzles", show=False)
    assert (stopped.step, stopped.exit_code) == (7, 143), stopped
    undo()
    resume(folder / "stopped-puzzles", show=False)
    try:
        sharded = small_config(strategy="fsdp", segments=3)
        train(sharded, PUZZLES, folder / "sudokus", folder / "sharded-puzzles", show=False)
    except UserError as refusal:
        (folder / f"refused-{dist.get_rank()}").write_text(str(refusal))
    for strategy in ("ddp", "fsdp"):
        config, out = small_config(strategy=strategy), folder / f"tuned-{strategy}"
        train(config, None, data, out, init_from=folder / "single", show=False)
    for strategy, step in (("ddp", 6), ("fsdp", 9)):
        undo = stop_at(step)
        result = resume(folder / "chain", strategy=strategy, show=False)
        assert (result.step, result.exit_code) == (step, 143), result
        undo()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
