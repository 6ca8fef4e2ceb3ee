"""Our models as Hugging Face models, for `AutoModelForCausalLM`, `generate()` and lm-evaluation-harness.

    >>> import srmlab, torch
    >>> from srmlab.interop.huggingface import SRMForCausalLM
    >>> ours = srmlab.build(srmlab.preset("srm-nano"))
    >>> theirs = SRMForCausalLM.wrap(ours)                     # shares the weights, copies nothing
    >>> prompt = torch.tensor([[1, 2, 3]])
    >>> theirs.generate(prompt, max_new_tokens=5, do_sample=False).equal(
    ...     srmlab.generate(ours, prompt, max_new_tokens=5, temperature=0)
    ... )
    True

Importing this file registers the model type "srm" with the Auto classes. It stands for all our architectures:
the config holds ours as one dictionary (`config.srm`), and the fields that other tools look for
(`vocab_size`, `max_position_embeddings`, …) are derived from it.

An exported folder also holds `modeling_srm.py`, a stub that imports this file, so `trust_remote_code=True`
opens the folder where nobody has imported anything; the package itself must be installed.

Padding. Right padding is harmless under causal attention and is read like text. Rows with left padding (what
`generate` wants) are grouped by their padding, and each group is read without it: every row gets the logits
it gets alone, whatever the architecture does with positions. The price is one pass per distinct length.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from srmlab.data.tokenizers import END_OF_TEXT, Tokenizer
from srmlab.errors import UserError
from srmlab.models import LanguageModel, ModelConfig, SRMConfig, build, config_from_dict
from srmlab.models.cache import DecodingCache

try:
    from transformers import (
        AutoConfig,
        AutoModelForCausalLM,
        GenerationMixin,
        PreTrainedConfig,
        PreTrainedModel,
        PreTrainedTokenizerFast,
    )
    from transformers.cache_utils import Cache
    from transformers.modeling_outputs import CausalLMOutputWithPast
    from transformers.utils import logging
except ImportError as error:
    fix = 'pip install "srmlab[hf]"'
    raise UserError(f"transformers 5 is needed here ({error}): {fix}") from None

STUB_NAME = "modeling_srm"
STUB = '''\
"""For `trust_remote_code=True`. The model's code is in a package: pip install "srmlab[hf]"."""

from srmlab.interop.huggingface import SRMForCausalLM, SRMHFConfig

__all__ = ["SRMForCausalLM", "SRMHFConfig"]
'''


# --- the config ---------------------------------------------------------------------------------------------


class SRMHFConfig(PreTrainedConfig):
    """A Hugging Face config around one of ours: `SRMHFConfig(srm=srmlab.preset("srm-nano").to_dict())`."""

    model_type: ClassVar[str] = "srm"

    srm: dict[str, Any] | None = None  # `ModelConfig.to_dict()`; None is the paper's SRM-med

    def __post_init__(self, **others: Any) -> None:
        self.srm = (SRMConfig() if self.srm is None else config_from_dict(self.srm)).to_dict()
        derived = standard_fields(self.ours)
        super().__post_init__(**{name: value for name, value in others.items() if name not in derived})
        for name, value in derived.items():
            setattr(self, name, value)

    @property
    def ours(self) -> ModelConfig:
        assert self.srm is not None
        return config_from_dict(self.srm)

    @classmethod
    def register_for_auto_class(cls, auto_class: str = "AutoConfig") -> None:
        """Nothing: `save_pretrained` would copy this file into the folder; the stub there is enough."""


def standard_fields(config: ModelConfig) -> dict[str, Any]:
    """What other tools read from a config, in their names."""
    return {
        "vocab_size": config.vocab_size,
        "max_position_embeddings": config.context,
        "hidden_size": config.sizes.width,
        "num_attention_heads": config.sizes.heads,
        "num_hidden_layers": config.sizes.layers,
        "tie_word_embeddings": config.tied,
        "auto_map": {
            "AutoConfig": f"{STUB_NAME}.SRMHFConfig",
            "AutoModelForCausalLM": f"{STUB_NAME}.SRMForCausalLM",
        },
    }


# --- the cache ----------------------------------------------------------------------------------------------


@dataclass
class Rows:
    """The rows of a batch that have the same left padding."""

    index: Tensor  # [rows], ascending
    padding: int  # columns to leave out of the next read; 0 after the first
    past: DecodingCache | None = None


class SRMCache(Cache):
    """What `generate` hands from step to step: a `DecodingCache` for each group of rows."""

    def __init__(self, model: LanguageModel, capacity: int | None = None) -> None:
        super().__init__(layers=[])
        self.model, self.capacity = model, capacity
        self.groups: list[Rows] = []
        self.length = 0  # columns read, padding included

    def start(self, groups: list[Rows]) -> None:
        self.groups = groups
        for rows in groups:
            rows.past = self.model.new_cache(self.capacity)

    def get_seq_length(self, layer_idx: int = 0) -> int:  # noqa: ARG002
        return self.length

    def get_max_length(self, layer_idx: int | None = None) -> int:  # noqa: ARG002
        return self.model.config.context if self.capacity is None else self.capacity

    @property
    def batch_size(self) -> int:
        return sum(len(rows.index) for rows in self.groups) if self.groups else -1

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Row r goes on from what row beam_idx[r] has read.

        Beams of one prompt have its padding, so no row comes from another group.
        """
        for rows in self.groups:
            assert rows.past is not None
            source = torch.searchsorted(rows.index, beam_idx.to(rows.index.device)[rows.index])
            for slot in rows.past:
                if slot.keys is not None and slot.values is not None:
                    slot.keys = _select_rows(slot.keys, source)
                    slot.values = _select_rows(slot.values, source)

    @property
    def is_croppable(self) -> bool:
        return False

    def crop(self, tokens_to_remove: int) -> None:  # noqa: ARG002
        raise UserError("this cache cannot take tokens back: generate without assistant and prompt lookup")

    def reset(self) -> None:
        self.groups, self.length = [], 0


def _select_rows(x: Tensor, source: Tensor) -> Tensor:
    """x [N, …] with N = streams × batch: every stream's rows, taken in the order of `source` [batch]."""
    return x.unflatten(0, (-1, len(source))).index_select(1, source).flatten(0, 1)


def group_by_padding(tokens: Tensor, mask: Tensor | None, *, to_be_continued: bool) -> list[Rows]:
    """The rows of `tokens` [B, T] by their left padding in `mask` [B, T]; what cannot be read is refused."""
    everything = torch.arange(tokens.shape[0], device=tokens.device)
    if mask is None:
        return [Rows(everything, 0)]
    if mask.shape != tokens.shape:
        raise UserError(
            f"attention_mask of shape {list(mask.shape)}: need {list(tokens.shape)}, one flag per token"
        )
    real = mask.to(tokens.device).bool()
    begins = real & ~nn.functional.pad(real, (1, -1))  # real, and the column before is not
    if not bool((begins.sum(-1) == 1).all()):
        raise UserError(
            "attention_mask: every row must be one unbroken run of tokens, padded on the left or the right"
        )
    if to_be_continued and not bool(real[:, -1].all()):
        raise UserError(
            'attention_mask: text that goes on is padded on the left; set tokenizer.padding_side = "left"'
        )
    padding = begins.int().argmax(-1)
    return [Rows(everything[padding == n], n) for n in padding.unique().tolist()]


# --- the model ----------------------------------------------------------------------------------------------


class SRMForCausalLM(PreTrainedModel, GenerationMixin):
    """A `LanguageModel` of ours (`.model`) behind Hugging Face's interface."""

    config_class = SRMHFConfig
    config: SRMHFConfig
    main_input_name = "input_ids"
    base_model_prefix = ""
    _supports_sdpa = True  # it is what our attention calls

    def __init__(self, config: SRMHFConfig, model: LanguageModel | None = None) -> None:
        super().__init__(config)
        self.model = build(config.ours, device=torch.get_default_device()) if model is None else model
        if twice := self.model.weights_with_two_names:  # the files hold them once
            self._tied_weights_keys = {rf"model\.{a}": rf"model\.{b}" for a, b in twice.items()}
        self.post_init()

    @classmethod
    def wrap(cls, model: LanguageModel) -> Self:
        """This very model: the weights are shared, nothing is copied."""
        return cls(SRMHFConfig(srm=model.config.to_dict()), model)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        past_key_values: Cache | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        return_dict: bool | None = None,
        **loss_options: Any,
    ) -> CausalLMOutputWithPast | tuple[Tensor, ...]:
        """Logits [B, T, V], and with `labels` [B, T] the loss.

        Labels are the tokens themselves (the shift is made here), −100 for what does not count.
        A cache is kept only when asked for (`use_cache=True`, as `generate` does).
        """
        if output_hidden_states or output_attentions:
            raise UserError(
                "hidden states and attentions are sites here: use model.model.run_with_cache(tokens)"
            )
        cache = past_key_values
        if cache is None and use_cache:
            cache = SRMCache(self.model)
        if cache is None:
            groups = group_by_padding(input_ids, attention_mask, to_be_continued=False)
        elif not isinstance(cache, SRMCache):
            raise UserError(f"past_key_values is a {type(cache).__name__}: leave it out, or pass an SRMCache")
        else:
            if not cache.groups:
                cache.start(group_by_padding(input_ids, attention_mask, to_be_continued=True))
            groups = cache.groups
            cache.length += input_ids.shape[1]
        last_only = isinstance(logits_to_keep, int) and logits_to_keep == 1 and labels is None
        logits = self._read(input_ids, groups, last_only)
        loss = None
        if labels is not None:  # of all tokens, whatever is kept
            loss = self.loss_function(
                logits=logits, labels=labels, vocab_size=self.config.ours.vocab_size, **loss_options
            )
        if not isinstance(logits_to_keep, int):
            logits = logits[:, logits_to_keep]
        elif logits_to_keep > 0:
            logits = logits[:, -logits_to_keep:]
        output = CausalLMOutputWithPast(loss=loss, logits=logits, past_key_values=cache)  # pyright: ignore[reportArgumentType]
        return output if return_dict is not False else output.to_tuple()

    def _read(self, tokens: Tensor, groups: list[Rows], last_only: bool) -> Tensor:
        """The logits of `tokens`, each group of rows without its padding (whose logits are 0)."""

        def read(tokens: Tensor, past: DecodingCache | None) -> Tensor:
            if last_only:
                return self.model.next_token_logits(tokens, past)[:, None]
            return self.model(tokens, cache=past)

        if len(groups) == 1 and groups[0].padding == 0:
            return read(tokens, groups[0].past)
        parts = []
        for rows in groups:
            logits = read(tokens[rows.index, rows.padding :], rows.past)
            parts.append(logits if last_only else nn.functional.pad(logits, (0, 0, rows.padding, 0)))
            rows.padding = 0
        return torch.cat(parts)[torch.cat([rows.index for rows in groups]).argsort()]

    def _prepare_cache_for_generation(self, generation_config, model_kwargs, *_args, **_kwargs) -> bool:
        """`generate` calls this before the first step: hand it our cache in place of the default one."""
        length, context = generation_config.max_length, self.model.config.context
        if length > context:
            raise UserError(
                f"prompt + new tokens = {length} exceed the context of {context}; lower max_new_tokens"
            )
        if (given := model_kwargs.get("past_key_values")) is not None:
            given._is_user_defined = True  # so that it outlives the call
        elif generation_config.use_cache is not False:
            model_kwargs["past_key_values"] = SRMCache(self.model, length)
        return True

    @classmethod
    def from_pretrained(cls, *args: Any, output_loading_info: bool = False, **kwargs: Any) -> Any:
        """As in transformers, but weights that are missing or left over are an error, not a warning."""
        loaded: Any = super().from_pretrained(*args, output_loading_info=True, **kwargs)
        model, info = loaded
        for kind in ("missing_keys", "unexpected_keys"):
            if names := sorted(info[kind]):
                raise UserError(
                    f"{len(names)} {kind.replace('_keys', '')} weights such as {names[0]}: "
                    "these are not the weights of the model in config.json; export it again"
                )
        return loaded if output_loading_info else model

    def save_pretrained(self, save_directory: str | Path, *args: Any, **kwargs: Any) -> None:
        super().save_pretrained(save_directory, *args, **kwargs)
        (Path(save_directory) / f"{STUB_NAME}.py").write_text(STUB, encoding="utf-8")

    @classmethod
    def register_for_auto_class(cls, auto_class: str = "AutoModelForCausalLM") -> None:
        """Nothing: `save_pretrained` would copy this file into the folder; the stub there is enough."""

    def _init_weights(self, module: nn.Module) -> None:
        """Nothing: `build` has drawn them from the config's seed."""

    def get_input_embeddings(self) -> nn.Module:
        return self.model.embedding

    def get_output_embeddings(self) -> nn.Module | None:
        """The unembedding, when it has weights of its own."""
        own = (
            m for m in self.model.modules() if isinstance(m, nn.Linear) and m.weight is self.model.unembedding
        )
        return next(own, None)

    def resize_token_embeddings(self, *_args: Any, **_kwargs: Any):
        raise UserError("the vocabulary is part of the config: build a model with another vocab_size")


# --- the folder ---------------------------------------------------------------------------------------------


def export(model: LanguageModel, directory: str | Path, tokenizer: Tokenizer | None = None) -> None:
    """Write a folder that `AutoModelForCausalLM` and `AutoTokenizer` open."""
    theirs = SRMForCausalLM.wrap(model)
    if tokenizer is not None:
        if tokenizer.vocab_size > model.config.vocab_size:
            raise UserError(
                f"tokenizer {tokenizer.name} has {tokenizer.vocab_size} ids, "
                f"the model {model.config.vocab_size}: pass the tokenizer the model was trained with"
            )
        theirs.generation_config.eos_token_id = theirs.generation_config.pad_token_id = tokenizer.end_of_text
    theirs.save_pretrained(directory)
    if tokenizer is not None:
        export_tokenizer(tokenizer, directory, model.config.context)


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
        split_special_tokens=True,  # "<|endoftext|>" in a text is text, as in ours
    )
    theirs.save_pretrained(str(directory))
    return theirs


@contextmanager
def quietly() -> Iterator[None]:
    """Without transformers' progress bars and notes."""
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


AutoConfig.register(SRMHFConfig.model_type, SRMHFConfig, exist_ok=True)
AutoModelForCausalLM.register(SRMHFConfig, SRMForCausalLM, exist_ok=True)
