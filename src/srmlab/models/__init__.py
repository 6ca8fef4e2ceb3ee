"""The architectures of the paper. Imports torch only."""

from __future__ import annotations

from srmlab.models.attention import Rotary, causal_attention
from srmlab.models.cache import DecodingCache
from srmlab.models.config import ModelConfig, Sizes
from srmlab.models.connection import Connection, connection
from srmlab.models.decoding import generate
from srmlab.models.exit import Exit
from srmlab.models.fields import ConfigError
from srmlab.models.forward import Pass

from srmlab.models.srm import SRM, SRMConfig  # isort: skip  (the order of the registry)
from srmlab.models.hrm import HRM, HRMConfig  # isort: skip
from srmlab.models.gpt2 import GPT2, GPT2Config  # isort: skip
from srmlab.models.transformer import Transformer, TransformerConfig  # isort: skip
from srmlab.models.model import Call, Exchange, Flops, LanguageModel, Point
from srmlab.models.registry import (
    ARCHITECTURES,
    PRESETS,
    SWEEP_PRESETS,
    build,
    config_from_dict,
    preset,
    register,
)
from srmlab.models.sites import HookPoint, Site, UnknownSite
from srmlab.models.streams import RMSNorm, StreamLinear, init_linear_

__all__ = [
    "ARCHITECTURES",
    "GPT2",
    "HRM",
    "PRESETS",
    "SRM",
    "SWEEP_PRESETS",
    "Call",
    "ConfigError",
    "Connection",
    "DecodingCache",
    "Exchange",
    "Exit",
    "Flops",
    "GPT2Config",
    "HRMConfig",
    "HookPoint",
    "LanguageModel",
    "ModelConfig",
    "Pass",
    "Point",
    "RMSNorm",
    "Rotary",
    "SRMConfig",
    "Site",
    "Sizes",
    "StreamLinear",
    "Transformer",
    "TransformerConfig",
    "UnknownSite",
    "build",
    "causal_attention",
    "config_from_dict",
    "connection",
    "generate",
    "init_linear_",
    "preset",
    "register",
]
