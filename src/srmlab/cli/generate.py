"""`srmlab generate`: sample text from a model, token by token."""

from __future__ import annotations

import codecs
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

import srmlab
from srmlab.cli.shared import OR_PRETRAINED, ExitsEarly, OfModel, own_or_given
from srmlab.data import Tokenizer, byte_tokenizer, gpt2_tokenizer
from srmlab.data.errors import DataError
from srmlab.errors import UserError, nearest

if TYPE_CHECKING:
    import torch

    from srmlab.models import LanguageModel


@dataclass(kw_only=True)
class Command(ExitsEarly, OfModel):
    """Continue a prompt, streaming the text.

    srm-nano is the trained model that ships with the package; any other preset has random weights and writes
    noise. Without a tokenizer, token ids are printed instead.

    Example:
        srmlab generate --pretrained --prompt "My fellow citizens"
        srmlab generate runs/nano --prompt "My fellow citizens" --max-new-tokens 100
        srmlab generate exports/nano --temperature 0 --json
        srmlab generate --pretrained --exit 0.05
        srmlab generate gpt2-nano --tokens 1 2 3
    """

    path: Annotated[
        Path | None,
        tyro.conf.Positional,
        tyro.conf.arg(metavar="RUN_OR_PRESET", help_behavior_hint=OR_PRETRAINED),
    ] = None
    """A run (its last good checkpoint), a checkpoint, an export, or a preset by name."""
    prompt: str = ""
    """The text to continue; if empty, a new document is started."""
    tokens: Annotated[tuple[int, ...], tyro.conf.arg(metavar="ID", help_behavior_hint="")] = ()
    """The prompt as token ids, instead of --prompt."""
    max_new_tokens: int = 64
    """Maximum number of tokens; stops earlier at end-of-text."""
    temperature: float = 0.8
    """0 is greedy decoding."""
    top_k: int | None = None
    """Sample from the k most likely tokens only."""
    top_p: float | None = None
    """Sample from the most likely tokens with this total probability."""
    seed: int | None = None
    """The same seed gives the same text; without it each call differs."""
    overflow: Literal["refuse", "slide"] = "refuse"
    """Past the model's context: stop with an error, or drop the first half and continue."""
    reuse_cache: bool = False
    """A smaller KV cache. With --exit: shared by layers. Else: only a looped model's last loop is kept."""
    tokenizer: str | None = None
    """gpt2, byte or the folder of a saved tokenizer, if the model has none."""
    json: bool = False
    """Print JSON, for scripts."""

    def run(self) -> None:
        import torch

        from srmlab.storage import saved_tokenizer

        exit, path = self.early_exit(), self.subject()
        fresh = not path.exists()
        model, tokenizer = build_preset(str(path)) if fresh else (srmlab.load(path), saved_tokenizer(path))
        model.check_reuse(self.reuse_cache, exit)
        if not model.config.causal:
            raise UserError(f"{path} is a puzzle model and does not generate text: use `srmlab solve`")
        tokenizer = own_or_given(path, tokenizer, self.tokenizer)
        prompt = self.prompt_tokens(model, byte_tokenizer() if fresh and tokenizer is None else tokenizer)
        seed = torch.seed() % 2**32 if self.seed is None else self.seed
        written: list[int] = []
        stream = Stream(tokenizer)
        unshown = [self.prompt if tokenizer or not self.prompt else f"{self.prompt}\n"]

        def show(column: torch.Tensor) -> None:
            written.append(int(column))
            if not self.json:
                unshown.append(stream.push(written[-1]))
                print("".join(unshown), end="", flush=True)
                unshown.clear()

        try:
            srmlab.generate(
                model,
                torch.tensor([prompt]),
                self.max_new_tokens,
                temperature=self.temperature,
                top_k=self.top_k,
                top_p=self.top_p,
                seed=seed,
                stop_token=tokenizer.end_of_text if tokenizer else None,
                overflow=self.overflow,
                exit=exit,
                reuse_cache=self.reuse_cache,
                on_token=show,
            )
        except ValueError as error:  # a prompt or a setting that cannot work
            raise UserError(str(error).replace('pass overflow="slide"', "add --overflow slide")) from None
        if self.json:
            text = None if tokenizer is None else Stream(tokenizer).all(written)
            answer = {"model": str(path), "seed": seed, "prompt_tokens": prompt, "new_tokens": written}
            answer["text"] = text
            if exit is not None:
                answer |= {"exit": exit.tolerance, "mean_levels": exit.mean_levels, "levels": model.depth}
            print(json.dumps(answer, ensure_ascii=False))
            return
        print("".join(unshown) + stream.close())
        if exit is not None:
            used = f"{exit.mean_levels:.2f} of {model.depth} {model.level_name}"
            print(f"{used} per token", file=sys.stderr)

    def prompt_tokens(self, model: LanguageModel, tokenizer: Tokenizer | None) -> list[int]:
        if self.tokens and self.prompt:
            raise UserError("--prompt and --tokens cannot be combined: give one of them")
        if self.tokens:
            prompt = list(self.tokens)
        elif tokenizer is not None:
            prompt = tokenizer.encode(self.prompt) or [tokenizer.end_of_text]
        else:
            raise UserError(f"{self.path} has no tokenizer: give --tokens 1 2 3, or --tokenizer gpt2")
        if beyond := [i for i in prompt if not 0 <= i < model.config.vocab_size]:
            raise UserError(
                f"token {beyond[0]} is not in the model's vocabulary of {model.config.vocab_size} ids"
            )
        return prompt


def build_preset(name: str) -> tuple[LanguageModel, Tokenizer | None]:
    from srmlab.models import PRESETS, SWEEP_PRESETS

    if name not in (known := {**PRESETS, **SWEEP_PRESETS}):
        hint = nearest(name, list(known))
        raise UserError(f"{name} does not exist: give a run, a checkpoint, an export or a preset{hint}")
    model = srmlab.build(srmlab.preset(name))
    tokenizer = preset_tokenizer(model.config.vocab_size)
    without = "" if tokenizer else " It has no tokenizer yet: bytes go in, token ids come out."
    print(f"{name} is a preset: its weights are random and it writes noise.{without}", file=sys.stderr)
    return model, tokenizer


def preset_tokenizer(vocab_size: int) -> Tokenizer | None:
    """The only tokenizer that an untrained model with this vocabulary can mean, if it is installed."""
    if vocab_size == byte_tokenizer().vocab_size:
        return byte_tokenizer()
    try:
        gpt2 = gpt2_tokenizer()
    except DataError:  # not installed
        return None
    return gpt2 if vocab_size == gpt2.vocab_size else None


class Stream:
    """Tokens in, text out, at once: only the bytes of a character that is not whole yet are held back.

    >>> stream = Stream(byte_tokenizer())
    >>> [stream.push(token) for token in "né".encode()]
    ['n', '', 'é']
    """

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self.tokenizer = tokenizer
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        if self.tokenizer is None:
            return f"{token} "
        if token < self.tokenizer.end_of_text:
            return self.decoder.decode(self.tokenizer.tokens[token])
        return "" if token == self.tokenizer.end_of_text else f"<{token}>"  # an id the tokenizer does not use

    def close(self) -> str:
        return self.decoder.decode(b"", final=True)

    def all(self, tokens: list[int]) -> str:
        return "".join(map(self.push, tokens)) + self.close()
