"""The command line: `srmlab COMMAND …`, one file a command.

A command is a module in this package with a dataclass `Command`: its fields are the options, its docstring
the help with an example, its `run()` the work. Only the command that is asked for is imported.

Bad input (`UserError`, or an option that cannot be read) is one line on stderr and exit code 2.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import inspect
import io
import os
import re
import sys
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from srmlab.errors import Notice, UserError, nearest

COMMANDS = {  # name → one line for `srmlab --help`; the module is srmlab.cli.<name>
    "demo": "the whole path once, small: text, training, analyses, a report",
    "presets": "list the models by name: sizes, exact parameters, arithmetic",
    "info": "describe one model in full: computation, parameters, sites",
    "prepare": "turn text into token shards: a corpus by name, or your own files",
    "train": "train a model on prepared tokens",
    "resume": "continue a stopped run, as if it had never stopped",
    "evaluate": "loss, perplexity and bits per byte on unseen text",
    "solve": "problems solved, by difficulty and by depth",
    "generate": "continue a prompt, and show the text as it is made",
    "analyze": "look inside a model: routing, alignment, drift, ablation, lens",
    "dictionary": "learn sparse dictionaries of the streams; a page of features",
    "paper": "write the data files that the paper's own LaTeX figures read",
    "report": "write one self-contained HTML file about a run",
    "explore": "look at the streams in a browser",
    "sweep": "run the paper's experiments, or show what came out of them",
    "fit": "fit how the loss falls with tokens and FLOP, and extrapolate it",
    "export": "write a model for Hugging Face tools, or for srmlab.load",
    "bench": "time the models beside Hugging Face GPT-2 and the pseudocode",
    "completion": "print a completion script for bash, zsh or fish",
}


def main(argv: list[str] | None = None) -> NoReturn:
    argv = sys.argv[1:] if argv is None else argv
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(overview())
        sys.exit(0)
    if argv[0] in ("-V", "--version"):
        from srmlab import __version__

        print(f"srmlab {__version__}")
        sys.exit(0)
    warnings.showwarning = partial(show_warning, argv[0], warnings.showwarning)
    try:
        argv = import_extensions(argv)
        run(argv[0], argv[1:])
    except UserError as error:
        name = "srmlab" if argv[:1] == ["--import"] else f"srmlab {argv[0]}"
        print(f"{name}: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:  # `srmlab presets | head`
        sys.stderr.close()
        sys.exit(0)
    sys.exit(0)


def import_extensions(argv: list[str]) -> list[str]:
    """Import the files of `--import FILE`, before the command, and of SRMLAB_IMPORT; the rest of the line.

    Such a file enters architectures, connections, analyses or tasks of one's own (docs/extending.md).
    """
    files = [file for file in os.environ.get("SRMLAB_IMPORT", "").split(os.pathsep) if file]
    while argv and argv[0] == "--import":
        if len(argv) < 2:
            raise UserError("give a Python file: srmlab --import my_model.py train …")
        files.append(argv[1])
        argv = argv[2:]
    for file in files:
        import_file(Path(file))
    if not argv:
        raise UserError("no command after --import; `srmlab --help` lists them")
    return argv


def import_file(path: Path) -> None:
    if not path.is_file():
        raise UserError(f"--import {path}: no such file")
    found = importlib.util.spec_from_file_location(path.stem, path)
    if found is None or found.loader is None:
        raise UserError(f"--import {path}: not a Python file")
    known = sys.modules.get(path.stem)
    if known is not None and getattr(known, "__file__", None) == found.origin:
        return  # imported already, by an earlier command of this process
    if known is not None:
        raise UserError(f"--import {path}: a module is called {path.stem} already; rename the file")
    module = importlib.util.module_from_spec(found)
    sys.modules[path.stem] = module
    try:
        found.loader.exec_module(module)
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"--import {path} fails ({type(error).__name__}: {error}): mend the file") from error


def show_warning(
    command: str, otherwise: Callable, message: Warning, kind: type[Warning], *rest: Any
) -> None:
    """A notice is one line; other warnings are shown as usual."""
    if issubclass(kind, Notice):
        print(f"srmlab {command}: {message}", file=sys.stderr)
    else:
        otherwise(message, kind, *rest)


def run(name: str, arguments: list[str]) -> None:
    if name not in COMMANDS:
        hint = nearest(name, list(COMMANDS)) or "; `srmlab --help` lists them"
        raise UserError(f"no such command{hint}")
    module = importlib.import_module(f"srmlab.cli.{name}")
    defaults = module.defaults(arguments) if hasattr(module, "defaults") else None
    parse(module.Command, f"srmlab {name}", arguments, defaults).run()


def parse(kind: type, prog: str, arguments: list[str], defaults: Any = None) -> Any:
    """A command with its options filled in. Its whole docstring is the help, with the example.

    `defaults` is the command before its options, where those depend on the arguments (as on the preset).
    """
    import tyro

    given = {} if defaults is None else {"default": defaults}
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint):
            return tyro.cli(kind, prog=prog, args=arguments, description=inspect.getdoc(kind), **given)
    except SystemExit as stop:
        if stop.code in (0, None):
            raise
        raise UserError(one_line(complaint.getvalue(), f"; `{prog} --help` shows the options")) from None


def one_line(box: str, otherwise: str) -> str:
    """The first paragraph of a framed message of tyro's, and the option it suggests, or else `otherwise`."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", box)
    lines = text.splitlines()
    if text.startswith("╭"):  # title, body and foot in a box
        rows = [line[2:].rstrip("│ ") for line in lines if line.startswith("│")]
    else:  # not a UTF-8 terminal: title, rule, body
        rows = [line[2:].rstrip() for line in lines[2:]]
    if rows and rows[0].startswith("Missing from"):  # the names of what is missing are indented once
        names = [row.split()[0] for row in rows if re.match(r" {4}\S", row) and "--help" not in row]
        return f"{', '.join(names)} missing{otherwise}"
    paragraphs = [" ".join(part.split()) for part in re.split(r"[─-]{10,}", "\n".join(rows))]
    message = paragraphs[0].removesuffix(".")
    suggested = re.search(r"Perhaps you meant: (--[\w-]+)", " ".join(paragraphs))
    return message + (f"; did you mean {suggested[1]!r}?" if suggested else otherwise)


def overview() -> str:
    width = max(map(len, COMMANDS)) + 2
    lines = [
        "srmlab: the Stream Recursion Model, and the instrument for looking inside it",
        "",
        "usage: srmlab [--import FILE] COMMAND [options]",
        "",
    ]
    lines += [f"  {name:<{width}}{summary}" for name, summary in COMMANDS.items()]
    return "\n".join([*lines, "", "`srmlab COMMAND --help` shows the options of one, with an example."])
