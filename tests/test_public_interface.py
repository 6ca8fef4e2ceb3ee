"""The names of the public interface are there after `import srmlab` alone."""

import subprocess
import sys

import numpy as np
import pytest

import srmlab
from srmlab.errors import UserError


def test_the_rooms_are_reached_through_the_package():
    names = ("analysis.routing", "data.prepare", "figures")
    code = f"import srmlab; print({', '.join(f'srmlab.{name}.__name__' for name in names)})"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.split() == ["routing", "prepare", "srmlab.figures"]


def test_all_rooms_are_there_by_themselves_and_listed():
    code = "import srmlab as s; print(*(getattr(s, room).__name__ for room in s.ROOMS if room in dir(s)))"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.split() == [f"srmlab.{room}" for room in srmlab.ROOMS]


def test_what_comes_in_by_the_front_door_is_checked():
    with pytest.raises(
        UserError, match=r"build takes a config, such as preset\('srm-nano'\), not 'srm-nano'"
    ):
        srmlab.build("srm-nano")
    model = srmlab.build(srmlab.preset("srm-nano"))
    for tokens, kind in (([1, 2], "list"), ("hi", "str"), (np.zeros((1, 2), int), "ndarray")):
        with pytest.raises(UserError, match=rf"a tensor \[batch, token\] of ids, not {kind}"):
            model(tokens)


def test_every_name_is_ours_even_after_nnsight():
    """nnsight gives every object a method `save`; a name found late would be hidden by it."""
    code = "import nnsight, srmlab; print(*(getattr(srmlab, name).__module__ for name in srmlab.__all__))"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert {module.split(".")[0] for module in told.stdout.split()} == {"srmlab"}
