"""One progress display: bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

import io
import re

import pytest

import srmlab.progress
from srmlab.progress import Display


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_without_a_terminal_a_task_says_when_it_is_done_with_its_rate_and_time():
    out = io.StringIO()
    with Display(file=out) as display:
        task = display.task("learning", total=4, unit="steps")
        for done in range(1, 5):
            task.update(done, f"{done} unexplained")
    (line,) = out.getvalue().splitlines()
    assert re.fullmatch(r"learning: 4 of 4 steps, 4 unexplained, [\d,.e+]+ steps/s, 0:00", line)


def test_without_a_terminal_a_task_says_once_that_it_is_done():
    out = io.StringIO()
    with Display(file=out) as display:
        task = display.task("running", total=2, unit="steps")
        for done in (1, 2, 2, 2):  # it is asked again while a worker ends
            task.update(done)
    assert len(out.getvalue().splitlines()) == 1


def test_without_a_terminal_a_long_task_says_every_few_seconds_how_long_it_will_take(monkeypatch):
    now = 0.0
    monkeypatch.setattr(srmlab.progress.time, "perf_counter", lambda: now)
    out = io.StringIO()
    with Display(file=out) as display:
        task = display.task("reading", total=100, unit="MB", first=20)
        for now in range(1, 41):
            task.update(20 + now)
    lines = out.getvalue().splitlines()
    assert lines[0] == "reading: 30 of 100 MB, 1 MB/s, 1:10 left"
    assert len(lines) == 4


def test_on_a_terminal_there_is_a_bar_with_the_same_words():
    out = Terminal()
    with Display(file=out) as display:
        task = display.task("reading", total=2, unit="pages")
        task.update(1, "half way")
        display.say("[a remark]")
        task.update(2)
    shown = out.getvalue()
    assert "\x1b[" in shown
    assert "2 of 2 pages" in shown
    assert "[a remark]" in shown


def test_what_is_not_to_be_shown_is_not():
    out = Terminal()
    with Display(show=False, file=out) as display:
        display.task("reading", total=1).update(1)
        display.tasks(total=1)("reading", 1)
        display.say("a remark")
    assert out.getvalue() == ""


@pytest.mark.parametrize("names", [("states", "outputs")])
def test_tasks_by_name_begin_where_the_one_before_ended(names, monkeypatch):
    now = 0.0
    monkeypatch.setattr(srmlab.progress.time, "perf_counter", lambda: now)
    out = io.StringIO()
    with Display(file=out) as display:
        update = display.tasks(total=2, unit="batches")
        for name in names:
            for done in (1, 2):
                now += 2.0
                update(name, done)
    assert out.getvalue().splitlines() == [f"{name}: 2 of 2 batches, 0.5 batches/s, 0:04" for name in names]
