"""The models of the paper by name, and small ones of the same shape for a CPU.

    >>> preset("srm-base").streams
    32
    >>> preset("srm-nano", streams=16).streams
    16
    >>> preset("srm-sweep-width-8").mlp_dim   # the stream-size sweep: parameter, width or stream, and s
    3072

A preset is a function that returns a config. Every field can be changed by keyword.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, get_args

from srmlab.errors import nearest
from srmlab.models.config import ConfigError, GPT2Config, HRMConfig, ModelConfig, SRMConfig

SweepSet = Literal["parameter", "width", "stream"]
SWEEP_STREAMS = (1, 2, 4, 8, 16, 32, 64)
NANO: dict[str, Any] = {"vocab_size": 512, "context": 256}  # a small trained BPE and short windows


def srm_base() -> SRMConfig:
    """The paper's 68M model: many narrow streams."""
    return SRMConfig(
        streams=32, stream_dim=128, mlp_dim=768, token_heads=2, stream_heads=4, order="ABCABC", post_steps=1
    )


def srm_med() -> SRMConfig:
    """The paper's 134M model: few wide streams."""
    return SRMConfig(streams=8, stream_dim=512, mlp_dim=3072, token_heads=8, stream_heads=4, order="ABC")


def srm_large() -> SRMConfig:
    """The paper's 454M model."""
    return SRMConfig(
        streams=16,
        stream_dim=512,
        mlp_dim=3072,
        token_heads=8,
        stream_heads=8,
        step_functions=6,
        order="ABCDEF",
    )


def hrm() -> HRMConfig:
    """The paper's HRM for language, 109M."""
    return HRMConfig()


def trm() -> HRMConfig:
    """The Tiny Recursive Model at the same width: one net of two blocks plays both parts."""
    return HRMConfig(low_blocks=2, high_blocks=2, low_cycles=6, shared_net=True, gradient="last-cycle")


def gpt2() -> GPT2Config:
    """Hugging Face's default GPT2LMHeadModel, 124M."""
    return GPT2Config()


def srm_nano() -> SRMConfig:
    """Eight streams that learn to write words in five minutes on two cores."""
    return SRMConfig(
        **NANO,
        embedding_dim=128,
        streams=8,
        stream_dim=32,
        mlp_dim=128,
        token_heads=1,
        stream_heads=2,
        head_dim=32,
    )


def hrm_nano() -> HRMConfig:
    """HRM at nano size."""
    return HRMConfig(
        **NANO,
        dim=128,
        heads=4,
        head_dim=32,
        mlp_dim=512,
        low_blocks=3,
        high_blocks=2,
        low_cycles=4,
        high_cycles=3,
    )


def trm_nano() -> HRMConfig:
    """TRM at nano size."""
    return trm().replace(**NANO, dim=128, heads=4, head_dim=32, mlp_dim=512)


def gpt2_nano() -> GPT2Config:
    """GPT-2 at nano size, without dropout."""
    return GPT2Config(**NANO, dim=128, blocks=6, heads=4, mlp_dim=512, dropout=0.0)


def srm_sweep(set: SweepSet, streams: int, stream_dim: int | None = None) -> SRMConfig:
    """One cell of the paper's stream-size sweep (its figure "num streams"), untied as its table counts.

    parameter  S·D = 4096, MLP 768, 2 heads: the parameter count is the same at every S
    width      S·D = 4096, S·heads = 64, S·MLP = 24576: the model's width is the same at every S
    stream     D, MLP 768 and 2 heads are the same at every S. The paper's text says D = 256, but its
    parameter counts are those of
               D = 128, which is the default here; pass stream_dim=256 for the text's reading.
    """
    if set not in get_args(SweepSet):
        raise ConfigError(f"set = {set!r}: must be one of {', '.join(get_args(SweepSet))}")
    if streams not in SWEEP_STREAMS:
        raise ConfigError(f"streams = {streams}: the sweep has {', '.join(map(str, SWEEP_STREAMS))}")
    width = set == "width"
    return SRMConfig(
        streams=streams,
        stream_dim=stream_dim or (128 if set == "stream" else 4096 // streams),
        mlp_dim=24576 // streams if width else 768,
        token_heads=64 // streams if width else 2,
        stream_heads=4,
        order="ABCABC",
        tied=False,
    )


PRESETS: dict[str, Callable[[], ModelConfig]] = {
    "srm-base": srm_base,
    "srm-med": srm_med,
    "srm-large": srm_large,
    "hrm": hrm,
    "trm": trm,
    "gpt2": gpt2,
    "srm-nano": srm_nano,
    "hrm-nano": hrm_nano,
    "trm-nano": trm_nano,
    "gpt2-nano": gpt2_nano,
}
SWEEP_PRESETS: dict[str, Callable[[], ModelConfig]] = {
    f"srm-sweep-{kind}-{s}": partial(srm_sweep, kind, s) for kind in get_args(SweepSet) for s in SWEEP_STREAMS
}


def preset(name: str, **changes: Any) -> ModelConfig:
    """The config of that name, with fields changed by keyword. `srm-sweep` takes `set` and `streams`."""
    if name == "srm-sweep":
        try:
            return srm_sweep(
                changes.pop("set"), changes.pop("streams"), changes.pop("stream_dim", None)
            ).replace(**changes)
        except KeyError as missing:
            raise ConfigError(
                f"srm-sweep needs {missing}: preset('srm-sweep', set='width', streams=8)"
            ) from None
    known = PRESETS | SWEEP_PRESETS
    if name not in known:
        hint = nearest(name, list(known)) or "; `srmlab presets` lists them"
        raise ConfigError(f"no preset is called {name!r}{hint}")
    return known[name]().replace(**changes)
