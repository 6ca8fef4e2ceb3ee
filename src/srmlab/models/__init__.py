"""The architectures: SRM, its baselines and other recursive models. Imports torch only."""

from __future__ import annotations

from srmlab.models.activations import ActivationCache
from srmlab.models.attention import Rotary, causal_attention
from srmlab.models.cache import DecodingCache
from srmlab.models.config import ModelConfig, Sizes
from srmlab.models.connection import Connection, connection
from srmlab.models.decoding import generate
from srmlab.models.exit import Exit
from srmlab.models.fields import ConfigError
from srmlab.models.forward import Pass, gradient_everywhere

from srmlab.models.srm import SRM, SRMConfig  # isort: skip  (the order of the registry)
from srmlab.models.hrm import HRM, HRMConfig  # isort: skip
from srmlab.models.gpt2 import GPT2, GPT2Config  # isort: skip
from srmlab.models.transformer import Transformer, TransformerConfig  # isort: skip
from srmlab.models.ouro import Ouro, OuroConfig  # isort: skip
from srmlab.models.hyper import Hyper, HyperConfig  # isort: skip
from srmlab.models.huginn import Huginn, HuginnConfig  # isort: skip
from srmlab.models.mor import MoR, MoRConfig  # isort: skip
from srmlab.models.contract import Call, Exchange, Flops, Point
from srmlab.models.model import LanguageModel
from srmlab.models.registry import (
    ARCHITECTURES,
    PRESETS,
    SWEEP_PRESETS,
    build,
    config_from_dict,
    outline,
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
    "ActivationCache",
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
    "Huginn",
    "HuginnConfig",
    "Hyper",
    "HyperConfig",
    "LanguageModel",
    "MoR",
    "MoRConfig",
    "ModelConfig",
    "Ouro",
    "OuroConfig",
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
    "gradient_everywhere",
    "init_linear_",
    "outline",
    "preset",
    "register",
]
