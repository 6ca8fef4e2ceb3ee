"""The front end as one script, for pages that have no server behind them: the report and the notebook.

The modules keep to a few forms of import and export, and this turns each into a function that returns its
exports:

    import { a, b as c } from "./x.js";   →   const { a, b: c } = module_x;
    import uPlot from "./uPlot.esm.js";   →   const { default: uPlot } = module_uPlot;
    export const c = …                    →   const c = …    and   return { c };

in the order of their dependence. Anything it does not know it refuses, so a module written otherwise fails
loudly, in the tests.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping

IMPORT = re.compile(
    r'^import (?:(?P<default>\w+)|\{(?P<names>[^}]*)\}) from "(?P<path>\./[^"]+|\.\./[^"]+)";$', re.MULTILINE
)
EXPORT = re.compile(r"^export (?P<kind>const|class|function|async function) (?P<name>\w+)", re.MULTILINE)
EXPORT_DEFAULT = re.compile(r"^export \{ (?P<name>\w+) as default \};$", re.MULTILINE)


class BundleError(Exception):
    """A module written in a form this does not know."""


def bundle(entry: str, sources: Mapping[str, str]) -> str:
    """All that `entry` needs as one script; the entry's exports are in the constant `entry_module`."""
    order: list[str] = []
    _visit(entry, sources, order, ())
    names = {path: f"module_{i}" for i, path in enumerate(order)}
    parts = [
        f"const {names[path]} = (() => {{\n{_body(path, sources[path], names)}\n}})();" for path in order
    ]
    script = "\n".join([*parts, f"const entry_module = {names[entry]};"])
    return script.replace("</script", "<\\/script")


def _visit(path: str, sources: Mapping[str, str], order: list[str], above: tuple[str, ...]) -> None:
    if path in order:
        return
    if path in above:
        raise BundleError(f"modules import each other in a circle: {' → '.join([*above, path])}")
    if path not in sources:
        raise BundleError(f"{above[-1] if above else 'the entry'} imports {path}, which is not there")
    for match in IMPORT.finditer(sources[path]):
        _visit(_resolve(path, match["path"]), sources, order, (*above, path))
    order.append(path)


def _resolve(path: str, relative: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(path), relative))


def _body(path: str, source: str, names: Mapping[str, str]) -> str:
    def imported(match: re.Match[str]) -> str:
        wanted = f"default: {match['default']}" if match["default"] else _renamed(match["names"])
        return f"const {{ {wanted} }} = {names[_resolve(path, match['path'])]};"

    default = EXPORT_DEFAULT.search(source)
    if default is not None:  # a library of one name; what else looks like an export is in its comments
        return f"{EXPORT_DEFAULT.sub('', source)}\nreturn {{ default: {default['name']} }};"
    exports = [match["name"] for match in EXPORT.finditer(source)]
    body = EXPORT.sub(r"\g<kind> \g<name>", IMPORT.sub(imported, source))
    left = re.search(r"^(import|export)\b.*", body, re.MULTILINE)
    if left is not None:
        raise BundleError(f"{path}: cannot bundle {left[0]!r}")
    return f"{body}\nreturn {{ {', '.join(exports)} }};"


def _renamed(names: str) -> str:
    """`a, b as c` as a destructuring pattern has it: `a, b: c`."""
    return names.strip().replace(" as ", ": ")
