"""The command line: `srm COMMAND …`, one file a command.

A command is a module in this package with a dataclass `Command`: its fields are the options, its docstring the help with an
example, its `run()` the work. Only the command that is asked for is imported, so `srm --help` answers at once.

Bad input (`UserError`) is one line on stderr and exit code 2.
"""

from __future__ import annotations

import importlib
import sys
from typing import NoReturn

from srm.errors import UserError

COMMANDS = {  # name → one line for `srm --help`; the module is srm.cli.<name>
    "presets": "list the models by name: sizes, exact parameters, arithmetic",
    "info": "tell one model in full, with a drawing of its layer",
}


def main(argv: list[str] | None = None) -> NoReturn:
    argv = sys.argv[1:] if argv is None else argv
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(overview())
        sys.exit(0)
    if argv[0] in ("-V", "--version"):
        from srm import __version__

        print(f"srm {__version__}")
        sys.exit(0)
    try:
        run(argv[0], argv[1:])
    except UserError as error:
        print(f"srm {argv[0]}: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:  # `srm presets | head`
        sys.stderr.close()
        sys.exit(0)
    sys.exit(0)


def run(name: str, arguments: list[str]) -> None:
    import tyro

    from srm.models.config import nearest

    if name not in COMMANDS:
        hint = nearest(name, list(COMMANDS)) or "; `srm --help` lists them"
        raise UserError(f"no such command{hint}")
    module = importlib.import_module(f"srm.cli.{name}")
    tyro.cli(module.Command, prog=f"srm {name}", args=arguments).run()


def overview() -> str:
    width = max(map(len, COMMANDS)) + 2
    lines = ["srm: the Stream Recursion Model, and the instrument for looking inside it", "", "usage: srm COMMAND [options]", ""]
    lines += [f"  {name:<{width}}{summary}" for name, summary in COMMANDS.items()]
    return "\n".join([*lines, "", "`srm COMMAND --help` shows the options of one, with an example."])
