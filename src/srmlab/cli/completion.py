"""`srmlab completion SHELL`: what the shell needs to complete commands and options."""

from __future__ import annotations

import importlib
import shlex
from dataclasses import dataclass
from typing import Literal

import tyro

from srmlab.cli import COMMANDS
from srmlab.cli.options import option_names


@dataclass
class Command:
    """Print a completion script for bash, zsh or fish.

    Example:
        srmlab completion bash > ~/.local/share/bash-completion/completions/srmlab
        srmlab completion zsh > "${fpath[1]}/_srmlab"
        srmlab completion fish > ~/.config/fish/completions/srmlab.fish
    """

    shell: tyro.conf.Positional[Literal["bash", "zsh", "fish"]]
    """The shell to write it for."""

    def run(self) -> None:
        print(
            {"bash": bash, "zsh": zsh, "fish": fish}[self.shell]({name: options(name) for name in COMMANDS})
        )


def options(name: str) -> list[str]:
    """The options of one command, as its help lists them."""
    command = importlib.import_module(f"srmlab.cli.{name}").Command
    return option_names(command, f"srmlab {name}")


def bash(commands: dict[str, list[str]]) -> str:
    cases = "\n".join(
        f"        {name}) words={shlex.quote(' '.join(opts))} ;;" for name, opts in commands.items()
    )
    return f"""\
_srmlab() {{
    local words=""
    if [ "$COMP_CWORD" -eq 1 ]; then
        COMPREPLY=($(compgen -W {shlex.quote(" ".join(commands))} -- "${{COMP_WORDS[1]}}"))
        return
    fi
    case "${{COMP_WORDS[1]}}" in
{cases}
    esac
    case "${{COMP_WORDS[COMP_CWORD]}}" in
        -*) COMPREPLY=($(compgen -W "$words" -- "${{COMP_WORDS[COMP_CWORD]}}")) ;;
        *) COMPREPLY=($(compgen -f -- "${{COMP_WORDS[COMP_CWORD]}}")) ;;
    esac
}}
complete -o filenames -F _srmlab srmlab"""


def zsh(commands: dict[str, list[str]]) -> str:
    named = "\n".join(f"        {shlex.quote(f'{name}:{COMMANDS[name]}')}" for name in commands)
    cases = "\n".join(f"        {name}) compadd -- {' '.join(opts)} ;;" for name, opts in commands.items())
    return f"""\
#compdef srmlab
_srmlab() {{
    local -a commands=(
{named}
    )
    if (( CURRENT == 2 )); then
        _describe command commands
        return
    fi
    if [[ "$words[CURRENT]" != -* ]]; then
        _files
        return
    fi
    case "$words[2]" in
{cases}
    esac
}}
compdef _srmlab srmlab"""


def fish(commands: dict[str, list[str]]) -> str:
    lines = ["complete -c srmlab -e"]
    for name, opts in commands.items():
        first = f"complete -c srmlab -n __fish_use_subcommand -f -a {name}"
        lines.append(f"{first} -d {shlex.quote(COMMANDS[name])}")
        lines += [
            f"complete -c srmlab -n '__fish_seen_subcommand_from {name}' -l {option.removeprefix('--')}"
            for option in opts
        ]
    return "\n".join(lines)
