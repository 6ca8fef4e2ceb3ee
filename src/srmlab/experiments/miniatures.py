"""The models at the two scales for a CPU, all treated alike.

mini     140,000 parameters, 0.3M tokens (two a parameter): minutes a run on one core
small    0.5M parameters, 5M tokens (ten a parameter): 70 times the arithmetic of mini a run

Both keep the paper's shape (eight layers, gradient through the last four, at least eight streams) and shrink
every dimension. The models of a scale have the same parameters: what is left goes into the MLPs. All have
initial weights scaled to their width, but for what is there to show what happens otherwise.

    >>> outline(srm_med("small")).num_parameters()
    499712
    >>> outline(transformer("small")).num_parameters()
    499968
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any, Literal, TypeVar

from srmlab.models import GPT2Config, HRMConfig, ModelConfig, SRMConfig, TransformerConfig, outline
from srmlab.training.config import TrainConfig

Small = Literal["mini", "small"]
Config = TypeVar("Config", bound=ModelConfig)

TEXT: dict[Small, dict[str, Any]] = {
    "mini": {"vocab_size": 512, "context": 128},
    "small": {"vocab_size": 512, "context": 256},
}
# MLPs as wide as give every model the parameters of SRM-med (SRM-base half of them, the large transformer its
# FLOP); tests hold it
MLP: dict[Small, dict[str, int]] = {
    "mini": {
        "srm-med": 64, "srm-base": 24, "transformer": 203, "large": 409, "gpt2": 180, "hrm": 203, "trm": 288,
    },
    "small": {
        "srm-med": 176, "srm-base": 34, "transformer": 395, "large": 883, "gpt2": 356, "hrm": 395, "trm": 593,
    },
}  # fmt: skip
DIM: dict[Small, int] = {"mini": 48, "small": 96}  # of all but SRM
RATE = 4e-3  # where the search begins


def training(scale: Small) -> TrainConfig:
    """A constant rate after a warm-up, as in the paper."""
    steps, batch_size, eval_tokens = {"mini": (600, 4, 32_768), "small": (2450, 8, 131_072)}[scale]
    return TrainConfig(
        steps=steps,
        batch_size=batch_size,
        lr=RATE,
        warmup=steps // 20,
        eval_every=steps if scale == "mini" else steps // 10,
        eval_tokens=eval_tokens,
        eval_windows="spread",
        checkpoint_every=200,
        keep_checkpoints=1,
        device="cpu",
    )


@cache
def count(config: ModelConfig) -> int:
    return outline(config).num_parameters()


def sized(config: Config, parameters: int) -> Config:
    """The model with MLPs as wide as bring its parameters nearest to so many."""
    one, two = (count(config.replace(mlp_dim=width)) for width in (1, 2))
    return config.replace(mlp_dim=max(1, 1 + round((parameters - one) / (two - one))))


def srm_med(scale: Small) -> SRMConfig:
    """SRM-med: eight streams, ABC."""
    if scale == "mini":
        sizes: dict[str, Any] = {"embedding_dim": 64, "stream_dim": 16, "token_heads": 1}
    else:
        sizes = {"embedding_dim": 96, "stream_dim": 32, "token_heads": 2}
    mlp = MLP[scale]["srm-med"]
    return SRMConfig(**TEXT[scale], **sizes, streams=8, mlp_dim=mlp, stream_heads=2, head_dim=16)


def srm_base(scale: Small) -> SRMConfig:
    """SRM-base with half of SRM-med's parameters, as in the paper: as wide in all, twice as many narrow
    streams, six steps and a post-step.

    One head, as wide as a stream: narrower ones take twice the time, for attention's patterns.
    """
    med = srm_med(scale)
    stream_dim = med.stream_dim // 2
    return med.replace(
        embedding_dim=32 if scale == "mini" else 96,
        streams=16,
        stream_dim=stream_dim,
        token_heads=1,
        stream_heads=1,
        head_dim=stream_dim,
        mlp_dim=MLP[scale]["srm-base"],
        order="ABCABC",
        post_steps=1,
    )


def srm_large(scale: Small) -> SRMConfig:
    """SRM-large: three times the parameters, six step functions."""
    med = srm_med(scale)
    return med.replace(streams=16, stream_heads=4, step_functions=6, order="ABCDEF")


def transformer(scale: Small) -> TransformerConfig:
    return _transformer(scale, DIM[scale], blocks=4, mlp=MLP[scale]["transformer"])


def large_transformer(scale: Small) -> TransformerConfig:
    """A transformer with SRM-med's arithmetic, and so with several times its parameters."""
    return _transformer(scale, 2 * DIM[scale], blocks=6, mlp=MLP[scale]["large"])


def _transformer(scale: Small, dim: int, blocks: int, mlp: int) -> TransformerConfig:
    return TransformerConfig(**TEXT[scale], dim=dim, blocks=blocks, heads=dim // 16, head_dim=16, mlp_dim=mlp)


def gpt2(scale: Small) -> GPT2Config:
    """GPT-2, its initial weights scaled to the width."""
    dim, mlp = DIM[scale], MLP[scale]["gpt2"]
    return GPT2Config(
        **TEXT[scale], dim=dim, blocks=4, heads=dim // 16, mlp_dim=mlp, dropout=0.0, init="width"
    )


def hrm(scale: Small) -> HRMConfig:
    dim, mlp = DIM[scale], MLP[scale]["hrm"]
    return HRMConfig(
        **TEXT[scale], dim=dim, heads=dim // 16, head_dim=16, mlp_dim=mlp, low_blocks=2, high_blocks=2
    )


def trm(scale: Small) -> HRMConfig:
    """TRM, wider: its one net has half of HRM's blocks."""
    dim = 64 if scale == "mini" else 128
    mlp = MLP[scale]["trm"]
    return hrm(scale).replace(
        dim=dim, heads=dim // 16, mlp_dim=mlp, low_cycles=6, shared_net=True, gradient="last-cycle"
    )


def single_hrm(scale: Small) -> HRMConfig:
    """HRM without its high net: one net with the blocks of both."""
    return hrm(scale).replace(low_blocks=4, high_blocks=0)


def of_streams(scale: Small, kind: str, streams: int) -> SRMConfig:
    """The paper's sweep of stream sizes with every width divided by 16 (mini) or 8 (small)."""
    by = 1 if scale == "mini" else 2
    width = kind == "width"
    return SRMConfig(
        **TEXT[scale],
        embedding_dim=32 * by,
        streams=streams,
        stream_dim=8 * by if kind == "stream" else 256 * by // streams,
        mlp_dim=1536 * by // streams if width else 48 * by,
        token_heads=64 // streams if width else 2,
        stream_heads=4,
        head_dim=4 * by,
        tied=False,
    )


def streams_as(model: SRMConfig, streams: int) -> SRMConfig:
    """The model with another number of streams at its own parameters: S·D² stays, MLPs take the rest."""
    dim = 2 * round(model.stream_dim * math.sqrt(model.streams / streams) / 2)
    other = model.replace(streams=streams, stream_dim=dim, token_heads=max(1, dim // model.head_dim))
    return sized(other, count(model))
