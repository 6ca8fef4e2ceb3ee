"""The architectures of the paper. Imports torch only."""

from __future__ import annotations

import torch

from srmlab.errors import UserError
from srmlab.models.config import ConfigError, GPT2Config, HRMConfig, ModelConfig, SRMConfig, config_from_dict
from srmlab.models.decoding import DecodingCache, generate
from srmlab.models.gpt2 import GPT2
from srmlab.models.hrm import HRM
from srmlab.models.model import Flops, LanguageModel
from srmlab.models.presets import PRESETS, SWEEP_PRESETS, preset
from srmlab.models.sites import HookPoint, Site, UnknownSite
from srmlab.models.srm import SRM

__all__ = [
    "GPT2",
    "HRM",
    "PRESETS",
    "SRM",
    "SWEEP_PRESETS",
    "ConfigError",
    "DecodingCache",
    "Flops",
    "GPT2Config",
    "HRMConfig",
    "HookPoint",
    "LanguageModel",
    "ModelConfig",
    "SRMConfig",
    "Site",
    "UnknownSite",
    "build",
    "config_from_dict",
    "generate",
    "preset",
]


def build(
    config: ModelConfig, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None
) -> LanguageModel:
    """The model of a config, with weights that are a function of the config alone.

    `device="meta"` builds the shape without memory. Weights are drawn on the CPU, so that they are the
    same everywhere.

    >>> build(preset("srm-med"), device="meta").num_parameters()
    134783488
    """
    kinds: dict[type[ModelConfig], type] = {SRMConfig: SRM, HRMConfig: HRM, GPT2Config: GPT2}
    if type(config) not in kinds:
        raise UserError(f"build takes a config, such as preset('srm-nano'), not {config!r}")
    on_meta = device is not None and torch.device(device).type == "meta"
    with torch.device("meta" if on_meta else "cpu"):
        model = kinds[type(config)](config)
    return model.to(device=device, dtype=dtype)
