"""The examples in docstrings run, and say what happens."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import srmlab

MODULES = ["srmlab", *(found.name for found in pkgutil.walk_packages(srmlab.__path__, "srmlab."))]


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
    assert {
        "srmlab",
        "srmlab.models.sites",
        "srmlab.data.batches",
        "srmlab.analysis.drift",
        "srmlab.explorer.tracing",
    } <= (with_examples)
