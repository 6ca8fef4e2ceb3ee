"""SRM: a reference implementation of the Stream Recursion Model, and a toolkit for interpreting it.

>>> import srmlab, torch
>>> model = srmlab.build(srmlab.preset("srm-nano"))
>>> model(torch.zeros(1, 16, dtype=torch.long)).shape
torch.Size([1, 16, 512])

The names below and the subpackages `analysis`, `data`, `dictionaries`, `experiments`, `explorer`, `figures`,
`models`, `pretrained`, `storage`, `tasks` and `training` are imported on first use: torch takes seconds,
which `srmlab --help` need not wait for.
"""

import importlib
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from srmlab.analysis import patch_grid
    from srmlab.data import Tokenizer
    from srmlab.models import (
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
    from srmlab.storage import load, load_tokenizer

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
    "load_tokenizer",
    "patch_grid",
    "preset",
    "save",
]


ROOMS = (
    "analysis",
    "data",
    "dictionaries",
    "experiments",
    "explorer",
    "figures",
    "models",
    "pretrained",
    "storage",
    "tasks",
    "training",
)


def __getattr__(name: str):
    if name in ROOMS:
        return importlib.import_module(f"srmlab.{name}")
    if name not in __all__:
        message = f"module 'srmlab' has no attribute {name!r}"
        raise AttributeError(message, name=name, obj=sys.modules[__name__])  # python adds the nearest name
    home = {"load": "storage", "load_tokenizer": "storage", "patch_grid": "analysis"}.get(name, "models")
    room = importlib.import_module(f"srmlab.{home}")
    return globals().setdefault(name, getattr(room, name))


def save(model: "LanguageModel", path: "str | Path", tokenizer: "Tokenizer | None" = None) -> "Path":
    """Write an export folder, all of it or nothing; see `srmlab.storage`.

    Spelled out here: nnsight gives every object a method `save`, which would hide one that is imported late.
    """
    from srmlab import storage

    return storage.save(model, path, tokenizer)


def __dir__() -> list[str]:
    return sorted({*__all__, *ROOMS, "__version__"})
