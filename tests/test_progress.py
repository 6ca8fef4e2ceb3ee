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
    assert re.fullmatch(r"learning: 4 of 4 steps, 0:00, 4 unexplained, [\d,.e+]+ steps/s", line)


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
    assert lines[0] == "reading: 30 of 100 MB, 1:10 left, 1 MB/s"
    assert len(lines) == 4


def test_beyond_an_estimated_total_no_time_is_left():
    words = Display(show=False).task("preparing", total=2, unit="MB").words(3, "")
    assert words.startswith("3 of 2 MB, 0:00, ")


def test_on_a_terminal_there_is_a_bar_with_the_same_words(monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
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


@pytest.mark.parametrize(("columns", "bar"), [(100, True), (60, False)])
def test_on_a_narrow_terminal_what_is_done_and_the_time_left_are_still_there(columns, bar, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "xterm-256color")
    out = Terminal()
    with Display(file=out) as display:
        task = display.task("features of streams", total=9000, unit="steps")
        task.update(4500, "loss 4.9820 ███▇▆▆▆▅▅▄▄▃▃▃▂▂▂▁▂▂▁▂▁▁, 2,469 tokens/s  4% of peak")
    shown = re.sub(r"\x1b\[[^a-zA-Z]*[a-zA-Z]", "", out.getvalue())
    last = re.split(r"[\r\n]+", shown.rstrip())[-1]
    assert re.match(r"features of streams ━*╺?━* ?4,500 of 9,000 steps, 0:00 left, loss 4", last)
    assert ("━" in last) == bar
    assert len(last) <= columns


def test_on_a_terminal_that_cannot_move_its_cursor_there_are_plain_lines(monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    out = Terminal()
    with Display(file=out) as display:
        task = display.task("reading", total=2, unit="pages")
        task.update(1)
        task.update(2)
    assert re.fullmatch(r"reading: 2 of 2 pages, 0:00, .*\n", out.getvalue())


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
    assert out.getvalue().splitlines() == [f"{name}: 2 of 2 batches, 0:04, 0.5 batches/s" for name in names]
