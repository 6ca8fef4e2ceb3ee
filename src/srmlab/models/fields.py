"""Validation of config fields, for model and training configs alike.

A config is a frozen dataclass with keyword fields. `check_fields`, called from `__post_init__`, refuses a
value that is not of its field's type, or outside the bounds that the field was declared with, in one line
that names the field, its value and the fix.

    >>> @dataclasses.dataclass(frozen=True, kw_only=True)
    ... class Walk:
    ...     steps: int = count(10)
    ...     pace: float = bounded(1.5, lambda pace: pace > 0, "must be positive")
    ...     def __post_init__(self):
    ...         check_fields(self)
    >>> Walk(steps=0)
    Traceback (most recent call last):
    srmlab.models.fields.ConfigError: steps = 0: must be at least 1
"""

from __future__ import annotations

import dataclasses
import math
import types
from collections.abc import Callable, Mapping
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from srmlab.errors import UserError, nearest

BOUND = "bound"
LATER = {"later": True}  # metadata of a field that configs saved before do not have


class ConfigError(UserError):
    """A config that cannot work. The message is one line and names the fix."""


def require(config: Any, field: str, holds: bool, fix: str) -> None:
    """Refuse the value of a field unless something holds."""
    if not holds:
        raise ConfigError(f"{field} = {getattr(config, field)!r}: {fix}")


def bounded(default: Any, holds: Callable[[Any], bool], fix: str, **metadata: Any) -> Any:
    """A field whose value must fulfil `holds`, unless it is None, as the field's type may allow."""
    return dataclasses.field(default=default, metadata={BOUND: (holds, fix), **metadata})


def count(default: int | None, **metadata: Any) -> Any:
    """A field that counts something there must be at least one of."""
    return bounded(default, lambda value: value >= 1, "must be at least 1", **metadata)


def saved_fields(config: Any) -> list[str]:
    """The fields that a saved config names: one that came `LATER` is left out where it has its default, so
    that what was saved before keeps its identity.
    """
    return [
        field.name
        for field in dataclasses.fields(config)
        if not (field.metadata.get("later") and getattr(config, field.name) == field.default)
    ]


def check_fields(config: Any) -> None:
    """Refuse a value that is not of its field's type, or outside its bounds, by name."""
    hints = get_type_hints(type(config))
    for field in dataclasses.fields(config):
        value, kind = getattr(config, field.name), hints[field.name]
        require(config, field.name, _fits(value, kind), f"must be {_describe(kind)}")
        if value is not None and BOUND in field.metadata:
            holds, fix = field.metadata[BOUND]
            require(config, field.name, holds(value), fix)


def known_fields(kind: type, fields: Mapping[str, Any]) -> dict[str, Any]:
    """`fields` as keywords for `kind`, lists (of TOML and JSON) as tuples; an unknown name is refused."""
    known = [field.name for field in dataclasses.fields(kind)]
    for name in fields:
        if name not in known:
            hint = nearest(name, known) or f"; its fields are {', '.join(known)}"
            raise ConfigError(f"{name}: not a field of {kind.__name__}{hint}")
    return {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}


def _fits(value: Any, kind: Any) -> bool:
    origin, args = get_origin(kind), get_args(kind)
    if origin is Literal:
        return value in args
    if origin in (Union, types.UnionType):
        return any(_fits(value, option) for option in args)
    if origin is tuple:
        return isinstance(value, tuple) and len(value) == len(args) and all(map(_fits, value, args))
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return isinstance(value, kind) and (kind is bool or not isinstance(value, bool))


def _describe(kind: Any) -> str:
    origin, args = get_origin(kind), get_args(kind)
    if origin is Literal:
        return " or ".join(repr(choice) for choice in args)
    if origin in (Union, types.UnionType):
        return " or ".join("left out" if option is type(None) else _describe(option) for option in args)
    if origin is tuple:
        return f"{len(args)} values, each {_describe(args[0])}"
    return {int: "a whole number", float: "a number", bool: "true or false", str: "text"}[kind]
