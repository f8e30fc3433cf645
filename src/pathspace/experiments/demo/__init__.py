"""The demonstration: four optimizers from two starting points that are the same function.

:func:`run_demo` is what ``pathspace demo`` runs; it needs no network and less than two minutes.
"""

from pathspace.experiments.demo.inspecting import Look, inspect_networks
from pathspace.experiments.demo.page import demo_page
from pathspace.experiments.demo.running import Demo, run_demo
from pathspace.experiments.demo.settings import FULL, OPTIMIZERS, QUICK, STARTS, Settings
from pathspace.experiments.demo.tables import comparison_table, difference_table
from pathspace.experiments.demo.trainings import Difference, Errors, Trainings, train_all

__all__ = [
    "FULL",
    "OPTIMIZERS",
    "QUICK",
    "STARTS",
    "Demo",
    "Difference",
    "Errors",
    "Look",
    "Settings",
    "Trainings",
    "comparison_table",
    "demo_page",
    "difference_table",
    "inspect_networks",
    "run_demo",
    "train_all",
]
