"""What an exported folder holds besides the model: its card, and the tokenizer in Hugging Face's form."""

from __future__ import annotations

from pathlib import Path

from transformers import PreTrainedTokenizerFast

from srmlab.data.tokenizers import END_OF_TEXT, Tokenizer
from srmlab.models import LanguageModel

CARD = """\
---
library_name: transformers
pipeline_tag: text-generation
tags: [srmlab, {architecture}]
---

# {architecture}, {parameters:,} parameters

{shape}; context {context}, vocabulary {vocabulary}. The code is in a package:

```sh
pip install "srmlab[hf]"
```

```python
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)
tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)  # it has no code of its own
```

```
{drawing}
```
"""


def model_card(model: LanguageModel) -> str:
    """The README of an exported folder: what the model is and how it is opened."""
    config = model.config
    return CARD.format(
        architecture=config.architecture,
        parameters=model.num_parameters(),
        shape=config.shape,
        context=config.context,
        vocabulary=config.vocab_size,
        drawing=config.drawing,
    )


def export_tokenizer(tokenizer: Tokenizer, directory: str | Path, context: int) -> PreTrainedTokenizerFast:
    """Write our tokenizer as a Hugging Face fast tokenizer with the same ids; returns it as they load it."""
    tokenizer.save(directory)  # a tokenizer.json in their format
    theirs = PreTrainedTokenizerFast(
        tokenizer_file=str(Path(directory) / "tokenizer.json"),
        bos_token=None,
        eos_token=END_OF_TEXT,
        pad_token=END_OF_TEXT,  # never attended to: the mask says where it is
        padding_side="left",
        model_max_length=context,
        clean_up_tokenization_spaces=False,
        model_input_names=["input_ids", "attention_mask"],
        split_special_tokens=True,  # "<|endoftext|>" in a text is text, as in ours
    )
    theirs.save_pretrained(str(directory))
    return theirs
