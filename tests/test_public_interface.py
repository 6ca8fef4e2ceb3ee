"""The names of the public interface are there after `import srm` alone."""

import subprocess
import sys


def test_the_rooms_are_reached_through_the_package():
    code = "import srm; print(srm.analysis.routing.__name__, srm.data.prepare.__name__, srm.figures.__name__)"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.split() == ["routing", "prepare", "srm.figures"]


def test_every_name_is_ours_even_after_nnsight():
    """nnsight gives every object a method `save`; a name found late would be hidden by it."""
    code = "import nnsight, srm; print(*(getattr(srm, name).__module__ for name in srm.__all__))"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert {module.split(".")[0] for module in told.stdout.split()} == {"srm"}
