"""The examples in the models' docstrings run, and say what happens."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import srm
import srm.models

MODULES = [
    "srm",
    "srm.models",
    *(f"srm.models.{found.name}" for found in pkgutil.iter_modules(srm.models.__path__)),
]


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module_run(name):
    result = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
    assert result.failed == 0


def test_there_are_examples():
    finder = doctest.DocTestFinder()
    with_examples = {
        name for name in MODULES if any(test.examples for test in finder.find(importlib.import_module(name)))
    }
    assert {"srm", "srm.models", "srm.models.sites", "srm.models.decoding"} <= with_examples
