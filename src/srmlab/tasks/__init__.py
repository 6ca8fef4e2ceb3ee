"""Reasoning tasks: problems with one right answer, as a corpus to train on and a measure of what is learned.

    corpus = TaskCorpus.parse("task:hops:1-3")           # `srmlab prepare task:hops:1-3`
    fresh  = held_out("hops", 3, count=200, val_fraction=0.05)
    right  = srmlab.tasks.accuracy.solved(model, tokenizer, fresh)   # `srmlab solve RUN`

`srmlab.tasks.accuracy` needs torch and is imported by its own name.
"""

from srmlab.tasks.corpus import TaskCorpus, held_out
from srmlab.tasks.problems import TASKS, Problem, Task, find_task, problems, register

__all__ = ["TASKS", "Problem", "Task", "TaskCorpus", "find_task", "held_out", "problems", "register"]
