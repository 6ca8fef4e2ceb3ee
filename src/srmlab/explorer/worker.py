"""One thread around the model, with a queue that has an end.

Hooks live on the model, so two forward passes at a time would see each other's. Everything that touches the
model therefore goes through one `Worker`: first come, first served, at most `bound` waiting. Past that the
caller is refused at once (`Busy`, which the server answers with 429) rather than kept waiting for an unknown
time.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
POLL_SECONDS = 0.1


class Busy(Exception):
    """The queue is full."""


class Gone(Exception):
    """Whoever asked has hung up; the answer is for nobody."""


class Worker:
    def __init__(self, bound: int = 64) -> None:
        self.bound = bound
        self._waiting = 0
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="srmlab-model")

    def submit(self, work: Callable[[], T]) -> Future[T]:
        with self._lock:
            if self._waiting >= self.bound:
                raise Busy
            self._waiting += 1
        try:
            future = self._pool.submit(work)
        except BaseException:
            self._left()
            raise
        future.add_done_callback(lambda _: self._left())
        return future

    async def run(self, work: Callable[[], T], gone: Callable[[], Awaitable[bool]]) -> T:
        """The result of `work`; if the asker is `gone` before its turn comes, the turn is given up."""
        future = self.submit(work)
        waiting = asyncio.wrap_future(future)
        while True:
            done, _ = await asyncio.wait({waiting}, timeout=POLL_SECONDS)
            if done:
                return waiting.result()
            if not future.running() and await gone() and future.cancel():
                raise Gone

    def close(self) -> None:
        """Finish what is running, drop what waits."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _left(self) -> None:
        with self._lock:
            self._waiting -= 1
