"""The paper's tables and sweeps, and the questions it leaves open, as recipes anyone can run.

    srm sweep language-models                 every cell with every seed, on this machine's cores
    srm sweep show language-models            the table, the verdict

A cell's run is an ordinary run directory: `srm analyze`, `srm explore` and `srm resume` take it.
"""

from srm.experiments.catalogue import EXPERIMENTS, experiment
from srm.experiments.experiment import Cell, Experiment, Scale
from srm.experiments.results import CellResult, SweepResult, collect

__all__ = [
    "EXPERIMENTS",
    "Cell",
    "CellResult",
    "Experiment",
    "Scale",
    "SweepResult",
    "collect",
    "experiment",
]
