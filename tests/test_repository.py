"""The repository itself: what the documents claim is so, and a stranger's clone works."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import srmlab

ROOT = Path(__file__).parent.parent
DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    *sorted((ROOT / "docs").glob("*.md")),
]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def fenced(text: str, language: str) -> list[str]:
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [block for kind, block in blocks if kind == language]


# The documents


def test_the_readmes_python_example_prints_what_it_says(capsys):
    (example,) = fenced(README, "python")
    exec(compile(example, "README.md", "exec"), {"__name__": "readme"})
    shape, intact, ablated, written = capsys.readouterr().out.splitlines()
    assert f"# {shape}\n" in example
    assert f"# {intact}, and without S5 {ablated}\n" in example
    assert written.startswith("My fellow citizens of the United States")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("guide", "told"),
    [
        ("analyses", "Effect (32 tokens in 1 sequence,"),
        ("dictionaries", "8 The people of the United States Constitution, China, Rio Ria, China"),
        ("explorer", ""),
        ("depth", ""),
        ("reasoning", ""),
    ],
)
def test_a_guides_python_runs_from_top_to_bottom(guide, told, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {"__name__": guide}
    for block in fenced((ROOT / "docs" / f"{guide}.md").read_text(encoding="utf-8"), "python"):
        exec(compile(block, f"{guide}.md", "exec"), names)
    assert told in capsys.readouterr().out


def test_every_file_in_the_readmes_tree_exists():
    tree = next(block for block in fenced(README, "") if block.startswith("src/srmlab/"))
    path: list[str] = []
    named = []
    for line in tree.splitlines():
        name = line.split()[0]
        depth = (len(line) - len(line.lstrip())) // 2
        path = [*path[:depth], name]
        named.append("".join(path))
        assert len(line.split()) > 1 or name == "src/srmlab/", f"{name} has no comment"
    missing = [name for name in named if not (ROOT / name).exists()]
    assert not missing
    assert len(named) > 10


def test_every_model_file_is_in_the_readmes_tree_and_the_paper_map_names_the_papers_concepts():
    for file in (ROOT / "src/srmlab/models").glob("*.py"):
        assert file.name == "__init__.py" or f"    {file.name} " in README
    paper_map = (ROOT / "docs/paper-map.md").read_text(encoding="utf-8")
    for concept in (
        "Input function",
        "Output function",
        "Layer function",
        "Connection function",
        "Update function",
        "eq. 1",
    ):
        assert concept in paper_map


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_relative_link_leads_somewhere(document):
    text = document.read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)#\s]+)", text) + re.findall(r'(?:src|srcset|href)="([^"]+)"', text)
    missing = [link for link in links if "://" not in link and not (document.parent / link).exists()]
    assert not missing


def headings(document: Path) -> set[str]:
    """The anchors that GitHub gives to a document's headings."""
    text = re.sub(r"^```.*?^```$", "", document.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    lines = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", line.lower()).replace(" ", "-") for line in lines}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_link_to_a_section_leads_to_a_heading(document):
    links = re.findall(r"\]\(([^)#\s:]*)#([^)\s]+)\)", document.read_text(encoding="utf-8"))
    targets = [(document.parent / file if file else document, section) for file, section in links]
    assert not [f"{file.name}#{section}" for file, section in targets if section not in headings(file)]


def test_the_readmes_parameter_counts_are_the_models():
    rows = re.findall(r"^\| \S+ \| `(\S+)` \| \d+M \| ([\d,]+) \|", README, re.MULTILINE)
    assert [name for name, _ in rows] == ["gpt2", "hrm", "srm-base", "srm-med", "srm-large"]
    for name, count in rows:
        assert f"{srmlab.build(srmlab.preset(name), device='meta').num_parameters():,}" == count


# Licence, citation, versions


def test_the_licence_is_mit():
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert text.startswith("MIT License\n")
    assert "The SRM project" in text


def test_the_citation_names_this_version_and_the_papers_authors():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert {"cff-version", "message", "title", "authors", "type"} <= citation.keys()
    assert citation["version"] == srmlab.__version__
    assert citation["license"] == "MIT"
    (paper,) = citation["references"]
    assert paper["title"] == "Stream Recursion Model (SRM)"
    families = [author["family-names"] for author in paper["authors"]]
    assert families == ["Sorensen", "Brock", "Chamberlain", "Minnich", "Hoffman", "Ramyaa"]


def test_every_dependency_has_an_exact_pin_that_its_range_allows():
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    assert not [version for version in pins.values() if "+" in version]  # a build tag ties to one machine
    pins = {canonicalize_name(name): version for name, version in pins.items()}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [
        *project["dependencies"],
        *(word for extra in project["optional-dependencies"].values() for word in extra),
    ]
    for requirement in map(Requirement, wanted):
        if requirement.name != project["name"]:
            assert pins[canonicalize_name(requirement.name)] in requirement.specifier, str(requirement)


def test_pre_commit_needs_no_network():
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    assert [repo["repo"] for repo in config["repos"]] == ["local"]
    entries = [hook["entry"].split()[0] for hook in config["repos"][0]["hooks"]]
    assert entries == [".venv/bin/ruff", ".venv/bin/ruff", ".venv/bin/pyright"]


def tracked_files() -> list[Path]:
    if (ROOT / ".git").exists() and shutil.which("git"):
        names = subprocess.run(
            ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout
        return [ROOT / name for name in names.splitlines() if (ROOT / name).is_file()]
    kept = ("src", "tests", "docs", "benchmarks")
    return [path for path in ROOT.rglob("*") if path.is_file() and path.relative_to(ROOT).parts[0] in kept]


def test_no_file_names_a_machines_paths_or_a_registry():
    # The words are put together here, so that this file is not the first to be found.
    homes = "|".join(("ro" + "ot", "ho" + "me", "Us" + "ers", "wo" + "rk", "op" + "t"))
    hosts = "|".join(
        ("py" + r"pi\.", "python" + "hosted", "npm" + r"js\.", "artif" + "actory", r"nexus\.", "dev" + "pi")
    )
    forbidden = re.compile(rf"(?<![\w.\-/:~])/(?:{homes})/[\w.]|{hosts}")
    found = []
    for path in tracked_files():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:  # a picture or an array
            continue
        found += [f"{path.relative_to(ROOT)}: {match[0]}" for match in forbidden.finditer(text)]
    assert not found


def test_the_pages_scripts_and_styles_keep_to_120_characters_a_line():
    static = ROOT / "src/srmlab/explorer/static"
    ours = [path for kind in ("*.js", "*.css") for path in static.rglob(kind) if "vendor" not in path.parts]
    assert len(ours) > 25
    long = [
        f"{path.relative_to(static)}:{number}"
        for path in ours
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if len(line) > 120
    ]
    assert not long, "npx prettier --write src/srmlab/explorer/static breaks the lines it can"


# make and CI, with stand-ins for what would take minutes


def write_script(path: Path, *lines: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(("#!/bin/sh", *lines, "")), encoding="utf-8")
    path.chmod(0o755)


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone in which installing only writes down that it was asked for."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path / name)
    shutil.copytree(ROOT / ".ci", tmp_path / ".ci")
    log = 'echo "${0##*/} $*" >> log'
    write_script(tmp_path / "tool", log, "exit ${FAIL:-0}")
    tools = "for tool in pip srmlab ruff pyright python; do cp tool .venv/bin/$tool; done"
    write_script(
        tmp_path / "python-new",
        'case "$1" in -m) mkdir -p .venv/bin;', f"echo venv >> log; {tools};; -c) exit 0;; esac",
    )  # fmt: skip
    write_script(tmp_path / "python-old", '[ "$1" = -V ] && echo Python 3.9.1; exit 1')
    return tmp_path


def outer() -> dict[str, str]:
    """The environment, without what a make that runs these tests has put there."""
    return {key: value for key, value in os.environ.items() if not key.startswith(("MAKE", "MFLAGS"))}


def make(clone: Path, *arguments: str, **variables: str) -> tuple[int, list[str], str]:
    """Exit code, what was run, and what was said on stderr."""
    log = clone / "log"
    log.unlink(missing_ok=True)
    command = ["make", "--silent", f"PYTHON={variables.pop('PYTHON', './python-new')}", *arguments]
    done = subprocess.run(
        command, cwd=clone, env=outer() | variables, capture_output=True, text=True, timeout=30
    )
    return done.returncode, log.read_text().splitlines() if log.exists() else [], done.stderr


def installs(ran: list[str]) -> list[str]:
    return [line.split()[-1] for line in ran if line.startswith("pip install")]


def test_make_demo_installs_once_and_again_when_the_requirements_change(clone):
    code, ran, _ = make(clone, "demo")
    assert code == 0
    assert ran[0] == "venv"
    assert installs(ran) == [".[demo]"]
    assert "-c constraints.txt" in ran[1]
    assert ran[-1] == "srmlab demo"
    assert make(clone, "demo")[1] == ["srmlab demo"]
    for name in ("pyproject.toml", "constraints.txt"):
        later = (clone / ".venv/.demo").stat().st_mtime + 5
        os.utime(clone / name, (later, later))
        assert installs(make(clone, "demo")[1]) == [".[demo]"]
        os.utime(clone / name, (later - 100, later - 100))


def test_make_test_lints_and_tests_and_what_it_installs_serves_the_demo(clone):
    code, ran, _ = make(clone, "test")
    assert code == 0
    assert installs(ran) == [".[dev]"]
    assert [" ".join(line.split()[:2]) for line in ran[2:4]] == ["ruff check", "ruff format"]
    assert sorted(" ".join(line.split()[:2]) for line in ran[4:]) == ["pyright", "python -m"]  # side by side
    assert "-m not soak" in next(line for line in ran[4:] if line.startswith("python"))
    assert not installs(make(clone, "test")[1])
    assert make(clone, "demo")[1] == ["srmlab demo"]


@pytest.mark.parametrize(("types", "tests"), [(0, 0), (1, 0), (0, 1), (1, 1)])
def test_make_test_fails_with_the_types_and_with_the_tests_and_shows_both(clone, types, tests):
    make(clone, "test")  # installs
    write_script(clone / ".venv/bin/pyright", "echo what the types are", f"exit {types}")
    write_script(clone / ".venv/bin/python", "sleep 0.2; echo what the tests found", f"exit {tests}")
    done = subprocess.run(
        ["make", "--silent", "test"], cwd=clone, env=outer(), capture_output=True, text=True, timeout=30
    )
    assert (done.returncode == 0) == (types == tests == 0)
    said = done.stdout
    assert 0 < said.index("what the tests found") < said.index("what the types are")


def test_make_test_stops_at_what_ruff_finds(clone):
    make(clone, "test")
    write_script(clone / ".venv/bin/ruff", "exit 1")
    code, ran, _ = make(clone, "test")
    assert (code, ran) == (2, [])


def test_a_failed_installation_is_tried_again(clone):
    assert make(clone, "demo", FAIL="1")[0] != 0
    assert installs(make(clone, "demo")[1]) == [".[demo]"]


def test_an_old_python_is_refused_in_one_line(clone):
    code, ran, said = make(clone, "demo", PYTHON="./python-old")
    assert (code, ran) == (2, [])
    assert said.splitlines()[0] == "make: ./python-old is Python 3.9.1, too old; needs Python 3.11 or newer"
    code, ran, said = make(clone, "demo", PYTHON="")
    assert (code, ran) == (2, [])
    assert said.startswith("make: Python 3.11 or newer not found; install it")


def test_make_help_lists_every_target(clone):
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = next(line for line in text.splitlines() if line.startswith(".PHONY:")).split()[1:]
    out = subprocess.run(["make", "help"], cwd=clone, capture_output=True, text=True, check=True).stdout
    assert [line.split()[1] for line in out.splitlines() if line.startswith("  make")] == targets


@pytest.mark.parametrize("result", [0, 3])
def test_ci_runs_make_test_and_fails_with_it(clone, result):
    write_script(clone / "bin/make", 'echo "make $* CI=$CI" > log', f"exit {result}")
    write_script(clone / "bin/chromium", "exit 0")
    path = f"{clone / 'bin'}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [clone / ".ci/run"], env=os.environ | {"PATH": path}, capture_output=True, timeout=30
    )
    assert done.returncode == result
    assert (clone / "log").read_text() == "make test CI=1\n"  # CI: without a browser its tests fail


def test_ci_fails_where_there_is_no_browser_and_no_way_to_get_one(clone):
    write_script(clone / "bin/make", "exit 0")
    for tool in ("bash", "dirname", "id"):
        (clone / "bin" / tool).symlink_to(str(shutil.which(tool)))
    done = subprocess.run(
        [clone / ".ci/run"], env={"PATH": str(clone / "bin")}, capture_output=True, text=True, timeout=30
    )
    assert done.returncode == 1
    assert "install chromium" in done.stderr


def test_no_two_test_files_share_a_name():
    names = [
        path.name
        for path in (ROOT / "tests").rglob("*.py")
        if path.name not in ("__init__.py", "conftest.py")
    ]
    assert sorted(names) == sorted(set(names))  # pytest collects only one of them
