"""The command line: `srmlab COMMAND …`, one file a command.

A command is a module in this package with a dataclass `Command`: its fields are the options, its docstring
the help with an example, its `run()` the work. Only the command that is asked for is imported.

Bad input (`UserError`, or an option that cannot be read) is one line on stderr and exit code 2.
"""

from __future__ import annotations

import importlib
import importlib.util
import io
import os
import sys
import warnings
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn

from srmlab.cli.options import parse
from srmlab.errors import Notice, UserError, nearest

COMMANDS = {  # name → one line for `srmlab --help`; the module is srmlab.cli.<name>
    "demo": "the whole pipeline in miniature: text, training, analyses, report",
    "presets": "list the models by name: sizes, exact parameters, FLOP",
    "info": "describe a model or run: computation, parameters, sites",
    "prepare": "tokenize a corpus by name, or your own files; generate puzzles",
    "train": "train a model on prepared tokens or puzzles",
    "resume": "continue a stopped run, bitwise as if uninterrupted",
    "evaluate": "loss, perplexity and bits per byte on held-out text",
    "compare": "compare runs of any architecture on the same tokens",
    "solve": "accuracy on tasks and puzzles, by difficulty and depth",
    "generate": "continue a prompt, streaming the text",
    "analyze": "measure routing, alignment, drift, ablation, logit lens and more",
    "patch": "activation, attribution and path patching between prompts",
    "dictionary": "train an SAE for each stream; write a page of features",
    "transcoder": "train transcoders for the step functions, shared by all depths",
    "circuit": "write the attribution graph of a prediction",
    "sparsity": "SAE sparsity (L0) against loss recovered, over several k and seeds",
    "paper": "write the data files that the paper's LaTeX figures read",
    "report": "write one self-contained HTML file about a run",
    "explore": "explore a model in the browser",
    "sweep": "run the paper's experiments, or show their results",
    "fit": "fit and extrapolate loss against tokens and FLOP",
    "export": "write a model for Hugging Face tools, or for srmlab.load",
    "bench": "time the models against Hugging Face GPT-2 and the pseudocode",
    "completion": "print a completion script for bash, zsh or fish",
}
HELP = ("-h", "--help", "help")
VERSION = ("-V", "--version")


def main(argv: list[str] | None = None) -> NoReturn:
    argv = (sys.argv[1:] if argv is None else argv) or ["--help"]
    if isinstance(sys.stdout, io.TextIOWrapper):  # what its encoding lacks (→ in Latin-1) is shown as \u2192
        sys.stdout.reconfigure(errors="backslashreplace")
    warnings.showwarning = partial(show_warning, argv[0], warnings.showwarning)
    try:
        if argv[0] not in (*HELP, *VERSION):  # these do not wait for the files of SRMLAB_IMPORT
            argv = import_extensions(argv)
        run(argv[0], argv[1:])
    except UserError as error:
        name = "srmlab" if is_import(argv[0]) else f"srmlab {argv[0]}"
        print(f"{name}: {error}", file=sys.stderr)
        sys.exit(2)
    except (MemoryError, RuntimeError) as error:
        if not no_memory(error):
            raise
        print(f"srmlab {argv[0]}: out of memory: use a smaller batch, context or model", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:  # `srmlab presets | head`
        sys.stderr.close()
        sys.exit(0)
    sys.exit(0)


def no_memory(error: Exception) -> bool:
    """Whether an error says that memory ran out: Python's and numpy's, or torch's, on a GPU or a CPU."""
    said = ("out of memory", "can't allocate memory", "Storage size calculation overflowed")
    return isinstance(error, MemoryError) or any(words in str(error) for words in said)


def import_extensions(argv: list[str]) -> list[str]:
    """Import the files of `--import FILE`, before the command, and of SRMLAB_IMPORT; return the rest.

    Such a file registers your own architectures, connections, analyses or tasks (docs/extending.md).
    """
    files = [file for file in os.environ.get("SRMLAB_IMPORT", "").split(os.pathsep) if file]
    while argv and is_import(argv[0]):
        _, equals, file = argv[0].partition("=")
        argv = [file, *argv[1:]] if equals else argv[1:]
        if not argv or not argv[0]:
            raise UserError("--import needs a Python file: srmlab --import my_model.py train …")
        files.append(argv[0])
        argv = argv[1:]
    for file in files:
        import_file(Path(file))
    if not argv:
        raise UserError("no command after --import; `srmlab --help` lists the commands")
    return argv


def is_import(argument: str) -> bool:
    return argument.partition("=")[0] == "--import"


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
        raise UserError(f"--import {path}: there is already a module called {path.stem}; rename the file")
    module = importlib.util.module_from_spec(found)
    sys.modules[path.stem] = module
    try:
        found.loader.exec_module(module)
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"--import {path} failed ({type(error).__name__}: {error}): fix the file") from error


def show_warning(
    command: str, otherwise: Callable, message: Warning, kind: type[Warning], *rest: Any
) -> None:
    """A notice is one line; other warnings are shown as usual."""
    if issubclass(kind, Notice):
        print(f"srmlab {command}: {message}", file=sys.stderr)
    else:
        otherwise(message, kind, *rest)


def with_shipped(arguments: list[str]) -> list[str]:
    """`--pretrained NAME`, or `=NAME`, is the path of that model; alone it is an option of the commands."""
    from srmlab import pretrained

    joined = {f"--pretrained={name}": ["--pretrained", name] for name in pretrained.NAMES}
    arguments = [part for argument in arguments for part in joined.get(argument, [argument])]
    for at, (option, name) in enumerate(pairwise(arguments)):
        if option == "--pretrained" and name in pretrained.NAMES:
            return [*arguments[:at], str(pretrained.folder(name)), *arguments[at + 2 :]]
    return arguments


def run(name: str, arguments: list[str]) -> None:
    if name in HELP:
        print(overview())
        return
    if name in VERSION:
        from srmlab import __version__

        print(f"srmlab {__version__}")
        return
    if name not in COMMANDS:
        hint = nearest(name, list(COMMANDS)) or "; `srmlab --help` lists the commands"
        raise UserError(f"no such command{hint}")
    if any(map(is_import, arguments)):
        raise UserError(f"--import goes before the command: srmlab --import FILE {name} …")
    module = importlib.import_module(f"srmlab.cli.{name}")
    arguments = with_shipped(arguments)
    defaults = module.defaults(arguments) if hasattr(module, "defaults") else None
    parse(module.Command, f"srmlab {name}", arguments, defaults).run()


def overview() -> str:
    width = max(map(len, COMMANDS)) + 2
    lines = [
        "srmlab: the Stream Recursion Model, and a toolkit for interpreting it",
        "",
        "usage: srmlab [--import FILE] COMMAND [options]",
        "",
    ]
    lines += [f"  {name:<{width}}{summary}" for name, summary in COMMANDS.items()]
    return "\n".join([*lines, "", "`srmlab COMMAND --help` shows a command's options, with examples."])
