"""Results: what an analysis found, on which text, with axes and units; saved as npz + JSON, never pickle.

A result is a frozen dataclass. Its array fields carry the names of their axes and their unit,

    frequency: Annotated[np.ndarray, Measured("layer head target source", "share of tokens")]

and an axis name means one size throughout a result: the constructor refuses arrays that disagree. Arrays that
were given rather than measured, such as training steps, are marked `Axes`. Everything else in a result is a
number, a string or a list of them. What is derived from the fields, such as a hub score, is a method marked
`@derived(axes, unit)`, read like a field.

Every measured and every derived number has a standard error, over sequences: `standard_error(name)`. A
field's comes from the sums of the pass, a derived number's from a bootstrap during the analysis.

    >>> import srmlab, srmlab.analysis, torch
    >>> model = srmlab.build(srmlab.preset("srm-nano"))
    >>> found = srmlab.analysis.routing(model, [torch.arange(64).view(2, 32)])
    >>> found.frequency.shape                                   # layer, head, target, source
    (8, 2, 8, 8)
    >>> found.hub_score.shape == found.standard_error("hub_score").shape
    True
    >>> import tempfile, pathlib
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     stem = found.save(pathlib.Path(folder) / "routing")        # routing.npz and routing.json
    ...     again = srmlab.analysis.load(stem)
    >>> again.evidence.tokens
    64
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    Generic,
    Self,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
)

import numpy as np

from srmlab.errors import UserError
from srmlab.files import write_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMAT = 3
READABLE = (2, 3)  # format 2 names the errors of fields `frequency_se`, format 3 as it does all others
ERROR = "error of "  # begins the names of standard errors in the npz
Array = np.ndarray


class ResultError(UserError):
    """A result that cannot be read, or whose parts do not fit together."""


@dataclass(frozen=True)
class Axes:
    """The names of an array's axes, outermost first, and the unit of its values."""

    names: str
    unit: str

    def __iter__(self):
        return iter(self.names.split())


@dataclass(frozen=True)
class Measured(Axes):
    """Of an array that is measured: its standard error is kept with it."""


@dataclass(frozen=True)
class Coordinate(Axes):
    """Of an array that says what the places along its one axis are, such as training steps."""


Number = TypeVar("Number")


class Derived(property, Generic[Number]):
    """A property that is a number, or an array, worked out of a result's fields."""

    def __init__(self, getter: Callable[[Any], Number], axes: Axes) -> None:
        super().__init__(getter)
        self.axes = getter.axes = axes  # pyright: ignore[reportFunctionMemberAccess]

    if TYPE_CHECKING:

        def __get__(  # pyright: ignore[reportIncompatibleMethodOverride]
            self, instance: Any, owner: type | None = None, /
        ) -> Number: ...


def derived(axes: str, unit: str) -> Callable[[Callable[[Any], Number]], Derived[Number]]:
    """Make a method a derived number (axes "") or array."""
    return lambda getter: Derived(getter, Axes(axes, unit))


@dataclass(frozen=True)
class Evidence:
    """The text a result was measured on."""

    tokens: int  # token positions that count
    sequences: int  # the windows they came in: standard errors are over these
    fingerprint: str  # of all token ids, whatever the batch size, their order or the number of processes

    def __str__(self) -> str:
        sequences = f"{self.sequences:,} sequence{'s' * (self.sequences != 1)}"
        return f"{self.tokens:,} tokens in {sequences}, text {self.fingerprint}"


@dataclass(frozen=True, kw_only=True, eq=False)
class Result:
    """What every analysis returns."""

    kind: ClassVar[str]
    kinds: ClassVar[dict[str, type[Result]]] = {}
    drawn: ClassVar[bool] = True  # whether there is a figure of it
    columns: ClassVar[tuple[str, ...]] = ()  # the numbers in data files for LaTeX; by default all fields

    evidence: Evidence
    errors: Mapping[str, Array] = dataclasses.field(default_factory=dict)  # standard errors, by name

    def __init_subclass__(cls) -> None:
        Result.kinds[cls.kind] = cls
        cls.__repr__ = Result.__repr__  # a data class would write out all its arrays

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.headline()} ({self.evidence})>"

    def __post_init__(self) -> None:
        sizes: dict[str, int] = {}
        known = self.uncertain()
        for name in self.errors:
            require(name in known, f"an error of {name}, which {self.kind} does not have")
        described = [(name, axes, getattr(self, name)) for name, axes in self.axes().items()]
        described += [(ERROR + name, known[name], error) for name, error in self.errors.items()]
        for name, axes, value in described:
            expected = list(axes)
            require(
                isinstance(value, np.ndarray) and value.ndim == len(expected),
                f"{name} of shape {np.shape(value)}: needs the axes [{', '.join(expected)}]",
            )
            for axis, size in zip(expected, value.shape, strict=True):
                require(
                    sizes.setdefault(axis, size) == size,
                    f"{name} has {size} entries along {axis}, other fields have {sizes[axis]}",
                )

    @classmethod
    @functools.cache
    def axes(cls) -> dict[str, Axes]:
        """The array fields, with axes and unit."""
        found = {}
        for name, hint in get_type_hints(cls, include_extras=True).items():
            for note in get_args(hint)[1:] if get_origin(hint) is Annotated else ():
                if isinstance(note, Axes):
                    found[name] = note
        return found

    @classmethod
    @functools.cache
    def derived(cls) -> dict[str, Axes]:
        """The numbers worked out of the fields, with axes and unit."""
        getters = {name: getattr(getattr(cls, name), "fget", None) for name in dir(cls)}
        return {name: vars(getter)["axes"] for name, getter in getters.items() if hasattr(getter, "axes")}

    @classmethod
    @functools.cache
    def uncertain(cls) -> dict[str, Axes]:
        """The numbers that have a standard error: measured fields and derived numbers."""
        measured = {name: axes for name, axes in cls.axes().items() if isinstance(axes, Measured)}
        return measured | cls.derived()

    def standard_error(self, name: str) -> Array:
        """The standard error of a field or of a derived number; NaN if the text had one sequence only."""
        known = self.uncertain()
        if name not in known:
            raise ResultError(f"no standard error of {name!r} in {self.kind}; there are {', '.join(known)}")
        return np.asarray(self.errors.get(name, np.full(np.shape(getattr(self, name)), np.nan)))

    def text(self, name: str, form: str = ".3f", at: tuple[int, ...] = ()) -> str:
        """A number, or the one at a place of an array, with its error: `0.123 ± 0.004`."""
        return plus_minus(np.asarray(getattr(self, name))[at], self.standard_error(name)[at], form)

    def summary(self) -> str:
        """The findings as text to read."""
        lines = [f"{self.kind.replace('_', ' ').capitalize()} ({self.evidence})"]
        for name, axes in self.uncertain().items():
            over = f" over {', '.join(axes)}" if axes.names else ""
            lines.append(f"  {name}: {self._range(name)}{over} ({axes.unit})")
        return "\n".join(lines)

    def headline(self) -> str:
        """The findings in one line, for a table of all analyses."""
        return "; ".join(f"{name} {self._range(name)}" for name in list(self.uncertain())[:3])

    def _range(self, name: str) -> str:
        """A number with its error, or the least and the greatest of an array."""
        values = np.asarray(getattr(self, name))
        if values.ndim == 0:
            return self.text(name, ".4g")
        known = values[np.isfinite(values)]
        return f"{known.min():.4g} to {known.max():.4g}" if known.size else "–"

    def figure(self, **options: Any) -> Figure:
        """The result drawn. (matplotlib is imported here and not before.)"""
        from srmlab.figures import draw

        return draw(self, **options)

    def to_pgfplots(self, directory: str | Path, prefix: str) -> list[Path]:
        """Write data files for LaTeX, by the paper's names where the paper has one.

        One table a set of axes: a column for each axis, then one for each number. The set with most axes is
        `{prefix}_{kind}.dat`, others `{prefix}_{kind}_{axes}.dat`; single numbers are in the summary only.
        """
        described = self.axes() | self.derived()
        shown = self.columns or [n for n, axes in self.axes().items() if not isinstance(axes, Coordinate)]
        tables: dict[tuple[str, ...], list[str]] = {}
        for name in shown:
            if axes := tuple(described[name]):
                tables.setdefault(axes, []).append(name)
        written = []
        for axes in sorted(tables, key=len, reverse=True):
            stem = "_".join((prefix, self.kind, *(axes if written else ())))
            rows = self._rows(axes, tables[axes])
            written.append(write_table(Path(directory) / f"{stem}.dat", [*axes, *tables[axes]], rows))
        return written

    def _rows(self, axes: Sequence[str], names: Sequence[str]) -> Iterator[list[object]]:
        arrays = [np.asarray(getattr(self, name)) for name in names]
        places = [self.places(axis, size) for axis, size in zip(axes, arrays[0].shape, strict=True)]
        for at in np.ndindex(arrays[0].shape):
            where = [places[axis][index] for axis, index in enumerate(at)]
            yield [*where, *(array[at].item() for array in arrays)]

    def places(self, axis: str, size: int) -> Sequence[object]:
        """What stands for the places along an axis in a table: its coordinates, else 0, 1, 2 …"""
        for name, axes in self.axes().items():
            if isinstance(axes, Coordinate) and axes.names == axis:
                return getattr(self, name).tolist()
        return range(size)

    def save(self, path: str | Path) -> Path:
        """Write PATH.npz (arrays) and PATH.json (axes, units, settings, evidence); the stem's path is
        returned."""
        stem = _stem(path)
        stem.parent.mkdir(parents=True, exist_ok=True)
        axes = dict(self.axes())
        arrays = {name: getattr(self, name) for name in axes}
        settings = {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if field.name not in axes and field.name not in ("evidence", "errors")
        }
        for name, error in self.errors.items():
            arrays[ERROR + name], axes[ERROR + name] = error, self.uncertain()[name]
        described = {
            name: {"axes": list(note), "unit": note.unit, "shape": list(arrays[name].shape)}
            for name, note in axes.items()
        }
        about, data = _files(stem)
        digest = write_npz(data, arrays)
        document = {
            "kind": self.kind,
            "format": FORMAT,
            "npz": digest,
            "evidence": dataclasses.asdict(self.evidence),
            "settings": settings,
            "arrays": described,
        }
        write_file(about, json.dumps(document, indent=2) + "\n")
        return stem

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a result of this kind back."""
        found = load(path)
        require(isinstance(found, cls), f"{path} holds a {found.kind} result, not {cls.kind}")
        assert isinstance(found, cls)
        return found

    @classmethod
    def exists(cls, path: str | Path) -> bool:
        return all(file.exists() for file in _files(path))


def load(path: str | Path) -> Any:
    """The result saved at PATH.npz + PATH.json, as an object of its own class."""
    files = _files(path)
    for file in files:
        require(file.exists(), f"no file {file}; `srmlab analyze RUN` writes it")
    try:
        document = json.loads(files[0].read_text())
        kind, version = document["kind"], document["format"]
    except (ValueError, KeyError, TypeError):
        raise ResultError(f"{files[0]} is not a saved result; run the analysis again") from None
    require(version in READABLE, f"{files[0]} has format {version}, not {FORMAT}; run the analysis again")
    if kind not in Result.kinds:
        import srmlab.dictionaries  # noqa: F401  (its results are of this kind too)
    require(kind in Result.kinds, f"{files[0]} holds an unknown kind of result, {kind!r}; update srmlab")
    content = files[1].read_bytes()
    whole = _digest(content) == document.get("npz")
    require(whole, f"{files[1]} is damaged, or not of {files[0].name}; run the analysis again")
    with np.load(io.BytesIO(content), allow_pickle=False) as archive:
        arrays = {name: archive[name] for name in archive.files}
    settings = {name: _frozen(value) for name, value in document["settings"].items()}
    errors = _take_errors(arrays, version)
    try:
        evidence = Evidence(**document["evidence"])
        return Result.kinds[kind](evidence=evidence, errors=errors, **settings, **arrays)
    except TypeError as error:
        raise ResultError(f"{files[0]} does not fit its arrays ({error}); run the analysis again") from None


def _take_errors(arrays: dict[str, Array], version: int) -> dict[str, Array]:
    """The standard errors among the arrays, by what they are of; taken out of them."""
    errors = {name.removeprefix(ERROR): arrays.pop(name) for name in list(arrays) if name.startswith(ERROR)}
    if version == 2:
        beside = [name for name in arrays if name.endswith("_se")]
        errors |= {name.removesuffix("_se"): arrays.pop(name) for name in beside}
    return errors


def plus_minus(value: float, error: float = float("nan"), form: str = ".3f") -> str:
    """`0.123 ± 0.004`; the value alone if its error is not known, and – if there is no value. In the forms
    "g" and "d" (a count) the error has one digit. What rounds to zero has no minus.

    >>> plus_minus(0.1234, 0.0042), plus_minus(-0.0001, 0.2, "+.1%")
    ('0.123 ± 0.004', '+0.0% ± 20.0%')
    """
    if np.isnan(value):
        return "–"
    digits = form.removeprefix("+")
    shown = f"{value:.0f}" if form == "d" else f"{float(value):{form.removesuffix(digits)}z{digits}}"
    rounded = ".1g" if form[-1] in "gd" else digits
    return shown if np.isnan(error) else f"{shown} ± {error:{rounded}}"


def require(holds: bool, message: str) -> None:
    if not holds:
        raise ResultError(message)


def require_named(points: tuple[str, ...], measured: Array) -> None:
    """Every point that was measured has a name."""
    require(len(points) == len(measured), f"{len(points)} points named, {len(measured)} measured")


def write_npz(path: Path, arrays: dict[str, Array]) -> str:
    """The arrays, whole or not at all; a hash of what was written."""
    content = io.BytesIO()
    np.savez_compressed(content, allow_pickle=False, **arrays)
    write_file(path, content.getvalue())
    return _digest(content.getbuffer())


def write_table(path: Path, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Path:
    """A pgfplots table: a line of column names, then one line a row, blank-separated."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [" ".join(columns)]
    for row in rows:
        lines.append(" ".join(f"{cell:.6g}" if isinstance(cell, float) else str(cell) for cell in row))
    write_file(path, "\n".join(lines) + "\n")
    return path


def _digest(content: bytes | memoryview) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def _stem(path: str | Path) -> Path:
    path = Path(path)
    return path.with_suffix("") if path.suffix in (".npz", ".json") else path


def _files(path: str | Path) -> list[Path]:
    """PATH.json and PATH.npz."""
    stem = _stem(path)
    return [stem.with_name(stem.name + suffix) for suffix in (".json", ".npz")]


def _frozen(value: Any) -> Any:
    """JSON's lists as the tuples they were."""
    return tuple(map(_frozen, value)) if isinstance(value, list) else value
