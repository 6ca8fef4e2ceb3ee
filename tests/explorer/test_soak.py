"""Many clients for a long time: no error, answers that do not mix, memory that stays."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import httpx
import pytest
from explorer_subjects import serving, tiny_model

from srmlab.data import byte_tokenizer
from srmlab.explorer.session import Session


def resident() -> float:
    """Megabytes of this process in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 1e6


class Clients:
    """`count` threads that ask all kinds of questions until told to stop."""

    def __init__(self, address: str, count: int) -> None:
        self.address, self.stop = address, threading.Event()
        self.answers: list[int] = [0] * count
        self.failures: list[str] = []
        self.threads = [threading.Thread(target=self.ask, args=(i,)) for i in range(count)]

    def ask(self, number: int) -> None:
        stream = number % 3
        ablation = {"stream": stream, "mode": "zero", "first": 0, "last": 2}
        questions = [
            ("/api/trace", {"prompt": "abc" * (1 + number % 9)}),
            ("/api/intervene", {"prompt": "abcdef", "intervention": {"ablations": [ablation]}}),
            ("/api/generate", {"prompt": "ab", "count": 2, "seed": number}),
        ]
        first: dict[str, bytes] = {}
        try:
            with httpx.Client(base_url=self.address, timeout=60, trust_env=False) as client:
                while self.answers[number] == 0 or not self.stop.is_set():  # on a slow machine at least once
                    for path, body in questions:
                        answer = client.post(path, json=body)
                        if answer.status_code != 200:
                            self.failures.append(f"{path}: {answer.status_code} {answer.text[:100]}")
                        elif first.setdefault(path, answer.content) != answer.content:
                            self.failures.append(f"{path}: another answer to the same question")
                        self.answers[number] += 1
        except httpx.HTTPError as error:
            self.failures.append(repr(error))

    def run(self, seconds: float) -> None:
        for thread in self.threads:
            thread.start()
        time.sleep(seconds)
        self.stop.set()
        for thread in self.threads:
            thread.join(timeout=60)


@pytest.mark.parametrize(
    ("count", "seconds"), [(12, 3), pytest.param(50, 60, marks=pytest.mark.soak)], ids=["short", "long"]
)
def test_concurrent_clients_all_get_their_own_answers_and_memory_stays_flat(count, seconds):
    with serving(Session(tiny_model(), byte_tokenizer(), name="tiny"), queue=128) as address:
        warm = Clients(address, count)
        warm.run(seconds / 3)
        before = resident()
        clients = Clients(address, count)
        clients.run(seconds)
        after = resident()
    assert warm.failures + clients.failures == []
    assert min(clients.answers) > 0
    assert after - before < 60  # megabytes; a leak of traces would be hundreds
