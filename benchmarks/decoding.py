"""Decoding: cached against recomputed, and the cost of a token at a long context against a short one."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from timing import Row, compare, take_turns

import srmlab
from srmlab.models import LanguageModel


def run(rounds: int, presets: tuple[str, ...] = ("srm-med", "srm-base")) -> Iterator[Row]:
    for name in presets:
        model = srmlab.build(srmlab.preset(name)).eval()
        yield cached_against_recomputed(model, name, rounds)
        yield long_against_short(model, name, rounds)


def cached_against_recomputed(
    model: LanguageModel, name: str, rounds: int, prompt: int = 256, new: int = 256
) -> Row:
    """256 new tokens after 256. Recomputing is timed on every 32nd token, whose cost stands for its
    neighbours'.
    """
    tokens = torch.randint(
        model.config.vocab_size, (1, prompt + new), generator=torch.Generator().manual_seed(0)
    )
    every = 32

    @torch.inference_mode()
    def cached() -> None:
        cache = model.new_cache(prompt + new)
        model.next_token_logits(tokens[:, :prompt], cache)
        for t in range(prompt, prompt + new - 1):
            model.next_token_logits(tokens[:, t : t + 1], cache)

    @torch.inference_mode()
    def recomputed() -> None:
        for t in range(prompt + every // 2, prompt + new, every):
            model.next_token_logits(tokens[:, :t])

    seconds = take_turns({"recomputed": recomputed, "cached": cached}, rounds)
    seconds["recomputed"] = [every * second for second in seconds["recomputed"]]
    return compare(
        f"decode {new} after {prompt}, recomputed ÷ cached, {name}",
        seconds,
        "recomputed",
        "cached",
        asked="≥ 20",
    )


def long_against_short(model: LanguageModel, name: str, rounds: int, tokens_timed: int = 8) -> Row:
    contexts = {"at 1024": 1024, "at 128": 128}

    def decoder(context: int):
        ids = torch.randint(model.config.vocab_size, (1, context), generator=torch.Generator().manual_seed(0))
        start = context - tokens_timed
        with torch.inference_mode():
            cache = model.new_cache(context)
            model.next_token_logits(ids[:, :start], cache)

        @torch.inference_mode()
        def decode() -> None:
            for slot in cache:
                slot.length = start  # forget what the last round added
            for t in range(start, context):
                model.next_token_logits(ids[:, t : t + 1], cache)

        return decode

    seconds = take_turns({label: decoder(context) for label, context in contexts.items()}, rounds)
    return compare(
        f"decode one token, context 1024 ÷ 128, {name}", seconds, "at 1024", "at 128", asked="≤ 1.5"
    )
