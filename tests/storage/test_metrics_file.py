"""The log of a run, read back."""

import pytest

from srmlab.storage import iter_metrics, read_metrics


def test_every_row_comes_back_but_one_that_a_crash_cut_short(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "loss": 2.5}\n{"step": 1, "val_loss": 2.25}\n{"step": 2, "lo')
    rows = [{"step": 1, "loss": 2.5}, {"step": 1, "val_loss": 2.25}]
    assert read_metrics(path) == rows
    assert list(iter_metrics(path)) == rows


def test_a_log_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_metrics(tmp_path / "metrics.jsonl")
