"""The front end's files, and views of a user's own among them.

A view is one JavaScript file that exports one object, `view`: its name, title, place, the arrays it needs,
two sentences about it, and how it draws; `static/views.js` lists the fields and `docs/explorer.md` has an
example. A registered file stands beside the built-in views, imports what they import (`../heatmap.js`), and
is shown like any of them by the explorer, the report and the notebook.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from srmlab.errors import UserError
from srmlab.explorer.bundle import BundleError, bundle
from srmlab.figures import palette

TYPES = {
    "html": "text/html",
    "js": "text/javascript",
    "css": "text/css",
    "svg": "image/svg+xml",
    "LICENSE": "text/plain",
}
STYLES = (  # in the order of the cascade
    "vendor/uPlot.min.css", "style.css", "panels.css", "dialogs.css", "report.css", "screens.css",
)  # fmt: skip
NAME = re.compile(r'^\s*name: "([\w-]+)",', re.MULTILINE)


@dataclass(frozen=True)
class OwnView:
    """A registered view: its file and what was in it."""

    path: Path
    source: str


_own: dict[str, OwnView] = {}  # by name, in the order of registration


def register_view(path: str | Path) -> str:
    """Add the view in a JavaScript file to every explorer, report and notebook of this process; returns its
    name. Registering a file again takes its new content.

        register_view("my_view.js")
        trace.show(views=["tokens", "my-view"])
    """
    path = Path(path).resolve()
    try:
        source = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise UserError(f"view {path}: {reason}; give a JavaScript file") from None
    name = NAME.search(source)
    if name is None or not re.search(r"^export const view = ", source, re.MULTILINE):
        raise UserError(f'view {path}: must have `export const view = {{ name: "…", … }}`')
    taken = _own[name[1]].path if name[1] in _own else None
    if (taken and taken != path) or name[1] in _names(_package_files()):
        raise UserError(f"view {path}: there is already a view called {name[1]!r}; choose another name")
    try:
        bundle("views/own-1.js", _scripts({**_package_files(), "views/own-1.js": source.encode()}))
    except BundleError as error:
        raise UserError(f"view {path}: {str(error).removeprefix('views/own-1.js ')}") from None
    _own[name[1]] = OwnView(path, source)
    return name[1]


def static_files() -> dict[str, bytes]:
    """The front end, path → content: the installed package's files and the registered views."""
    found = _package_files()
    numbered = list(enumerate(_own.values(), 1))
    if numbered:
        found |= {f"views/own-{i}.js": view.source.encode() for i, view in numbered}
        imports = "".join(f'import {{ view as view{i} }} from "./own-{i}.js";\n' for i, _ in numbered)
        names = ", ".join(f"view{i}" for i, _ in numbered)
        found["views/own.js"] = f"{imports}\nexport const OWN = [{names}];\n".encode()
    return found


def view_names() -> list[str]:
    """The names of all views, built-in and registered."""
    return _names(static_files())


def script(entry: str) -> str:
    """The modules that `entry` needs as one script, for a page without a server."""
    return bundle(entry, _scripts(static_files()))


def styles() -> str:
    found = _package_files()
    return "\n".join(found[path].decode() for path in STYLES)


def shadow_styles() -> str:
    """The same styles for a shadow root, where there is no :root and no body."""
    css = styles()
    css = re.sub(r":root((?:\[[^]]*\]|:not\([^)]*\))+)", r":host(\1)", css)
    return re.sub(r"^body {", ".page {", css.replace(":root", ":host"), flags=re.MULTILINE)


def _package_files() -> dict[str, bytes]:
    found: dict[str, bytes] = {}

    def walk(folder: Traversable, prefix: str) -> None:
        for entry in folder.iterdir():
            if entry.is_dir():
                walk(entry, f"{prefix}{entry.name}/")
            elif entry.name.rsplit(".", 1)[-1] in TYPES:
                found[prefix + entry.name] = entry.read_bytes()

    walk(files("srmlab.explorer") / "static", "")
    found["palette.js"] = _palette().encode()
    return dict(sorted(found.items()))


def _palette() -> str:
    """The colours of the figures, for the page."""
    names = ("STREAMS", "HEADS", "STEPS", "SHARE", "SHARE_DARK", "SIGNED", "SIGNED_DARK")
    lines = (f"export const {name} = {json.dumps(getattr(palette, name))};\n" for name in names)
    return "".join(lines)


def _scripts(found: dict[str, bytes]) -> dict[str, str]:
    return {path: content.decode() for path, content in found.items() if path.endswith(".js")}


def _names(found: dict[str, bytes]) -> list[str]:
    sources = (content.decode() for path, content in found.items() if path.startswith("views/"))
    return [match[1] for source in sources if (match := NAME.search(source))]
