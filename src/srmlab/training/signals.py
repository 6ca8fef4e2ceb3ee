"""SIGTERM and SIGINT as a request: finish the step, save, and leave with the code a shell expects (143, 130).

    with StopRequest() as stop:
        while not stop.signal: ...

A batch system warns with SIGTERM before it kills, and a person presses Ctrl-C. Neither may cost a
half-written file, so the handler only makes a note; the loop looks at it once a step (and over all
processes, should only one have been told).
"""

from __future__ import annotations

import signal
import threading
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

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self.signal = self.signal or number
