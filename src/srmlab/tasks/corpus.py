"""A task as a corpus: `srmlab prepare task:hops` turns it into tokens like any other text.

    task:hops               50,000 problems of the task's usual difficulties, each as often
    task:hops:1-3           of these difficulties; task:hops:2 is of one
    task:hops:1-3:200000    so many

A document is one problem. Preparation drops problems that come twice, and deals the rest to training or
validation by the digest of their text. So a problem is on one side for ever, whoever draws it: `held_out`
draws new ones from the side that training never sees.

    >>> corpus = TaskCorpus.parse("task:addition:1-2:100")
    >>> [document.text for document in corpus.documents()][:2]
    ['4+2=6', '36+22=85']
    >>> [problem.text for problem in held_out("addition", 2, count=2, val_fraction=0.05)]
    ['23+91=411', '84+68=251']
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from srmlab.data import DataError, Document, Source
from srmlab.data.corpora import text_digest
from srmlab.data.preparation import split_of
from srmlab.tasks.problems import Problem, find_task, problems

PREFIX = "task:"
PROBLEMS = 50_000
CORPUS_SEED, HELD_OUT_SEED = 0, 1
PATIENCE = 20  # draws for every problem that is expected, before a small task counts as used up


@dataclass(frozen=True)
class TaskCorpus(Source):
    """A source of documents for `srmlab.data.prepare`."""

    task: str
    low: int  # difficulties low … high
    high: int
    count: int = PROBLEMS

    def __post_init__(self) -> None:
        for difficulty in (self.low, self.high):
            find_task(self.task).check(self.task, difficulty)
        if self.low > self.high:
            raise DataError(f"difficulties {self.low}-{self.high}: write the lower one first")
        if self.count < 1:
            raise DataError(f"{self.count} problems: ask for 1 or more")

    @classmethod
    def parse(cls, spec: str) -> TaskCorpus:
        name, _, rest = spec.removeprefix(PREFIX).partition(":")
        usual = find_task(name).usual
        asked = re.fullmatch(r"(?:(\d+)(?:-(\d+))?)?(?::(\d+))?", rest)
        if asked is None:
            raise DataError(
                f"{spec!r} cannot be read: write task:NAME[:LOW-HIGH][:PROBLEMS], such as task:{name}:"
                f"{usual[0]}-{usual[1]}:{PROBLEMS}"
            )
        low, high, count = (int(number) if number else None for number in asked.groups())
        if low is None:
            low, high = usual
        return cls(name, low, low if high is None else high, PROBLEMS if count is None else count)

    @property
    def name(self) -> str:
        return f"{PREFIX}{self.task}:{self.low}-{self.high}:{self.count}"

    @property
    def difficulties(self) -> range:
        return range(self.low, self.high + 1)

    def documents(self) -> Iterator[Document]:
        """The difficulties in turn."""
        streams = [problems(self.task, difficulty, CORPUS_SEED) for difficulty in self.difficulties]
        for number in range(self.count):
            yield Document(f"{self.name}#{number}", next(streams[number % len(streams)]).text)


def held_out(
    name: str, difficulty: int, *, count: int, val_fraction: float, seed: int = HELD_OUT_SEED
) -> list[Problem]:
    """Up to `count` different problems that no corpus with this `val_fraction` trains on.

    There are fewer where the task is so small that it has no more of them.
    """
    if not 0 < val_fraction < 1:
        raise DataError(f"val_fraction {val_fraction}: no problem is held out; prepare with more than 0")
    draws = islice(problems(name, difficulty, seed), round(PATIENCE * count / val_fraction))
    found: dict[Problem, None] = {}
    for problem in draws:
        if split_of(text_digest(problem.text.encode()), val_fraction) == "val":
            found[problem] = None
            if len(found) == count:
                break
    return list(found)
