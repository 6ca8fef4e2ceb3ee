"""What is shipped: a wheel that works where the tree is not, and a source archive with all of it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import tomllib
import urllib.request
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import srmlab

ROOT = Path(__file__).parent.parent
LARGEST = {"wheel": 8_000_000, "sdist": 12_000_000}  # bytes; 7.6 and 10.3 MB now, 6.7 the shipped models

pytest.importorskip("hatchling", reason="hatchling is not installed: pip install -e '.[dev]'")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> dict[str, Path]:
    out = tmp_path_factory.mktemp("dist")
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-d", out], cwd=ROOT, check=True)
    (wheel,), (sdist,) = out.glob("*.whl"), out.glob("*.tar.gz")
    return {"wheel": wheel, "sdist": sdist}


@pytest.fixture(scope="module")
def environment(built, tmp_path_factory) -> Path:
    """A virtual environment with the wheel and what it says it needs, but without this tree and the rest of
    what the tests have installed."""
    folder = tmp_path_factory.mktemp("clean") / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    python = folder / "bin" / "python"
    (packages,) = folder.glob("lib/python*/site-packages")
    for name in needed():
        found = metadata.distribution(name)
        for top in {
            file.parts[0] for file in found.files or () if file.parts[0] not in ("..", "__pycache__")
        }:
            if not (packages / top).exists():
                (packages / top).symlink_to(Path(str(found.locate_file(top))).absolute())
    install = [sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index"]
    subprocess.run([*install, "--quiet", "--ignore-installed", built["wheel"]], check=True)
    return folder


def needed() -> set[str]:
    """What pip would install with the wheel, without extras."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
    asked, names = [Requirement(line) for line in declared], set()
    while asked:
        one = asked.pop()
        if (name := canonicalize_name(one.name)) in names:
            continue
        names.add(name)
        for further in map(Requirement, metadata.requires(name) or ()):
            if not further.marker or any(further.marker.evaluate({"extra": e}) for e in one.extras or {""}):
                asked.append(further)
    return names


def clean() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "SRMLAB"))}
    return kept | {"OMP_NUM_THREADS": "1"}


def call(environment: Path, *arguments: str, cwd: Path) -> str:
    command = [environment / "bin" / "srmlab", *arguments]
    done = subprocess.run(command, cwd=cwd, env=clean(), capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_installed_command_is_the_wheels_and_writes_with_the_shipped_model(environment, tmp_path):
    code = "import srmlab, sys; print(srmlab.__file__)"
    run = [environment / "bin" / "python", "-c", code]
    where = subprocess.run(run, cwd=tmp_path, env=clean(), capture_output=True, text=True, check=True).stdout
    assert Path(where.strip()).is_relative_to(environment)
    assert call(environment, "--version", cwd=tmp_path) == f"srmlab {srmlab.__version__}\n"
    options = ("--max-new-tokens", "8", "--temperature", "0")
    text = call(environment, "generate", "--pretrained", "--prompt", "My fellow", *options, cwd=tmp_path)
    assert len(text.split()) >= 2


def test_the_installed_explorer_answers_with_its_page_and_scripts(environment, tmp_path):
    command = [environment / "bin" / "srmlab", "explore", "--pretrained", "--port", "0", "--no-browser"]
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with subprocess.Popen(command, cwd=tmp_path, env=clean(), stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            port = re.search(r"http://localhost:(\d+)/", server.stdout.readline())
            assert port is not None
            address = f"http://127.0.0.1:{port[1]}/"
            page = direct.open(address, timeout=60).read().decode()
            scripts = re.findall(r'src="/?([^"]+\.js)"', page)
            assert scripts
            for script in scripts:
                assert direct.open(address + script, timeout=60).status == 200
        finally:
            server.terminate()


def test_the_wheel_holds_the_package_alone_with_its_data_and_is_small(built):
    names = zipfile.ZipFile(built["wheel"]).namelist()
    assert {name.split("/")[0] for name in names} == {"srmlab", f"srmlab-{srmlab.__version__}.dist-info"}
    inside = {
        path.relative_to(ROOT / "src").as_posix()
        for path in (ROOT / "src" / "srmlab").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert inside <= set(names)
    assert built["wheel"].stat().st_size <= LARGEST["wheel"]


def test_the_source_archive_holds_all_it_takes_to_build_and_test(built):
    with tarfile.open(built["sdist"]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    here = {"Makefile", "pyproject.toml", "constraints.txt", "README.md", "LICENSE", "CHANGELOG.md"}
    for folder in ("tests", "docs", "benchmarks"):
        here |= {path.relative_to(ROOT).as_posix() for path in (ROOT / folder).rglob("*.py")}
        here |= {path.relative_to(ROOT).as_posix() for path in (ROOT / folder).rglob("*.md")}
    assert here <= names
    assert any(name.startswith("src/srmlab/explorer/static/") for name in names)
    assert built["sdist"].stat().st_size <= LARGEST["sdist"]
