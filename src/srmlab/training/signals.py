"""SIGTERM and SIGINT as a request: finish the step, save, and exit with the code a shell expects (143, 130).

    with StopRequest() as stop:
        while not stop.signal: ...

A batch system warns with SIGTERM before it kills, and a person presses Ctrl-C. Neither may cost a
half-written file, so the handler only sets a flag; the loop checks it once per step (across all processes, in
case only one received it).
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Sequence
from types import FrameType
from typing import Any, Self

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopRequest:
    def __init__(self) -> None:
        self.signal = 0  # the first that came
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # only there may handlers be set
            self._previous = {number: signal.signal(number, self._note) for number in SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def flags(self) -> list[float]:
        """For every signal whether it came: numbers that can be summed over processes."""
        return [float(self.signal == number) for number in SIGNALS]

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self.signal = self.signal or number


def first_signal(flags: Sequence[float]) -> int:
    """The signal that came to any process, by the sums of `flags` over all; 0 if none did."""
    return next((int(number) for number, came in zip(SIGNALS, flags, strict=True) if came), 0)
