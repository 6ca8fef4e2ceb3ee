"""A task: is the number of ones even or odd?"""

from random import Random

from srmlab.tasks import Problem, Task, register


def parity(random: Random, bits: int) -> Problem:
    word = "".join(random.choice("01") for _ in range(bits))
    return Problem(question=word, answer="odd" if word.count("1") % 2 else "even")


register("parity", Task(parity, counts="bits", least=1, most=64, usual=(4, 12)))
