"""The language-modelling objective: every token is predicted from those before it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from srmlab.data import Batch, Batches, EvaluationBatches, TokenData, num_windows
from srmlab.models import LanguageModel
from srmlab.training.depth import TrainingDepth
from srmlab.training.distributed import World, distribute, gradient_sync
from srmlab.training.evaluation import state_norms, validation_loss
from srmlab.training.metrics import MetricsLog
from srmlab.training.objective import Objective
from srmlab.training.run import RunConfig
from srmlab.training.samples import routing_figure, written_text


class Language(Objective):
    def __init__(self, plan: RunConfig, data: TokenData, model: LanguageModel, world: World) -> None:
        super().__init__(plan, model, world)
        config = self.config
        self.data, self.context = data, config.context or plan.model.context
        self.marks = data.tokenizer.answer_marks if config.answers_only else None
        self.batches = Batches(
            data.train, self.context, config.batch_size, config.seed, self.marks, config.document_mask
        )
        self.depth = TrainingDepth(config, plan.model)
        self.call = distribute(model, world)

    def backward(self, step: int, offset: int) -> dict[str, float]:
        config, world = self.config, self.world
        if getattr(self.plan.model, "dropout", 0.0):
            seed = np.random.SeedSequence([config.seed, step, world.rank]).generate_state(1, np.uint64)[0]
            torch.manual_seed(int(seed) >> 1)
        total: dict[str, torch.Tensor] = {}
        depth: dict[str, Any] = {"progress": (step - 1) / config.steps}
        if not self.depth.constant:
            n, l = self.depth.at(step)
            depth |= {"depth": n, "gradient_depth": l}
        place = (step - 1 + offset, world.rank, world.size)
        mine = [self.batches.batch(*place, micro, config.accumulate) for micro in range(config.accumulate)]
        for micro, batch, parts in zip(self.micro_batches(), mine, self.parts(mine), strict=True):
            batch = batch.to(world.device)
            with gradient_sync(self.call, micro == config.accumulate - 1):
                with self.autocast():
                    losses = self.call(batch.tokens, batch.targets, documents=batch.documents, **depth)
                (losses["loss"] / parts).backward()
            for name, loss in losses.items():
                total[name] = total.get(name, 0) + loss.detach() / parts
        return {name: float(loss) for name, loss in total.items()}

    def parts(self, mine: list[Batch]) -> list[float]:
        """What the mean loss of each of this process's micro-batches is divided by, so that all of them, of
        all processes, add up to the global batch's."""
        if self.marks is None:
            return [self.config.accumulate] * len(mine)
        counts = [int(batch.counted.sum()) for batch in mine]
        (everyones,) = self.world.total(sum(counts))
        return [max(everyones, 1) / (max(count, 1) * self.world.size) for count in counts]

    def examples(self, step: int, offset: int) -> list[int]:
        return self.batches.windows(step - 1 + offset).tolist()

    def size(self, step: int) -> dict[str, float]:
        tokens = self.config.batch_size * self.context
        depth = self.depth.at(step)
        size: dict[str, float] = {"tokens": tokens, "flops": self.depth.flops(*depth) * tokens}
        return size if self.depth.constant else size | {"depth": depth[0]}

    def can_evaluate(self) -> bool:
        return num_windows(self.data.val, self.context) > 0

    def evaluate(self, interrupted: Callable[[], bool]) -> dict[str, Any] | None:
        config, val = self.config, self.data.val
        size = config.batch_size // (self.world.size * config.accumulate)
        limit, spread = max(config.eval_tokens, self.context), config.eval_windows == "spread"
        batches = EvaluationBatches(val, self.context, size, limit, self.marks, config.document_mask, spread)
        with self.autocast():
            loss = validation_loss(self.model, batches, self.world, interrupted=interrupted)
            if loss is None:
                return None
            sample = torch.from_numpy(val.read(0, self.context))[None]
            return {"val_loss": loss, "state_norms": state_norms(self.model, sample)}

    def show(self, step: int, log: MetricsLog | None) -> None:
        """What the model writes, and its routing."""
        window = torch.from_numpy(self.data.val.read(0, self.context))
        with self.autocast():
            written = written_text(self.model, self.data.tokenizer, window)
            routing = routing_figure(self.model, window, self.world.size)
        if log is not None:
            log.show(step, written, routing)
