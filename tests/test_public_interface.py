"""The names of the public interface are there after `import srm` alone."""

import subprocess
import sys


def test_the_rooms_are_reached_through_the_package():
    code = "import srm; print(srm.analysis.routing.__name__, srm.data.prepare.__name__, srm.figures.__name__)"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.split() == ["routing", "prepare", "srm.figures"]
