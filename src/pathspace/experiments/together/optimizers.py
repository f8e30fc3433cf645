"""The optimizer of a stack: the same rules and spaces, with hyper-parameters of each network."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from pathspace import optim
from pathspace.experiments.together.stack import Stack
from pathspace.experiments.training import Trial
from pathspace.experiments.training.optimizers import find_optimizer
from pathspace.network import Network
from pathspace.optim.lists import rows_of
from pathspace.optim.optimizer import InvariantOptimizer
from pathspace.optim.rules import Adagrad, Adam, Momentum
from pathspace.optim.spaces import WeightSpace


class StackedSGD(InvariantOptimizer, rule=Momentum, space=WeightSpace):
    """What :class:`torch.optim.SGD` does, for networks side by side."""


class StackedAdagrad(InvariantOptimizer, rule=Adagrad, space=WeightSpace):
    """What :class:`torch.optim.Adagrad` does, for networks side by side."""


class StackedAdam(InvariantOptimizer, rule=Adam, space=WeightSpace):
    """What :class:`torch.optim.Adam` does, for networks side by side."""


# Balancing ties networks together that one tensor leads from, so balancedsgd is not here.
STACKED: dict[str, type[InvariantOptimizer]] = {
    "sgd": StackedSGD,
    "adagrad": StackedAdagrad,
    "adam": StackedAdam,
    "pathsgd": optim.PathSGD,
    "pathadagrad": optim.PathAdagrad,
    "pathadam": optim.PathAdam,
    "gsgd": optim.GSGD,
    "gadagrad": optim.GAdagrad,
    "gadam": optim.GAdam,
}
DECAY = "bp_decay"
CHANGING = ("momentum", "dampening", "lr_decay", DECAY)  # state depends on whether they are 0


def own_settings(trial: Trial) -> dict[str, Any] | None:
    """The options of a trial without the numbers that are its own; None if it must run alone."""
    taken = inspect.signature(STACKED[trial.optimizer]).parameters
    options = _options(trial)
    if options.get("every", 1) != 1 or options.get("nonfinite", "skip") != "skip":
        return None  # factors that outlive a step, or an error that would end the others
    common: dict[str, Any] = {}
    for name, value in options.items():
        if name not in taken:
            return None
        if not _is_number(value):
            common[name] = value
        elif name in CHANGING:
            common[name] = [bool(part) for part in _pair(value)]
    return common


def stacked_optimizer(
    trials: Sequence[Trial], stack: Stack, network: Network
) -> InvariantOptimizer:
    """The optimizer of a stack, with the hyper-parameters of each trial."""
    first = trials[0]
    settings: dict[str, Any] = {
        "lr": rows_of([float(trial.lr or 0.0) for trial in trials]),
        "weight_decay": rows_of([trial.weight_decay for trial in trials]),
    }
    columns = [_options(trial) for trial in trials]
    for name, value in columns[0].items():
        if name == DECAY:
            pairs = zip(*(_pair(column[name]) for column in columns), strict=True)
            settings[name] = tuple(rows_of(list(numbers)) for numbers in pairs)
        elif isinstance(value, tuple) and _is_number(value):
            parts = zip(*(column[name] for column in columns), strict=True)
            settings[name] = tuple(rows_of(list(numbers)) for numbers in parts)
        elif _is_number(value):
            settings[name] = rows_of([column[name] for column in columns])
        else:
            settings[name] = value
    settings.pop("start", None)  # the optimizers of the single networks have started already
    return STACKED[first.optimizer](stack.parameters(), network=network, **settings)


def _options(trial: Trial) -> dict[str, Any]:
    """All options, those left out with the defaults of the trial's own optimizer."""
    defaults = find_optimizer(trial.optimizer).options
    taken = inspect.signature(STACKED[trial.optimizer]).parameters
    known = {name: value for name, value in defaults.items() if name in taken}
    return known | trial.options


def _is_number(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_number, value))
    return isinstance(value, int | float) and not isinstance(value, bool)


def _pair(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value, value)
