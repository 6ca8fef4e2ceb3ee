"""docs/coming-from.md: every snippet runs; one of a library that is not installed is skipped by its name."""

from __future__ import annotations

import importlib.util
import re
import shlex
from pathlib import Path

import pytest

from srmlab.cli import main

PAGE = (Path(__file__).parent.parent / "docs" / "coming-from.md").read_text(encoding="utf-8")
FIRST, *SECTIONS = re.split(r"^## ", PAGE, flags=re.MULTILINE)
LIBRARIES = ("transformer_lens", "nnsight", "pyvene", "sae_lens", "peft", "captum")

# of the libraries' own code, and nnsight's remark on our submodules `input` and `output`
pytestmark = pytest.mark.filterwarnings("ignore")


def snippets(section: str) -> list[tuple[str, str]]:
    return re.findall(r"^```(python|sh)\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)


def needed(code: str) -> list[str]:
    imported = re.findall(r"^(?:from|import) (\w+)", code, re.MULTILINE)
    return [name for name in imported if name in LIBRARIES and importlib.util.find_spec(name) is None]


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.split("\n")[0])
def test_a_tools_snippets_run(section, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict = {"__name__": "coming_from"}
    absent: list[str] = []
    for kind, code in [*snippets(FIRST), *snippets(section)]:
        if missing := needed(code):
            absent += missing
        elif kind == "python":
            run(code, names)
        else:
            for line in code.splitlines():
                with pytest.raises(SystemExit) as stop:
                    main(shlex.split(line)[1:])
                assert not stop.value.code, line
    if absent:
        pytest.skip(f"not installed: {', '.join(dict.fromkeys(absent))}")


def run(code: str, names: dict) -> None:
    """Through a file: nnsight reads the source of its traces."""
    file = Path(f"snippet_{len(list(Path().glob('snippet_*.py')))}.py").absolute()
    file.write_text(code)
    exec(compile(code, str(file), "exec"), names)


def test_the_page_has_a_section_for_every_tool():
    found = {section.split("\n")[0] for section in SECTIONS}
    tools = {"TransformerLens", "nnsight", "pyvene", "SAELens", "peft", "captum", "nanoGPT", "HRM and TRM"}
    assert tools <= found

    assert all(snippets(section) for section in SECTIONS)
