"""Imports point one way:

models ← data ← puzzles ← tasks ← storage ← training ← analysis ← dictionaries ← experiments ← figures
       ← report, explorer ← cli
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

import pytest

import srmlab
from srmlab.models.registry import ARCHITECTURES

ROOT = Path(srmlab.__file__).parent
RANK = {
    name: rank
    for rank, names in enumerate(
        [
            ("errors",),
            ("files", "pretrained", "progress"),
            ("models",),
            ("data",),
            ("puzzles",),
            ("tasks",),
            ("storage",),
            ("training",),
            ("analysis",),
            ("dictionaries",),
            ("experiments",),
            ("figures",),
            ("interop", "explorer"),
            ("cli",),
            ("__main__",),
        ]
    )
    for name in names
}
LATE = {  # inside functions
    ("analysis/result.py", "srmlab.figures"),  # `result.figure()`: computing never draws
    ("training/samples.py", "srmlab.analysis.registry"),  # the routing figure of TensorBoard and W&B
    ("training/samples.py", "srmlab.analysis.routing"),
    ("storage/save_and_load.py", "srmlab.interop.huggingface"),  # `load` of an export for Hugging Face
    ("analysis/result.py", "srmlab.dictionaries"),  # `load` of a result that is defined there
}
FREE = {"__init__"}  # the public names of the package
MODULES = sorted(path for path in ROOT.rglob("*.py") if "static" not in path.parts)


def room(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imported(path: Path) -> set[str]:
    """The absolute names a module imports, wherever in the file, but for what only the type checker sees."""
    package = ["srmlab", *path.relative_to(ROOT).parts[:-1]]
    tree = ast.parse(path.read_text(encoding="utf-8"))
    hidden = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and "TYPE_CHECKING" in ast.unparse(block.test)
        for statement in block.body
        for node in ast.walk(statement)
    }
    names: set[str] = set()
    for node in ast.walk(tree):
        if id(node) in hidden:
            continue
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *(node.module.split(".") if node.module else [])])
            names |= {f"{module}.{alias.name}" for alias in node.names} if module == "srmlab" else {module}
    return names


def test_every_room_has_its_place_in_the_order():
    assert {room(path) for path in MODULES} - FREE <= set(RANK)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_imports_only_from_below(path):
    here = room(path)
    if here in FREE:
        return
    for name in imported(path):
        parts = name.split(".")
        if parts[0] != "srmlab" or (str(path.relative_to(ROOT)), name) in LATE:
            continue
        if len(parts) == 1 or parts[1] not in RANK:  # `import srmlab`, or a public name of it
            assert RANK[here] > RANK["models"], f"{path.name} imports srmlab, which imports it"
            continue
        assert RANK[parts[1]] <= RANK[here], f"{path.name} imports {name}, which lies above {here}"
        if RANK[parts[1]] == RANK[here]:
            assert parts[1] == here, f"{path.name} imports {name}, its neighbour"


@pytest.mark.parametrize("path", sorted((ROOT / "models").glob("*.py")), ids=lambda path: path.name)
def test_the_models_need_torch_and_nothing_else(path):
    outside = {
        name
        for name in imported(path)
        if name.split(".")[0] not in sys.stdlib_module_names | {"torch"}
        and not name.startswith("srmlab.models")
        and name != "srmlab.errors"
    }
    assert outside == set()


def test_a_wrong_import_would_be_noticed(tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    (tmp_path / "models").mkdir()
    wrong = tmp_path / "models" / "wrong.py"
    wrong.write_text("def f():\n    from srmlab.training import loop\n")
    with pytest.raises(AssertionError, match="above models"):
        test_a_module_imports_only_from_below(wrong)
    wrong.write_text("from ..cli import main\n")
    with pytest.raises(AssertionError, match="above models"):
        test_a_module_imports_only_from_below(wrong)
    wrong.write_text("import numpy\n")
    with pytest.raises(AssertionError):
        test_the_models_need_torch_and_nothing_else(wrong)
    wrong.write_text(
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from srmlab.training import loop\n"
    )
    test_a_module_imports_only_from_below(wrong)


def test_nobody_outside_the_models_asks_which_architecture_it_has():
    """A model describes itself: points, streams, calls, units … (models/model.py)."""
    names = "|".join(model.__name__ for model in ARCHITECTURES.values())
    asked = re.compile(rf"isinstance\([^)]*\b({names})(Config)?\b|case ({names})")
    assert asked.search("isinstance(model, MoR)")
    for path in MODULES:
        if room(path) != "models":
            assert not asked.search(path.read_text(encoding="utf-8")), f"{path.relative_to(ROOT)} asks"
