"""All experiments, found by the names of their files: ``<paper>/<name>.py``."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import pkgutil
from types import ModuleType
from typing import Any

from pathspace.experiments.reproduce.experiment import Experiment, ExperimentError, natural_order
from pathspace.experiments.reproduce.papers import PAPERS

PACKAGE = __name__.rpartition(".")[0]


def find_experiment(name: str) -> Experiment[Any]:
    """The experiment of that name.

    Raises:
        ExperimentError: there is none; the message suggests the nearest.

    Example:
        >>> find_experiment("meng2019 fig4").source.year
        2019
        >>> find_experiment("meng2019 figure4")
        Traceback (most recent call last):
        pathspace.experiments.reproduce.experiment.ExperimentError: unknown experiment ...
    """
    known = {
        name: experiment
        for experiment in find_experiments()
        for name in (experiment.name, *experiment.also)
    }
    if name not in known:
        close = difflib.get_close_matches(name.lower(), known, n=1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        raise ExperimentError(f"unknown experiment {name!r}; {hint}known are {', '.join(known)}")
    return known[name]


def find_experiments() -> tuple[Experiment[Any], ...]:
    """All experiments, by paper, figures and tables in their order."""
    found = []
    for paper in PAPERS:
        names = sorted(_modules(paper), key=natural_order)
        for module in (importlib.import_module(f"{PACKAGE}.{paper}.{name}") for name in names):
            if hasattr(module, "EXPERIMENT"):
                found.append(_checked(module))
    return tuple(found)


def _modules(paper: str) -> list[str]:
    package = f"{PACKAGE}.{paper}"
    if importlib.util.find_spec(package) is None:
        return []
    return [entry.name for entry in pkgutil.iter_modules(importlib.import_module(package).__path__)]


def _checked(module: ModuleType) -> Experiment[Any]:
    paper, name = module.__name__.split(".")[-2:]
    experiment: Experiment[Any] = module.EXPERIMENT
    if experiment.name != f"{paper} {name}":
        raise ExperimentError(
            f"{module.__name__} holds {experiment.name!r}; by its file it is {f'{paper} {name}'!r}"
        )
    return experiment
