"""The registry of architectures, and what is looked up in it: configs, presets, models.

    >>> build(preset("srm-med"), device="meta").num_parameters()
    134783488
    >>> preset("srm-nano", streams=16).streams
    16

`@register` on a class registers an architecture, ours or your own.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, get_args

import torch

from srmlab.errors import UserError, nearest, written_anew
from srmlab.models.config import ModelConfig
from srmlab.models.fields import ConfigError, known_fields
from srmlab.models.model import LanguageModel, outlined
from srmlab.models.shapes import without_data

Preset = Callable[..., ModelConfig]
Architecture = TypeVar("Architecture", bound=type[LanguageModel])

ARCHITECTURES: dict[str, type[LanguageModel]] = {}
PRESETS: dict[str, Preset] = {}  # the models to choose from
SWEEP_PRESETS: dict[str, Preset] = {}  # the cells of an architecture's own sweeps
FAMILIES: dict[str, Preset] = {}  # presets that take arguments, such as a sweep's


def register(kind: Architecture) -> Architecture:
    """Register an architecture, under its config's `architecture`, with its presets; in place of an earlier
    version of itself.
    """
    config = config_of(kind)
    name = config.architecture
    if name in ARCHITECTURES and not written_anew(ARCHITECTURES[name], kind):
        raise UserError(f"there is already an architecture called {name!r}: give {config.__name__} another")
    given = ((PRESETS, kind.presets), (SWEEP_PRESETS, kind.sweep_presets), (FAMILIES, kind.preset_families))
    for known, presets in given:
        for taken in known.keys() & presets.keys() if name not in ARCHITECTURES else ():
            raise UserError(f"there is already a preset called {taken!r}: rename {kind.__name__}'s")
        known.update(presets)
    ARCHITECTURES[name] = kind
    return kind


def config_of(kind: type[LanguageModel]) -> type[ModelConfig]:
    """The config class of an architecture: `class SRM(LanguageModel[SRMConfig])`."""
    for base in getattr(kind, "__orig_bases__", ()):
        for config in get_args(base):
            if isinstance(config, type) and issubclass(config, ModelConfig):
                return config
    raise UserError(
        f"{kind.__name__} does not name its config class: write class {kind.__name__}(LanguageModel[…])"
    )


def build(
    config: ModelConfig, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None
) -> LanguageModel:
    """Build the model of a config; its weights are a function of the config alone.

    `device="meta"` builds the shape without memory. Weights are drawn on the CPU, so that they are the
    same everywhere.
    """
    kind = _kind_of(config)
    on_meta = device is not None and torch.device(device).type == "meta"
    with without_data() if on_meta else torch.device("cpu"):
        model = kind(config)
    return model.to(device=device, dtype=dtype)


def outline(config: ModelConfig) -> LanguageModel:
    """The model of a config on the meta device, without sites: all that counting parameters and FLOPs needs,
    and quicker than `build`, which runs the model once to find its sites.
    """
    return outlined(_kind_of(config), config)


def _kind_of(config: ModelConfig) -> type[LanguageModel]:
    kind = ARCHITECTURES.get(getattr(config, "architecture", ""))
    if kind is None or not isinstance(config, config_of(kind)):
        raise UserError(f"build takes a config, such as preset('srm-nano'), not {config!r}")
    return kind


def config_from_dict(fields: Mapping[str, Any]) -> ModelConfig:
    """The inverse of `ModelConfig.to_dict`."""
    fields = dict(fields)
    architecture = fields.pop("architecture", None)
    if architecture not in ARCHITECTURES:
        known = f"must be one of {', '.join(ARCHITECTURES)}"
        mine = "; for one of your own, srmlab --import its file first" if architecture else ""
        raise ConfigError(f"architecture = {architecture!r}: {known}{mine}")
    kind = config_of(ARCHITECTURES[architecture])
    return kind(**known_fields(kind, fields))


def preset(name: str, **changes: Any) -> ModelConfig:
    """The config of that name, with fields changed by keyword. `srm-sweep` takes `set` and `streams`."""
    known = PRESETS | SWEEP_PRESETS | FAMILIES
    if name not in known:
        hint = nearest(name, [*PRESETS, *SWEEP_PRESETS]) or "; `srmlab presets` lists them"
        raise ConfigError(f"no preset is called {name!r}{hint}")
    parameters = inspect.signature(known[name]).parameters if name in FAMILIES else {}
    for field, parameter in parameters.items():
        if parameter.default is inspect.Parameter.empty and field not in changes:
            raise ConfigError(f"{name} needs {field!r}: preset('srm-sweep', set='width', streams=8)")
    given = {field: changes.pop(field) for field in parameters if field in changes}
    return known[name](**given).replace(**changes)
