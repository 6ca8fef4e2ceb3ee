"""What the sites cost when nobody listens: the model as it is against the same model with its taps taken
out.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from timing import Row, compare, take_turns

import srmlab
from srmlab.models.sites import SILENT, Instrumented


def run(rounds: int) -> Iterator[Row]:
    for name, context, repeats in (("srm-nano", 256, 50), ("srm-base", 128, 5)):
        model = srmlab.build(srmlab.preset(name)).eval()
        tokens = torch.randint(
            model.config.vocab_size, (1, context), generator=torch.Generator().manual_seed(0)
        )

        @torch.inference_mode()
        def with_sites(model=model, tokens=tokens) -> None:
            model(tokens)

        @torch.inference_mode()
        def without_sites(model=model, tokens=tokens) -> None:
            """No search for listeners: the tap is silent from the start."""
            looking, Instrumented.tap = Instrumented.tap, lambda _: SILENT
            try:
                model(tokens)
            finally:
                Instrumented.tap = looking

        seconds = take_turns({"with sites": with_sites, "without": without_sites}, rounds * repeats)
        yield compare(
            f"forward, sites nobody listens to ÷ none, {name}",
            seconds,
            "with sites",
            "without",
            asked="≤ 1.01",
        )
