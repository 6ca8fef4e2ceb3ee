"""Reasoning tasks: problems with one right answer, as a corpus to train on and a measure of what is learned.

    corpus = TaskCorpus.parse("task:hops:1-3")           # `srm prepare task:hops:1-3`
    fresh  = held_out("hops", 3, count=200, val_fraction=0.05)
    right  = srm.tasks.accuracy.solved(model, tokenizer, fresh)   # `srm solve RUN`

`srm.tasks.accuracy` needs torch and is imported by its own name.
"""

from srm.tasks.corpus import TaskCorpus, held_out
from srm.tasks.problems import TASKS, Problem, Task, find_task, problems

__all__ = ["TASKS", "Problem", "Task", "TaskCorpus", "find_task", "held_out", "problems"]
