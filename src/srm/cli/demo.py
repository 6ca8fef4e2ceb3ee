"""`srm demo`: the whole path once, small enough for any machine.

Each stage is a function that takes what the one before it made: build → look inside → write.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

import srm
from srm.cli.info import drawing
from srm.errors import UserError

PROMPT = (1, 2, 3, 4, 5, 6, 7, 8)  # token ids: an untrained model has no words yet


@dataclass
class Command:
    """Build a small model, show its shape, look inside one pass, and write a few tokens.

    Example:
        srm demo
        srm demo --preset hrm-nano --tokens 32
    """

    preset: str = "srm-nano"
    """The model; the nano presets take seconds."""
    tokens: int = 16
    """How many tokens to write."""
    seed: int = 0
    """Of the sampling."""

    def run(self) -> None:
        if self.tokens < 1:
            raise UserError(f"--tokens {self.tokens}: must be at least 1")
        torch.set_num_threads(1)  # a nano model is too small to share; threads would wait for each other
        model = build(self.preset)
        look(model)
        write(model, self.tokens, self.seed)


def build(name: str) -> srm.LanguageModel:
    """Stage 1: a model from a preset, its weights a function of the config."""
    config = srm.preset(name)
    start = time.perf_counter()
    model = srm.build(config).eval()
    seconds = time.perf_counter() - start
    print(f"1. Build {name}: {model.num_parameters():,} parameters in {seconds:.1f} s\n")
    print(drawing(config))
    print(f"\n   `srm info {name}` tells the rest.\n")
    return model


def look(model: srm.LanguageModel) -> None:
    """Stage 2: one pass with every site kept, and what a few of them hold."""
    _, cache = model.run_with_cache(torch.tensor([PROMPT]))
    print(f"2. Look inside: a pass over {len(PROMPT)} tokens went through {len(cache)} named sites, such as")
    for name in _examples(model.site_names):
        print(f"   {name:<32}{list(cache[name].shape)}")
    print()


def _examples(names: list[str]) -> list[str]:
    """A few sites that say most: the first, the last, and of the recursion the pattern and the last state."""
    telling = [name for name in names if name.endswith("connection.pattern")][-1:]
    states = [name for name in names if name.endswith(".out") and "connection" not in name][-1:]
    return [names[0], *telling, *states, names[-1]]


def write(model: srm.LanguageModel, count: int, seed: int) -> None:
    """Stage 3: continue the prompt, with the decoding cache."""
    prompt = torch.tensor([PROMPT])
    start = time.perf_counter()
    written = srm.generate(model, prompt, count, temperature=0.8, top_k=50, seed=seed, overflow="slide")
    seconds = time.perf_counter() - start
    ids = " ".join(map(str, written[0, len(PROMPT) :].tolist()))
    print(f"3. Write {count} tokens after {' '.join(map(str, PROMPT))} ({seconds:.1f} s):")
    print(f"   {ids}")
    print("   The model is untrained, so these token ids are noise.")
