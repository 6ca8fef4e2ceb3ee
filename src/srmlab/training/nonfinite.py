"""What happens when a loss or its gradient is NaN or Inf: no weight is changed, and a policy decides.

stop      save the step before, and end with an error that names the windows of text
skip      leave this batch out, and take the next step
rewind    back to the last checkpoint, and from there on with the batches after the bad one
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from srmlab.errors import UserError
from srmlab.training.checkpoint import set_random_state
from srmlab.training.config import OnNonfinite

if TYPE_CHECKING:
    from srmlab.training.loop import Trainer

MAX_REWINDS = 10  # to one and the same checkpoint

Row = Mapping[str, Any]  # the step's line in metrics.jsonl


class NonfiniteLoss(UserError):
    """The loss or its gradient is NaN or Inf, and the policy is to stop."""


def stop(trainer: Trainer, row: Row) -> None:
    set_random_state(trainer.model, trainer.random_before)
    trainer.save()
    shown = ", ".join(map(str, row["windows"][:4])) + (" …" if len(row["windows"]) > 4 else "")
    raise NonfiniteLoss(
        f"step {row['step']}: loss {row['loss']}, gradient norm {row['grad_norm']} on windows {shown}; "
        f"no weight was changed and step {trainer.step} is saved: lower lr, set clip, "
        f"or `srmlab resume {trainer.directory.path} --on-nonfinite skip`"
    )


def skip(trainer: Trainer, row: Row) -> None:
    trainer.step = row["step"]
    trainer.objective.discard(0)


def rewind(trainer: Trainer, row: Row) -> None:
    trainer.progress.say(
        f"step {row['step']}: loss {row['loss']}, gradient norm {row['grad_norm']}; rewinding"
    )
    offset = trainer.data_offset
    trainer.restore(trainer.progress.say, keep_events=True)
    trainer.rewinds[trainer.step] += 1
    if trainer.rewinds[trainer.step] > MAX_REWINDS:
        raise NonfiniteLoss(
            f"not finite again after {MAX_REWINDS} rewinds to step {trainer.step}: lower lr, or set clip"
        )
    trainer.data_offset = offset + row["step"] - trainer.step
    trainer.objective.discard(row["step"] - trainer.step)


POLICIES: dict[OnNonfinite, Callable[[Trainer, Row], None]] = {"stop": stop, "skip": skip, "rewind": rewind}
