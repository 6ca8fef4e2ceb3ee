"""The puzzle objective: deep supervision over segments, as in HRM and TRM.

    every slot of the batch holds a puzzle and its state; every step is one segment of all slots:
        a slot that has halted is given the next puzzle and the initial state
        segment   logits, q, state = model.segment(board, state)
        loss      of the cells + ½ · (that of q_halt [+ that of q_continue])
        halt      at the last segment, or earlier if q says so
        the state, detached, is where the slot continues

Halting (in training; evaluation always runs all segments):

    hrm     q_halt > q_continue. q_halt is trained to predict whether the whole answer is right, q_continue
            what q will be after one more segment: sigmoid(max of both), or of q_halt at the last; an extra
            forward pass, left out where there is one segment and nothing to decide
    trm     q_halt > 0; there is no q_continue
    fixed   after the last segment only; q is not trained

With probability `exploration` a slot may not halt in this segment before a number drawn from 2 … segments.

Slot j of B takes the puzzles j, j + B, j + 2B … of the endless sequence, each when the one before has halted:
so nothing depends on the number of processes, and what a checkpoint needs is, for every slot, the number of
its puzzle, how many segments it has had, whether it has halted, and its state. Where `ema` is set, the model
of a checkpoint is the EMA, which is evaluated, and the weights themselves are stored with the optimizer.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from itertools import zip_longest
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from srmlab.models import LanguageModel
from srmlab.models.loss import IGNORE
from srmlab.models.puzzle import Segment, log_softmax, log_stablemax
from srmlab.puzzles import PuzzleBatch, PuzzleBatches, Puzzles, evaluation_puzzles
from srmlab.training.config import TrainConfig
from srmlab.training.distributed import World, distribute, gradient_sync
from srmlab.training.evaluation import state_norms
from srmlab.training.objective import Objective
from srmlab.training.run import RunConfig

LIKELIHOODS = {"stablemax": log_stablemax, "softmax": log_softmax}


# --- the loss of a segment, and what halts ------------------------------------------------------------------


@dataclass(frozen=True)
class Judgement:
    """What is found of every board after a segment, [B] each."""

    cells: Tensor  # the mean loss of its cells, nats
    right: Tensor  # whether the whole answer is
    q: Tensor  # the loss of its q, 0 where q is not trained

    @property
    def loss(self) -> Tensor:
        """The mean over boards."""
        return (self.cells + 0.5 * self.q).mean()


def judge(out: Segment, labels: Tensor, config: TrainConfig, next_q: Tensor | None) -> Judgement:
    """`next_q` [B] is what q_continue is to tell, as a probability; None: it is not trained."""
    counted = labels != IGNORE
    given = LIKELIHOODS[config.likelihood](out.logits)
    losses = -given.gather(-1, labels.clamp(min=0)[..., None])[..., 0] * counted
    cells = losses.sum(-1) / counted.sum(-1).clamp(min=1)
    right = ((out.logits.argmax(-1) == labels) | ~counted).all(-1)
    halt, go_on = out.q.to(torch.promote_types(out.q.dtype, torch.float32)).unbind(-1)
    q = torch.zeros_like(halt)
    if config.halting != "fixed":
        q = F.binary_cross_entropy_with_logits(halt, right.to(halt.dtype), reduction="none")
    if next_q is not None:
        q = q + F.binary_cross_entropy_with_logits(go_on, next_q.to(go_on.dtype), reduction="none")
    return Judgement(cells, right, q)


def continue_target(next: Segment, last: Tensor) -> Tensor:
    """[B] What q_continue is to tell, from the segment after this one; `last` [B] where there is none."""
    halt, go_on = next.q.unbind(-1)
    return torch.where(last, halt, torch.maximum(halt, go_on)).sigmoid()


def learns_to_continue(config: TrainConfig) -> bool:
    """Whether q_continue is trained, which takes an extra forward pass."""
    return config.halting == "hrm" and config.segments > 1


def halts(q: Tensor, segment: Tensor, least: Tensor, config: TrainConfig) -> Tensor:
    """[B] Which slots halt, from q [B, 2], the number of segments they have had, and the least they must."""
    halt, go_on = q.unbind(-1)
    wants = torch.zeros_like(segment, dtype=torch.bool)
    if config.halting == "hrm":
        wants = halt > go_on
    elif config.halting == "trm":
        wants = halt > 0
    return (segment >= config.segments) | (wants & (segment >= least))


def least_segments(config: TrainConfig, step: int) -> np.ndarray:
    """[slot] How many segments each slot must have had to halt in this step: 0, or drawn."""
    random = np.random.default_rng(np.random.SeedSequence([config.seed, step], spawn_key=(2,)))
    explores = random.random(config.batch_size) < config.exploration
    drawn = random.integers(min(2, config.segments), config.segments, config.batch_size, endpoint=True)
    return np.where(explores, drawn, 0)


# --- the objective ------------------------------------------------------------------------------------------


@dataclass
class Slots:
    """What this process's slots hold, [b] each but for the state."""

    state: Tensor  # [b, S, N + T, D]
    index: Tensor  # of the puzzle in the endless sequence
    segment: Tensor  # how many it has had
    halted: Tensor  # whether the next puzzle is due

    @property
    def tensors(self) -> dict[str, Tensor]:
        """To be saved, by name."""
        return {
            f"slots.{name}": value for name, value in (vars(self) | {"halted": self.halted.long()}).items()
        }

    @classmethod
    def of(cls, tensors: dict[str, Tensor], rows: slice) -> Slots:
        """These rows of what was saved."""
        mine = {field.name: tensors[f"slots.{field.name}"][rows].clone() for field in fields(cls)}
        return cls(**mine | {"halted": mine["halted"].bool()})


class SegmentCall(nn.Module):
    """A segment as a forward pass, which is what PyTorch's DDP distributes."""

    def __init__(self, model: LanguageModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, *args: Any, **kwargs: Any) -> Segment:
        return self.model.segment(*args, **kwargs)


class DeepSupervision(Objective):
    def __init__(self, plan: RunConfig, data: Puzzles, model: LanguageModel, world: World) -> None:
        super().__init__(plan, model, world)
        config = self.config
        self.data, self.puzzles = data, PuzzleBatches(data, config.seed, config.augment)
        self.positions = data.kind.cells + plan.model.puzzle_positions
        rows = config.batch_size // world.size
        self.mine = slice(world.rank * rows, (world.rank + 1) * rows)  # of all slots
        self.slots = self.empty(torch.arange(config.batch_size)[self.mine])
        self.boards: PuzzleBatch | None = None  # of the slots, once they are known
        self.next: Slots = self.slots  # after the step that is being taken
        self.found: list[Judgement] = []  # of that step
        self.before = torch.zeros(0)  # [b, 1, E] the rows before the boards in that step, with their gradient
        called = SegmentCall(model)
        self.call = distribute(model, world, called, uses_all=config.halting != "fixed")
        self.average: dict[str, Tensor] = {}
        if config.ema:
            self.average = {name: weight.detach().clone() for name, weight in model.named_parameters()}

    def empty(self, slots: Tensor) -> Slots:
        """All halted, each before its first puzzle."""
        initial = self.model.initial_state
        S, D = initial.shape
        state = initial.new_zeros(len(slots), S, self.positions, D)
        index = slots.to(self.world.device) - self.config.batch_size
        return Slots(state, index, torch.zeros_like(index), torch.ones_like(index, dtype=torch.bool))

    # --- a step --------------------------------------------------------------------------------------------

    def backward(self, step: int, offset: int) -> dict[str, float]:  # noqa: ARG002  (slots know where they are)
        config, world = self.config, self.world
        slots, fresh = self.refilled()
        boards = self.filled(slots.index, fresh)
        assert self.model.puzzle is not None
        self.before = self.model.puzzle.rows[boards.identifiers].requires_grad_()
        least = torch.from_numpy(least_segments(config, step)[self.mine]).to(world.device)
        rows = len(fresh) // config.accumulate
        self.found, states, halted, total = [], [], [], 0.0
        for micro in self.micro_batches():
            some = slice(micro * rows, (micro + 1) * rows)
            inputs, labels = boards.inputs[some], boards.labels[some]
            with gradient_sync(self.call, micro == config.accumulate - 1):
                with self.autocast():
                    state = slots.state[some].transpose(0, 1)
                    out = self.call(inputs, state=state, before=self.before[some], fresh=fresh[some])
                    next_q = self.next_q(inputs, out, self.before[some], slots.segment[some])
                judged = judge(out, labels, config, next_q)
                (judged.loss / config.accumulate).backward()
            total += float(judged.loss.detach()) / config.accumulate
            self.found.append(judged)
            states.append(out.state.detach().transpose(0, 1).to(slots.state.dtype))
            halted.append(halts(out.q.detach(), slots.segment[some], least[some], config))
        self.next = Slots(torch.cat(states), slots.index, slots.segment, torch.cat(halted))
        return {"loss": total}

    def refilled(self) -> tuple[Slots, Tensor]:
        """The slots with a new puzzle where one has halted, and where that is."""
        slots, fresh = self.slots, self.slots.halted
        initial = self.model.initial_state.detach()[:, None, :]  # [S, 1, D]
        return Slots(
            state=torch.where(fresh[:, None, None, None], initial.to(slots.state.dtype), slots.state),
            index=slots.index + fresh * self.config.batch_size,
            segment=torch.where(fresh, 0, slots.segment) + 1,
            halted=fresh,
        ), fresh

    def filled(self, index: Tensor, fresh: Tensor) -> PuzzleBatch:
        """The boards of the slots; only those of new puzzles are made."""
        if self.boards is None:
            self.boards = self.made(index)
        elif fresh.any():
            new, boards = self.made(index[fresh]), self.boards
            for name, values in vars(boards).items():
                values[fresh] = getattr(new, name)
        return self.boards

    def made(self, index: Tensor) -> PuzzleBatch:
        batch = self.puzzles.at(index.cpu().numpy()).to(self.world.device)
        return batch if self.config.cells == "all" else batch.unknown_only(self.data.kind)

    @torch.no_grad()
    def next_q(self, inputs: Tensor, out: Segment, before: Tensor, segment: Tensor) -> Tensor | None:
        """What q_continue is to tell, from a segment more than there will be."""
        if not learns_to_continue(self.config):
            return None
        more = self.model.segment(inputs, state=out.state, before=before, fresh=torch.zeros_like(segment) > 0)
        return continue_target(more, segment >= self.config.segments)

    @torch.no_grad()
    def after(self, lr: float) -> dict[str, Any]:
        old, self.slots = self.slots, self.next
        self.move_rows(self.config.puzzle_lr * lr / self.config.lr)
        for name, weight in self.model.named_parameters() if self.average else ():
            self.average[name].lerp_(weight, 1 - self.config.ema)
        halted, segment = self.slots.halted, self.slots.segment
        boards, cells, right, ended, segments = self.world.total(
            len(old.index),
            float(sum(judged.cells.sum() for judged in self.found)),
            float(sum(judged.right.sum() for judged in self.found)),
            float(halted.sum()),
            float(segment[halted].sum()),
        )
        found = {"cell_loss": cells / boards, "solved": right / boards}
        return found | ({"segments": segments / ended} if ended else {})

    def move_rows(self, lr: float) -> None:
        """Sign-SGD on the puzzle embeddings that were in the batch."""
        puzzle, boards = self.model.puzzle, self.boards
        if puzzle is None or boards is None or self.before.grad is None:
            return
        ids, gradients = self.world.gather(boards.identifiers), self.world.gather(self.before.grad)
        there, where = ids.unique(return_inverse=True)
        sums = gradients.new_zeros(len(there), *gradients.shape[1:]).index_add_(0, where, gradients)
        kept = puzzle.rows[there] * (1 - lr * self.config.weight_decay)
        puzzle.rows[there] = kept - lr * sums.sign()

    def discard(self, steps: int) -> None:
        if not steps:  # a halted slot had its next puzzle in the step that was not finite
            self.slots = self.refilled()[0]
        self.slots.halted.fill_(True)
        self.slots.index += self.config.batch_size * steps
        self.boards = None

    def examples(self, step: int, offset: int) -> list[int]:  # noqa: ARG002
        return self.world.gather(self.refilled()[0].index).tolist()

    def size(self, step: int) -> dict[str, float]:  # noqa: ARG002
        tokens = self.config.batch_size * self.positions
        return {"tokens": tokens, "flops": segment_flops(self.model, self.config, self.positions) * tokens}

    # --- its state -----------------------------------------------------------------------------------------

    def weights(self) -> dict[str, Tensor]:
        return self.average

    def state(self) -> dict[str, Tensor]:
        slots = {name: self.world.gather(value) for name, value in self.slots.tensors.items()}
        weights = {name: weight.detach().clone() for name, weight in self.model.named_parameters()}
        return slots | ({f"weights.{name}": value for name, value in weights.items()} if self.average else {})

    @torch.no_grad()
    def restore(self, state: dict[str, Tensor]) -> None:
        self.slots = Slots.of(state, self.mine)
        self.boards = None
        for name, weight in self.model.named_parameters() if self.average else ():
            self.average[name].copy_(weight)
            weight.copy_(state[f"weights.{name}"])

    @contextlib.contextmanager
    def averaged(self) -> Iterator[None]:
        """The model is the running mean, if there is one, and afterwards as it was."""
        if not self.average:
            yield
            return
        saved = {name: weight.detach().clone() for name, weight in self.model.named_parameters()}
        set_weights(self.model, self.average)
        try:
            yield
        finally:
            set_weights(self.model, saved)

    # --- looking -------------------------------------------------------------------------------------------

    def can_evaluate(self) -> bool:
        return len(self.data.test) > 0

    def evaluate(self, interrupted: Callable[[], bool]) -> dict[str, Any] | None:
        """The loss after the last segment, and how many of the test puzzles are solved then."""
        config, world = self.config, self.world
        limit = max(1, config.eval_tokens // self.data.kind.cells)
        rows = max(1, config.batch_size // (world.size * config.accumulate))
        sums = np.zeros(3)  # loss, solved, boards
        sample: Tensor | None = None
        with self.averaged(), self.model.evaluating(), self.autocast():
            for turn in zip_longest(*[iter(evaluation_puzzles(self.data, rows, limit))] * world.size):
                if interrupted():
                    return None
                if (batch := turn[world.rank]) is None:
                    continue
                batch = batch.to(world.device)
                batch = batch if config.cells == "all" else batch.unknown_only(self.data.kind)
                *_, last = run_segments(self.model, batch, config.segments)
                judged = judge(last, batch.labels, config, None)
                sums += [float(judged.cells.sum()), float(judged.right.sum()), len(batch)]
                sample = batch.inputs[:1] if sample is None else sample
            norms = {} if sample is None else state_norms(self.model, sample)
        loss, solved, boards = world.total(*sums)
        return {"val_loss": loss / boards, "val_solved": solved / boards, "state_norms": norms}


def run_segments(
    model: LanguageModel, batch: PuzzleBatch, segments: int, depth: int | None = None
) -> Iterator[Segment]:
    """The segments on these boards, one after the other."""
    state: Tensor | None = None
    ids = batch.identifiers.clamp(max=model.config.puzzle_ids - 1)
    for _ in range(segments):
        out = model.segment(batch.inputs, state=state, puzzles=ids, depth=depth)
        state = out.state.detach()
        yield out


def segment_flops(model: LanguageModel, config: TrainConfig, positions: int) -> int:
    """FLOP of a training step per position: a segment, and the extra forward pass of HRM's q_continue."""
    flops = model.flops_per_token(positions)
    return flops.training + (flops.forward if learns_to_continue(config) else 0)


@torch.no_grad()
def set_weights(model: nn.Module, weights: dict[str, Tensor]) -> None:
    for name, weight in model.named_parameters():
        weight.copy_(weights[name])
