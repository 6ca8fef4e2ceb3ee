"""The log of a run, read back."""

import json
import math

import pytest

from srmlab.storage import iter_metrics, read_metrics
from srmlab.storage.metrics_file import Losses, metrics_line


def test_every_row_comes_back_but_one_that_a_crash_cut_short(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "loss": 2.5}\n{"step": 1, "val_loss": 2.25}\n{"step": 2, "lo')
    rows = [{"step": 1, "loss": 2.5}, {"step": 1, "val_loss": 2.25}]
    assert read_metrics(path) == rows
    assert list(iter_metrics(path)) == rows


def test_a_log_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_metrics(tmp_path / "metrics.jsonl")


def test_numbers_that_are_not_finite_come_back_as_numbers(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "val_loss": "nan", "grad_norm": "inf", "event": "nonfinite"}\n')
    (row,) = read_metrics(path)
    assert math.isnan(row["val_loss"])
    assert row["grad_norm"] == math.inf
    assert row["event"] == "nonfinite"


def test_a_line_is_json_that_reads_back_also_where_a_number_inside_is_not_finite(tmp_path):
    path = tmp_path / "metrics.jsonl"
    row = {"step": 1, "loss": -math.inf, "parts": {"a": math.inf}, "state_norms": {"b": [1.5, math.inf]}}
    path.write_text(metrics_line(row))
    assert read_metrics(path) == [row]

    def refuse(name):
        raise AssertionError(f"{name} is not JSON")

    json.loads(path.read_text(), parse_constant=refuse)


def test_the_training_loss_is_the_cross_entropy_where_the_objective_has_more_parts(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text(
        '{"step": 1, "loss": 2.5}\n{"step": 2, "loss": 2.0, "parts": {"cross_entropy": 2.25, "entropy": 1}}\n'
    )
    assert Losses.read(path).training == [2.5, 2.25]


def test_a_step_that_was_rewound_does_not_hide_the_steps_taken_again(tmp_path):
    path = tmp_path / "metrics.jsonl"
    rows = [(1, {}), (4, {"event": "nonfinite"}), (2, {}), (3, {}), (4, {}), (5, {})]
    path.write_text("".join(metrics_line({"step": step, "loss": 2.0, **more}) for step, more in rows))
    assert Losses.read(path, until=3).steps == [1, 2, 3]
    assert Losses.read(path).steps == [1, 2, 3, 4, 5]
