"""The examples in docstrings run, and say what happens."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import srm

MODULES = ["srm", *(found.name for found in pkgutil.walk_packages(srm.__path__, "srm."))]


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module_run(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
    assert result.failed == 0


def test_there_are_examples():
    finder = doctest.DocTestFinder()
    with_examples = {
        name for name in MODULES if any(test.examples for test in finder.find(importlib.import_module(name)))
    }
    assert {"srm", "srm.models.sites", "srm.data.batches", "srm.analysis.drift", "srm.explorer.capture"} <= (
        with_examples
    )
