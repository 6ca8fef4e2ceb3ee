"""The one progress display: how much is done, how fast, and how long the rest will take.

On a terminal a bar for each task, on one line: where it is narrow, first the bar goes, then the end of the
words. Elsewhere plain lines, one every ten seconds and one when a task is done.

    >>> import sys
    >>> with Display(file=sys.stdout) as display:
    ...     task = display.task("reading", total=3, unit="pages")
    ...     for page in range(3):
    ...         task.update(page + 1, note="all well")  # doctest: +ELLIPSIS
    reading: 3 of 3 pages, 0:00, all well, ... pages/s
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any, Self, TextIO

EVERY = 10.0  # seconds between plain lines
WIDE = 80  # columns of a terminal with room for a bar


class Display:
    """Tasks and remarks on a stream, by default stderr: what a program reads is on stdout."""

    def __init__(self, *, show: bool = True, file: TextIO | None = None) -> None:
        self.show, self.file = show, file or sys.stderr
        self.live = show and self.file.isatty() and os.environ.get("TERM") != "dumb"
        self._bars: Any = None

    def __enter__(self) -> Self:
        if self.live:
            from rich.console import Console
            from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn
            from rich.text import Text

            class Words(ProgressColumn):
                def render(self, task: Any) -> Text:
                    return Text(task.fields["words"], no_wrap=True, overflow="ellipsis")

            console = Console(file=self.file)
            bar = [BarColumn(20)] if console.width >= WIDE else []
            self._bars = Progress(TextColumn("{task.description}"), *bar, Words(), console=console)
            self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bars is not None:
            self._bars.stop()
            self._bars = None

    def task(self, name: str, total: float | None = None, unit: str = "", first: float = 0) -> Task:
        """Something to do: `total` units, if that is known, the `first` of them already done."""
        return Task(self, name, total, unit, first)

    def tasks(self, total: float | None = None, unit: str = "") -> Callable[..., None]:
        """A task for each name that progress is reported for, by name, amount done and, if it is known only
        then, the total; it begins where the one before it ended."""
        known: dict[str, Task] = {}
        last = time.perf_counter()

        def update(name: str, done: float, total: float | None = total) -> None:
            nonlocal last
            if name not in known:
                known[name] = self.task(name, total, unit)
                known[name].started = last
            known[name].update(done, total=total)
            last = time.perf_counter()

        return update

    def say(self, text: str) -> None:
        if self._bars is not None:
            self._bars.console.print(text, highlight=False, markup=False)
        elif self.show:
            print(text, file=self.file, flush=True)


class Task:
    def __init__(self, display: Display, name: str, total: float | None, unit: str, first: float) -> None:
        self.display, self.name, self.total, self.unit, self.first = display, name, total, unit, first
        self.started = self.said = time.perf_counter()
        self.complete = False
        self._bar = None
        if display._bars is not None:
            self._bar = display._bars.add_task(name, total=total, completed=first, words="")

    def update(self, done: float, note: str = "", total: float | None = None) -> None:
        """Report how much is done in total; `note` is shown next to it."""
        self.total = self.total if total is None else total
        if self._bar is not None and self.display._bars is not None:
            words = self.words(done, note)
            self.display._bars.update(self._bar, completed=done, total=self.total, words=words)
        elif self.display.show and (
            (done == self.total and not self.complete) or time.perf_counter() - self.said >= EVERY
        ):
            self.said, self.complete = time.perf_counter(), done == self.total
            self.display.say(f"{self.name}: {self.words(done, note)}")

    def words(self, done: float, note: str) -> str:
        elapsed = max(time.perf_counter() - self.started, 1e-9)
        rate = (done - self.first) / elapsed
        of = "" if self.total is None else f" of {amount(self.total)}"
        speed = f"{rate:,.0f} {self.unit}/s" if rate >= 10 else f"{rate:.2g} {self.unit}/s"
        left = 0 if self.total is None or rate <= 0 else (self.total - done) / rate
        clock = f"{duration(left)} left" if left > 0 else duration(elapsed)  # a total may be an estimate
        parts = (f"{amount(done)}{of} {self.unit}".rstrip(), clock, note, speed)
        return ", ".join(part for part in parts if part)


def amount(number: float) -> str:
    """
    >>> amount(1234), amount(11.7), amount(0.1918), amount(3e-6)
    ('1,234', '12', '0.19', '0.00')
    """
    if number < 1e-4 and number:
        return "0.00"
    return f"{number:,.0f}" if number >= 10 or number == round(number) else f"{number:.2g}"


def si(number: float, unit: str = "B") -> str:
    """
    >>> si(2_500_000), si(12, "FLOP")
    ('2.5 MB', '12 FLOP')
    """
    for size, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g} {prefix}{unit}"
    return f"{number:g} {unit}"


def duration(seconds: float) -> str:
    """
    >>> duration(3725)
    '1:02:05'
    >>> duration(1e6)
    '11.6 days'
    """
    if seconds >= 48 * 3600:
        return f"{seconds / 86400:,.1f} days"
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02d}:{second:02d}" if hours else f"{minute}:{second:02d}"
