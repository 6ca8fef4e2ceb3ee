"""`srmlab export`: a model as a folder for other tools."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import srmlab
from srmlab.cli.shared import OfModel, own_or_given
from srmlab.data import Tokenizer
from srmlab.files import refuse_unwritable, sealed_folder, writing

if TYPE_CHECKING:
    from srmlab.models import LanguageModel


@dataclass(kw_only=True)
class Command(OfModel):
    """Export a run's model for Hugging Face, or as a plain folder for srmlab.load.

    Example:
        srmlab export runs/nano --to hf --out exports/nano-hf
        srmlab export runs/nano --to safetensors --out exports/nano
        lm_eval --model hf --model_args pretrained=exports/nano-hf,trust_remote_code=True --tasks wikitext
    """

    out: Path
    """The folder to write; must not exist yet."""
    to: Literal["hf", "safetensors"] = "hf"
    """hf: for `AutoModelForCausalLM` and `AutoTokenizer`. safetensors: for `srmlab.load`."""
    tokenizer: str | None = None
    """gpt2, byte or the folder of a saved tokenizer, if the source has none."""

    def run(self) -> None:
        from srmlab.storage import saved_tokenizer

        path = self.subject()
        model = srmlab.load(path)
        tokenizer = own_or_given(path, saved_tokenizer(path), self.tokenizer)
        if self.to == "safetensors":
            srmlab.save(model, self.out, tokenizer=tokenizer)
            print(f'{self.out}: load it with srmlab.load("{self.out}")')
        else:
            export_huggingface(model, self.out, tokenizer)
            print(f"{self.out}: load it with AutoModelForCausalLM.from_pretrained, trust_remote_code=True")
        if tokenizer is None:
            print("It has no tokenizer, as the source has none; --tokenizer adds one.")


def export_huggingface(model: LanguageModel, out: Path, tokenizer: Tokenizer | None) -> None:
    """A Hugging Face folder, all of it or nothing. An existing one is not overwritten."""
    from srmlab.interop.huggingface import export, quietly

    refuse_unwritable(out, "folder")
    with writing(out, "folder"), sealed_folder(out) as folder, quietly():
        export(model, folder, tokenizer)
