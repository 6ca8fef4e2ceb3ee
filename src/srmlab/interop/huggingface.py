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

Padding. Right padding is harmless under causal attention and is read like text. Left padding (what `generate`
wants) is masked, and positions count from the first real token: every row gets the logits it gets alone, from
one pass over the whole batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Self, TypedDict, Unpack

import torch
from torch import Tensor, nn

from srmlab.data.tokenizers import Tokenizer
from srmlab.errors import UserError
from srmlab.models import Exit, LanguageModel, ModelConfig, SRMConfig, StreamLinear, build, config_from_dict
from srmlab.training.recompute import recompute_activations

try:
    from transformers import (
        AutoConfig,
        AutoModel,
        AutoModelForCausalLM,
        GenerationMixin,
        PreTrainedConfig,
        PreTrainedModel,
    )
    from transformers.cache_utils import Cache
    from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast
    from transformers.utils import logging
except ImportError as error:
    fix = 'pip install "srmlab[hf]"'
    raise UserError(f"transformers 5 is needed here ({error}): {fix}") from None

from srmlab.interop.folder import export_tokenizer, model_card
from srmlab.interop.reading import (
    SRMCache,
    aligned,
    attentions,
    check_positions,
    embedded_as,
    hidden_states,
    real_tokens,
    replace_module,
    share_counted,
    without_padding,
)

STUB_NAME = "modeling_srm"
STUB = '''\
"""For `trust_remote_code=True`. The model's code is in a package: pip install "srmlab[hf]"."""

try:  # transformers would demand a package named srmlab, and not say which extra
    from srmlab.interop.huggingface import SRMForCausalLM, SRMHFConfig, SRMModel
except ImportError as error:
    raise ImportError(f'This model needs a package ({error}): pip install "srmlab[hf]"') from None

__all__ = ["SRMForCausalLM", "SRMHFConfig", "SRMModel"]
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


@cache
def standard_fields(config: ModelConfig) -> dict[str, Any]:
    """What other tools read from a config, in their names."""
    outline = build(config, device="meta")
    return {
        "vocab_size": config.vocab_size,
        "max_position_embeddings": config.context,
        "hidden_size": outline.embedding.embedding_dim,  # what `inputs_embeds` have
        "num_attention_heads": config.sizes.heads,
        "num_hidden_layers": len(outline.points),  # as many hidden states follow the input
        "tie_word_embeddings": config.tied,
        "auto_map": {
            "AutoConfig": f"{STUB_NAME}.SRMHFConfig",
            "AutoModel": f"{STUB_NAME}.SRMModel",
            "AutoModelForCausalLM": f"{STUB_NAME}.SRMForCausalLM",
        },
    }


# --- the model ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Read:
    """What one pass gave."""

    value: Tensor
    cache: SRMCache | None
    real: Tensor | None  # what is not padding
    states: tuple[Tensor, ...] | None
    patterns: tuple[Tensor, ...] | None


class SRMModel(PreTrainedModel):
    """A `LanguageModel` of ours (`.model`) behind Hugging Face's interface: `AutoModel`, without logits."""

    config_class = SRMHFConfig
    config: SRMHFConfig
    main_input_name = "input_ids"
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _supports_sdpa = True  # it is what our attention calls

    def __init__(self, config: SRMHFConfig, model: LanguageModel | None = None) -> None:
        super().__init__(config)
        self.model = build(config.ours, device=torch.get_default_device()) if model is None else model
        if twice := self.model.weights_with_two_names:  # the files hold them once
            self._tied_weights_keys = {rf"model\.{a}": rf"model\.{b}" for a, b in twice.items()}
        self._matrices = lora_targets(self)
        head = self.get_output_embeddings()
        self._head = next((name for name, module in self.named_modules() if module is head), None)
        self.post_init()

    @classmethod
    def wrap(cls, model: LanguageModel) -> Self:
        """This very model: the weights are shared, nothing is copied."""
        return cls(SRMHFConfig(srm=model.config.to_dict()), model)

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        return_dict: bool | None = None,
        exit: float | Exit | None = None,
    ) -> BaseModelOutputWithPast | tuple[Tensor, ...]:
        """`last_hidden_state` [B, T, E]: the embedding that the unembedding turns into logits. All else is as
        in `SRMForCausalLM.forward`.
        """
        found = self._pass(
            self.model.output_embedding,
            input_ids, attention_mask, position_ids, past_key_values, inputs_embeds,
            use_cache, output_hidden_states, output_attentions, exit,
        )  # fmt: skip
        return self._output(BaseModelOutputWithPast, found, return_dict, last_hidden_state=found.value)

    def _output(self, kind: Callable[..., Any], found: Read, return_dict: bool | None, **values: Any) -> Any:
        """One of transformers' outputs, or a tuple of what is in it."""
        output = kind(
            **values, past_key_values=found.cache, hidden_states=found.states, attentions=found.patterns
        )
        return_dict = self.config.return_dict if return_dict is None else return_dict
        return output if return_dict else output.to_tuple()

    def _pass(
        self,
        read: Callable[..., Tensor],
        input_ids: Tensor | None,
        attention_mask: Tensor | None,
        position_ids: Tensor | None,
        past_key_values: Cache | None,
        inputs_embeds: Tensor | None,
        use_cache: bool | None,
        output_hidden_states: bool | None,
        output_attentions: bool | None,
        exit: float | Exit | None,
    ) -> Read:
        """What `read` of our model gives, once what transformers hands over is checked."""
        self._check_adapters()
        tokens = self._tokens(input_ids, inputs_embeds)
        cache = self._cache(past_key_values, use_cache)
        past = None if cache is None else cache.past
        real = None if attention_mask is None else real_tokens(attention_mask, tokens, past)
        if position_ids is not None:
            check_positions(position_ids, real, tokens, past)
        config = self.config
        states_wanted = config.output_hidden_states if output_hidden_states is None else output_hidden_states
        patterns_wanted = config.output_attentions if output_attentions is None else output_attentions
        mask = None  # used only where padding matters, on the left or to early exit: it costs time
        if real is not None and not bool((real[:, 0] if exit is None else real).all()):
            mask = real[:, -tokens.shape[1] :]
        with (
            embedded_as(self.model.embedding, inputs_embeds),
            hidden_states(self.model, bool(states_wanted)) as states,
            attentions(self.model, bool(patterns_wanted)) as patterns,
        ):
            value = read(tokens, cache=past, attention_mask=mask, exit=exit)
        return Read(
            value,
            cache,
            real,
            tuple(states) if states_wanted else None,
            tuple(patterns) if patterns_wanted else None,
        )

    def _check_adapters(self) -> None:
        """Refuse one that would not be read, and peft's "all-linear", which is not all here."""
        if self._head is not None and hasattr(self.get_submodule(self._head), "base_layer"):
            raise UserError(
                f"an adapter on {self._head} would not be read: leave it out, or use modules_to_save"
            )
        linear, grouped = (set(names) for names in self._matrices.values())
        for adapter in getattr(self, "peft_config", {}).values():
            found, parameters = (getattr(adapter, kind, None) or () for kind in self._matrices)
            if grouped and not parameters and set(found) == linear:  # peft has put in the names it found
                raise UserError(
                    f'"all-linear" leaves out {len(grouped)} of {len(grouped | linear)} matrices, those of '
                    "the streams: use LoraConfig(**lora_targets(model)), or name what you want"
                )

    def _tokens(self, ids: Tensor | None, embeddings: Tensor | None) -> Tensor:
        """[B, T] The ids, or ids in whose place the given embeddings are read."""
        if (ids is None) == (embeddings is None):
            raise UserError("give input_ids or inputs_embeds, one of the two")
        if embeddings is None:
            assert ids is not None
            return ids
        if embeddings.ndim != 3 or embeddings.shape[-1] != self.config.hidden_size:
            need = f"[batch, token, {self.config.hidden_size}]"
            raise UserError(f"inputs_embeds of shape {list(embeddings.shape)}: need {need}")
        return torch.zeros(embeddings.shape[:2], dtype=torch.long, device=embeddings.device)

    def _cache(self, given: Cache | None, use_cache: bool | None) -> SRMCache | None:
        if given is None and not use_cache:
            return None
        if self.training and self.is_gradient_checkpointing:
            raise UserError("a cache and gradient checkpointing cannot be combined; pass use_cache=False")
        if given is None:
            return SRMCache(self.model)
        if not isinstance(given, SRMCache):
            raise UserError(
                f"past_key_values is a {type(given).__name__}: this model needs a slot for every attention "
                "call, many to a layer; leave it out, or pass an SRMCache"
            )
        return given

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

    def _set_gradient_checkpointing(self, enable: bool = True, *_args: Any, **_kwargs: Any) -> None:
        """Every unit of the model is computed again in the backward pass."""
        for module in self.model.modules():
            if isinstance(module, self.model.units):
                vars(module).pop("forward", None)  # else it would be wrapped twice
        if enable:
            recompute_activations(self.model)
        self.gradient_checkpointing = enable

    def set_attn_implementation(self, attn_implementation: str | dict, *_args: Any, **_kwargs: Any) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        self._check_and_adjust_attn_implementation(attn_implementation)

    def _check_and_adjust_attn_implementation(self, given: Any, *_args: Any, **_kwargs: Any) -> str:  # pyright: ignore[reportIncompatibleMethodOverride]
        if given not in (None, "sdpa"):
            raise UserError(
                f'attn_implementation = {given!r}: attention is always torch\'s, "sdpa"; leave it out'
            )
        return "sdpa"

    def get_input_embeddings(self) -> nn.Module:
        return self.model.embedding

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Another table of as many tokens. Where it is tied, the unembedding follows."""
        have, given = self.model.embedding.weight.shape, getattr(value, "weight", torch.empty(0)).shape
        if have != given:
            raise UserError(f"input embeddings of shape {list(given)}: this model's are {list(have)}")
        replace_module(self.model, self.model.embedding, value)

    def get_output_embeddings(self) -> nn.Module | None:
        """The unembedding, when it has weights of its own."""
        own = (
            m for m in self.model.modules() if isinstance(m, nn.Linear) and m.weight is self.model.unembedding
        )
        return next(own, None)

    def resize_token_embeddings(self, *_args: Any, **_kwargs: Any):
        raise UserError("the vocabulary is part of the config: build a model with another vocab_size")


class Shifted(TypedDict, total=False):
    """What `Trainer` must not find by name in `forward`: it would evaluate only where it is given too."""

    shift_labels: Tensor | None


class SRMForCausalLM(SRMModel, GenerationMixin):
    """A `LanguageModel` of ours (`.model`) that writes text in Hugging Face's tools."""

    accepts_loss_kwargs = True  # `num_items_in_batch`

    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        return_dict: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        num_items_in_batch: Tensor | int | None = None,
        exit: float | Exit | None = None,
        **shifted: Unpack[Shifted],
    ) -> CausalLMOutputWithPast | tuple[Tensor, ...]:
        """Logits [B, T, V], and with `labels` [B, T] the loss.

        Labels are the tokens themselves (the shift is made here), −100 for what does not count; what padding
        predicts never does; `shift_labels`, shifted already, are used in their place. A cache is kept only
        when asked for (`use_cache=True`, as `generate` does). With `exit` the recursion stops where the state
        changes by less than this share of it; `generate` takes it too.
        """
        if other := shifted.keys() - {"shift_labels"}:
            raise TypeError(f"forward() got an unexpected keyword argument {min(other)!r}")
        given = shifted.get("shift_labels")
        given = aligned(labels) if given is None else given
        last_only = isinstance(logits_to_keep, int) and logits_to_keep == 1 and given is None
        found = self._pass(
            self.model.next_token_logits if last_only else self.model,
            input_ids, attention_mask, position_ids, past_key_values, inputs_embeds,
            use_cache, output_hidden_states, output_attentions, exit,
        )  # fmt: skip
        logits, real = found.value[:, None] if last_only else found.value, found.real
        loss = None
        if given is not None:  # of all tokens, whatever is kept
            counted = given if real is None else without_padding(given, real)
            if num_items_in_batch is not None:  # of labels, also of those that padding predicts
                num_items_in_batch = num_items_in_batch * share_counted(counted, given)
            loss = self.loss_function(
                logits=logits,
                labels=None,
                shift_labels=counted,
                vocab_size=self.config.ours.vocab_size,
                num_items_in_batch=num_items_in_batch,
            )
        if not isinstance(logits_to_keep, int):
            logits = logits[:, logits_to_keep]
        elif logits_to_keep > 0:
            logits = logits[:, -logits_to_keep:]
        return self._output(CausalLMOutputWithPast, found, return_dict, loss=loss, logits=logits)

    def prepare_inputs_for_generation(
        self, *args: Any, inputs_embeds: Any = None, tokenizer: Any = None, **kwargs: Any
    ) -> Any:
        """Without the tokenizer: `generate` has read `stop_strings` with it, and hands it on. (It looks for
        `inputs_embeds` by name before it accepts any.)
        """
        del tokenizer
        above: Any = super()
        return above.prepare_inputs_for_generation(*args, inputs_embeds=inputs_embeds, **kwargs)

    def _prepare_generated_length(self, *args: Any, **kwargs: Any) -> Any:
        """An export's `max_length` is our default: no warning that `max_new_tokens` was given beside it."""
        above: Any = super()
        asked = kwargs["generation_config"]
        if asked.max_new_tokens is not None and asked.max_length == self.generation_config.max_length:
            kwargs["has_default_max_length"] = True
        return above._prepare_generated_length(*args, **kwargs)

    def _prepare_cache_for_generation(self, generation_config, model_kwargs, *_args, **_kwargs) -> bool:
        """`generate` calls this before the first step: hand it our cache in place of the default one."""
        if (kind := generation_config.cache_implementation) is not None:
            raise UserError(
                f"cache_implementation = {kind!r}: this model brings its own cache, with a slot for every "
                "attention call; leave it out"
            )
        if (exit := model_kwargs.get("exit")) is not None:
            if (generation_config.num_beams or 1) > 1 or generation_config.use_cache is False:
                raise UserError("exit goes with greedy search or sampling, and with the cache; leave it out")
            model_kwargs["exit"] = Exit.of(exit)
        mask, chunk = model_kwargs.get("attention_mask"), generation_config.prefill_chunk_size
        if mask is not None and chunk is not None and not bool(mask[:, :chunk].any(-1).all()):
            raise UserError(
                f"prefill_chunk_size = {chunk}: the first chunk of a padded row would be padding alone; "
                "leave it out, or give prompts of more equal length"
            )
        length, context = generation_config.max_length, self.model.config.context
        if (embeddings := model_kwargs.get("inputs_embeds")) is not None:
            length += embeddings.shape[1]  # a prompt that transformers does not count
        if length > context:
            raise UserError(
                f"prompt + new tokens = {length} exceed the context of {context}; lower max_new_tokens"
            )
        if (given := model_kwargs.get("past_key_values")) is not None:
            given._is_user_defined = True  # so that it outlives the call
        elif generation_config.use_cache is not False:
            kept = generation_config.return_dict_in_generate  # returned, so that text may go on from it
            model_kwargs["past_key_values"] = SRMCache(self.model, None if kept else length)
        return True


# --- the folder ---------------------------------------------------------------------------------------------


def export(model: LanguageModel, directory: str | Path, tokenizer: Tokenizer | None = None) -> None:
    """Write a folder that `AutoModelForCausalLM` and `AutoTokenizer` open."""
    if not model.config.causal:
        raise UserError("a puzzle model is not a causal language model: export it with --to safetensors")
    theirs = SRMForCausalLM.wrap(model)
    theirs.generation_config.max_length = model.config.context  # else a pipeline asks for 256 new tokens
    if tokenizer is not None:
        if tokenizer.vocab_size > model.config.vocab_size:
            raise UserError(
                f"tokenizer {tokenizer.name} has {tokenizer.vocab_size} ids, "
                f"the model {model.config.vocab_size}: pass the tokenizer the model was trained with"
            )
        theirs.generation_config.eos_token_id = theirs.generation_config.pad_token_id = tokenizer.end_of_text
    theirs.save_pretrained(directory)
    (Path(directory) / "README.md").write_text(model_card(model), encoding="utf-8")
    if tokenizer is not None:
        export_tokenizer(tokenizer, directory, model.config.context)


def lora_targets(model: SRMModel) -> dict[str, list[str]]:
    """Every matrix of the model for peft: `LoraConfig(r=8, **lora_targets(model))`.

    The weights of all streams are one parameter [stream, in, out], of which every stream gets an adapter of
    its own. peft's "all-linear" does not see them.
    """
    output = model.get_output_embeddings()
    found: dict[str, list[str]] = {"target_modules": [], "target_parameters": []}
    for name, module in model.named_modules():
        if isinstance(module, StreamLinear):
            found["target_parameters"].append(f"{name}.weight")
        elif isinstance(module, nn.Linear) and module is not output:
            found["target_modules"].append(name)
    return found


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
AutoModel.register(SRMHFConfig, SRMModel, exist_ok=True)
AutoModelForCausalLM.register(SRMHFConfig, SRMForCausalLM, exist_ok=True)
