"""The API reference: it builds without a network, and every public name is in it, with its docstring."""

from __future__ import annotations

import importlib
import re
import socket
import sys
from pathlib import Path

import pytest

import srmlab

pytest.importorskip("pdoc", reason="pdoc is not installed: pip install -e '.[dev]'")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).parent.parent / "scripts"))
        patch.setattr(socket.socket, "connect", no_network)
        import make_docs

        make_docs.make_docs(folder)
        yield folder, make_docs.modules()
    sys.modules.pop("make_docs", None)


def no_network(*_: object) -> None:
    raise AssertionError("the reference is made without a network")


def page(folder: Path, module: str) -> str:
    *parents, name = module.split(".")
    return folder.joinpath(*parents, f"{name}.html").read_text(encoding="utf-8")


def test_every_public_name_of_every_room_is_in_it(site):
    folder, modules = site
    assert set(modules) >= {"srmlab", *(f"srmlab.{room}" for room in srmlab.ROOMS)}
    for module in modules:
        text = page(folder, module)
        missing = [
            name
            for name in getattr(importlib.import_module(module), "__all__", ())
            if f'id="{name}"' not in text
        ]
        assert not missing, f"{module} lacks {missing}"


def test_it_asks_nothing_of_the_network_when_it_is_read(site):
    folder, _ = site
    for file in folder.rglob("*.html"):
        text = file.read_text(encoding="utf-8")
        assert not re.findall(r'<(?:script|link|img)[^>]+(?:src|href)="(?:https?:)?//[^"]*"', text)
