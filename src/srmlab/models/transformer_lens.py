"""TransformerLens' names for what a model does here: `return_type`, `stop_at_layer` and `cfg`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
from torch import Tensor, nn

from srmlab.errors import UserError, check_choice
from srmlab.models.loss import IGNORE
from srmlab.models.sites import HookPoint

if TYPE_CHECKING:
    from srmlab.models.forward import How
    from srmlab.models.model import LanguageModel

ReturnType = Literal["logits", "loss", "both"]


@dataclass(frozen=True)
class TransformerLensConfig:
    """Sizes under TransformerLens' names."""

    n_layers: int
    d_model: int  # of all streams together
    n_heads: int  # of all streams together
    d_mlp: int | None
    n_ctx: int
    d_vocab: int
    model_name: str
    device: torch.device
    dtype: torch.dtype


class Stopped(Exception):
    """The pass has come as far as it was asked to."""


def state_before(model: LanguageModel, level: int, run: Callable[[], Any]) -> Tensor:
    """[B, T, S, D] The state after the levels before this one; for the first, the tokens' input, which is
    [B, T, 1, D] if all streams share it.
    """
    if not -model.depth <= level <= model.depth:
        raise UserError(f"stop_at_layer = {level}: there are {model.depth} {model.level_name}")
    before = level % model.depth if level < 0 else level
    first = model.site_names[0]
    sites = (first,) if before == 0 else model.points[before - 1].sites
    values: dict[str, Tensor] = {}

    def keep(value: Tensor, hook: HookPoint) -> None:
        values[hook.name] = value
        if len(values) == len(sites):
            raise Stopped

    with suppress(Stopped), model.hooks([(sites, keep)]):
        run()
    state = values[first] if before == 0 else model.state_at(model.points[before - 1], values)
    return state if state.ndim == 4 else state[:, :, None]


def as_asked(
    model: LanguageModel,
    tokens: Tensor,
    how: How,
    given: set[str],
    return_type: str | None,
    per_token: bool,
    stop_at_layer: int | None,
) -> Tensor | tuple[Tensor, Tensor]:
    """The state before a level; or logits, the loss of the tokens that follow, or both."""
    if per_token and return_type not in ("loss", "both"):
        raise UserError('loss_per_token is for return_type="loss" or "both": give one of them')
    if given - {"documents", "attention_mask"}:
        others = "targets, progress, cache, exit and depth"
        raise UserError(f"{others} cannot be combined with return_type or stop_at_layer")
    if stop_at_layer is not None:
        return state_before(model, stop_at_layer, partial(model.forward, tokens, **how))
    check_choice("return_type", return_type, get_args(ReturnType))
    if return_type != "logits":
        model.check_next_tokens()
    logits, mask = model.forward(tokens, **how), how.get("attention_mask")
    if return_type == "logits":
        return logits
    targets = tokens[:, 1:].long()
    if mask is not None:  # what padding predicts, and padding itself, do not count
        targets = targets.masked_fill((mask[:, :-1] * mask[:, 1:]).to(targets.device) == 0, IGNORE)
    nothing = targets.numel() == 0 or (mask is not None and not bool((targets != IGNORE).any()))
    if nothing and not per_token:
        raise UserError("the loss of one token: there is none after it to predict; give two or more")
    wide = logits[:, :-1].to(torch.promote_types(logits.dtype, torch.float32))
    flat = wide.flatten(0, 1), targets.flatten()
    losses = nn.functional.cross_entropy(*flat, reduction="none" if per_token else "mean")
    loss = losses.view(targets.shape) if per_token else losses
    return loss if return_type == "loss" else (logits, loss)
