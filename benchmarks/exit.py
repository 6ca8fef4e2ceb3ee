"""Early exit on the shipped model: decoding speed against what it costs in loss.

Text is read a token at a time, as in decoding, and every token stops on its own. Speed is that of single rows
on one thread, by the time of the processor; layers, loss and KL divergence to the full model are over windows
of validation text, decoded side by side. The cache's share is that of one with `reuse`, which is slower.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import torch
from timing import Row, compare, take_turns
from torch import Tensor

import srmlab
from srmlab.models import Exit, LanguageModel
from srmlab.training.run_text import open_text

TOLERANCES = (0.02, 0.05, 0.075, 0.1, 0.125, 0.14, 0.15, 0.2)
ROWS = 4  # about as many are timed, one after the other
ALLOWED = 0.01  # nats of loss


@dataclass(frozen=True)
class Cost:
    """What stopping early changes, per token."""

    layers: float
    loss: float  # nats above the full model's
    mean_kl: float  # of the full model's prediction to this one
    high_kl: float  # its 99th percentile
    cache: float  # bytes of keys and values, as a share of the full model's


def run(rounds: int, windows: int = 32, tolerances: tuple[float, ...] = TOLERANCES) -> Iterator[Row]:
    text = open_text(srmlab.pretrained.folder())
    model = text.model.eval()
    batch = next(iter(islice(text.batches(windows), 1)))
    costs = {tolerance: cost(model, batch.tokens, batch.targets, tolerance) for tolerance in tolerances}
    within = [tolerance for tolerance, found in costs.items() if found.loss <= ALLOWED]
    rows = batch.tokens[:: max(1, len(batch.tokens) // ROWS)]
    candidates = {"full": decoder(model, rows, None)} | {
        f"exit {tolerance}": decoder(model, rows, tolerance) for tolerance in tolerances
    }
    last = max(within, default=tolerances[-1])
    candidates["reuse"] = decoder(model, rows, last, reuse=True)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    seconds = take_turns(candidates, rounds, clock=time.process_time)
    torch.set_num_threads(threads)
    tokens = rows.numel()
    for tolerance, found in costs.items():
        yield compare(
            f"decode, full ÷ exit {tolerance}",
            seconds,
            "full",
            f"exit {tolerance}",
            asked="≥ 1.5" if within and tolerance == last else "",
            note=f"{found.layers:.2f} of {model.depth} layers, "
            f"{tokens / min(seconds[f'exit {tolerance}']):.0f} tokens/s, loss {found.loss:+.4f}, "
            f"KL {found.mean_kl:.4f} (99 % below {found.high_kl:.3f}), cache {found.cache:.2f}",
        )
    yield compare(f"decode, full ÷ exit {last}, stored once", seconds, "full", "reuse")


def decoder(model: LanguageModel, rows: Tensor, exit: float | None, reuse: bool = False):
    @torch.inference_mode()
    def decode() -> None:
        for row in rows:
            cache = model.new_cache(reuse=reuse)
            for token in row:
                model.next_token_logits(token.view(1, 1), cache, exit=exit)

    return decode


@torch.inference_mode()
def cost(model: LanguageModel, tokens: Tensor, targets: Tensor, tolerance: float) -> Cost:
    exit, cache, full_cache = Exit(tolerance), model.new_cache(reuse=True), model.new_cache()
    full = model(tokens, cache=full_cache).log_softmax(-1)
    early = torch.cat([model(column, cache=cache, exit=exit) for column in tokens.split(1, dim=1)], dim=1)
    early = early.log_softmax(-1)
    kl = (full.exp() * (full - early)).sum(-1).flatten()
    chosen = targets[..., None]
    return Cost(
        layers=exit.mean_levels,
        loss=float((full.gather(-1, chosen) - early.gather(-1, chosen)).mean()),
        mean_kl=float(kl.mean()),
        high_kl=float(kl.quantile(0.99)),
        cache=cache.nbytes / full_cache.nbytes,
    )
