"""The names of the public interface are there after `import srm` alone."""

import subprocess
import sys

import numpy as np
import pytest

import srm
from srm.errors import UserError


def test_the_rooms_are_reached_through_the_package():
    code = "import srm; print(srm.analysis.routing.__name__, srm.data.prepare.__name__, srm.figures.__name__)"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.split() == ["routing", "prepare", "srm.figures"]


def test_all_rooms_are_there_by_themselves_and_listed():
    code = "import srm; print(*(getattr(srm, room).__name__ for room in srm.ROOMS if room in dir(srm)))"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.split() == [f"srm.{room}" for room in srm.ROOMS]


def test_what_comes_in_by_the_front_door_is_checked():
    with pytest.raises(
        UserError, match=r"build takes a config, such as preset\('srm-nano'\), not 'srm-nano'"
    ):
        srm.build("srm-nano")
    model = srm.build(srm.preset("srm-nano"))
    for tokens, kind in (([1, 2], "list"), ("hi", "str"), (np.zeros((1, 2), int), "ndarray")):
        with pytest.raises(UserError, match=rf"a tensor \[batch, token\] of ids, not {kind}"):
            model(tokens)


def test_every_name_is_ours_even_after_nnsight():
    """nnsight gives every object a method `save`; a name found late would be hidden by it."""
    code = "import nnsight, srm; print(*(getattr(srm, name).__module__ for name in srm.__all__))"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert {module.split(".")[0] for module in told.stdout.split()} == {"srm"}
