"""SRM: the reference implementation of the Stream Recursion Model, and the instrument for looking inside it.

>>> import srm, torch
>>> model = srm.build(srm.preset("srm-nano"))
>>> model(torch.zeros(1, 16, dtype=torch.long)).shape
torch.Size([1, 16, 512])
"""

import importlib

from srm.models import (
    GPT2,
    HRM,
    SRM,
    ConfigError,
    GPT2Config,
    HRMConfig,
    LanguageModel,
    ModelConfig,
    SRMConfig,
    UnknownSite,
    build,
    config_from_dict,
    generate,
    preset,
)
from srm.storage import load, save

__version__ = "0.1.0"

__all__ = [
    "GPT2",
    "HRM",
    "SRM",
    "ConfigError",
    "GPT2Config",
    "HRMConfig",
    "LanguageModel",
    "ModelConfig",
    "SRMConfig",
    "UnknownSite",
    "build",
    "config_from_dict",
    "generate",
    "load",
    "preset",
    "save",
]


def __getattr__(name: str):
    """`srm.analysis`, `srm.data` and `srm.figures` without an import of their own, on first use."""
    if name in ("analysis", "data", "figures"):
        return importlib.import_module(f"srm.{name}")
    raise AttributeError(f"module 'srm' has no attribute {name!r}")
