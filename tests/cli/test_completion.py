"""`srmlab completion`: what the shell offers is what the commands take."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from srmlab.cli import COMMANDS
from srmlab.cli.completion import bash, fish, options, zsh

SCRIPT = bash({name: options(name) for name in ("evaluate", "train")})


def complete(*words: str) -> set[str]:
    typed = f"COMP_WORDS=({' '.join(words)}); COMP_CWORD={len(words) - 1}"
    code = f'{SCRIPT}\n{typed}; _srmlab; echo "${{COMPREPLY[@]}}"'
    done = subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_bash_completes_commands_and_the_options_of_each():
    assert complete("srmlab", "ev") == {"evaluate"}
    assert complete("srmlab", "evaluate", "--tok") == {"--tokens"}
    assert {"--model.streams", "--model.stream-dim"} <= complete("srmlab", "train", "--model.stream")


@pytest.mark.parametrize("script", [zsh, fish])
def test_other_shells_name_every_command(script):
    text = script({name: ["--json"] for name in COMMANDS})
    assert all(name in text for name in COMMANDS)
    if shell := shutil.which(script.__name__):
        subprocess.run([shell, "-n"], input=text, text=True, check=True)
