"""The paper's tables and sweeps, and the questions it leaves open, as recipes anyone can run.

    srmlab sweep language-models                 every cell with every seed, on this machine's cores
    srmlab sweep show language-models            the table, the verdict

A cell's run is an ordinary run directory: `srmlab analyze`, `srmlab explore` and `srmlab resume` take it.
"""

from srmlab.experiments.catalogue import EXPERIMENTS, experiment
from srmlab.experiments.evidence import Claim
from srmlab.experiments.experiment import Cell, Experiment, Scale
from srmlab.experiments.results import CellResult, SweepResult
from srmlab.experiments.runs import collect

__all__ = [
    "EXPERIMENTS",
    "Cell",
    "CellResult",
    "Claim",
    "Experiment",
    "Scale",
    "SweepResult",
    "collect",
    "experiment",
]
