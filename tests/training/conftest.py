from pathlib import Path

import pytest
from small_runs import write_data


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prepared tokens, for tests that only read them."""
    return write_data(tmp_path_factory.mktemp("words"))
