"""`srmlab export`: a model as a folder for other tools."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

import srmlab
from srmlab.cli.shared import refuse_existing, writing
from srmlab.data import Tokenizer, make_tokenizer

if TYPE_CHECKING:
    from srmlab.models import LanguageModel


@dataclass
class Command:
    """Export the model of a run for Hugging Face, or as a plain folder for srmlab.load.

    Example:
        srmlab export runs/nano --to hf --out exports/nano-hf
        srmlab export runs/nano --to safetensors --out exports/nano
        lm_eval --model hf --model_args pretrained=exports/nano-hf,trust_remote_code=True --tasks wikitext
    """

    out: Path
    """The folder to write; must not exist yet."""
    source: Annotated[Path | None, tyro.conf.Positional, tyro.conf.arg(metavar="RUN_OR_FOLDER")] = None
    """A run, a checkpoint, or an earlier export of either kind."""
    pretrained: bool = False
    """Use the model that ships with the package instead."""
    to: Literal["hf", "safetensors"] = "hf"
    """hf: for `AutoModelForCausalLM` and `AutoTokenizer`. safetensors: for `srmlab.load`."""
    tokenizer: str | None = None
    """gpt2, byte or a saved tokenizer's folder, if the source has none."""

    def run(self) -> None:
        from srmlab.training.run_text import chosen

        model, tokenizer = open_folder(chosen(self.source, self.pretrained))
        if self.tokenizer is not None:
            tokenizer = make_tokenizer(self.tokenizer)
        if self.to == "safetensors":
            srmlab.save(model, self.out, tokenizer=tokenizer)
            print(f'{self.out}: open it with srmlab.load("{self.out}")')
        else:
            export_huggingface(model, self.out, tokenizer)
            print(f"{self.out}: open it with AutoModelForCausalLM.from_pretrained, trust_remote_code=True")
        if tokenizer is None:
            print("It has no tokenizer, as the source has none; --tokenizer adds one.")


def open_folder(path: Path) -> tuple[LanguageModel, Tokenizer | None]:
    """The model and the tokenizer, if there is one, of a run, a checkpoint or an export of either kind."""
    from srmlab.training.run_text import tokenizer_of

    return srmlab.load(path), tokenizer_of(path)


def export_huggingface(model: LanguageModel, out: Path, tokenizer: Tokenizer | None) -> None:
    """A Hugging Face folder, all of it or nothing. An existing one is not overwritten."""
    from srmlab.files import sealed_folder
    from srmlab.interop.huggingface import export, quietly

    refuse_existing(out, "folder")
    with writing(out), sealed_folder(out) as folder, quietly():
        export(model, folder, tokenizer)
