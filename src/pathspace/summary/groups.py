"""Trials that differ in their seed only belong together; what tells the groups apart names them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pathspace.experiments.store import Record

SEED = "seed"
SPOKEN = ("model", "data", "optimizer")  # settings whose values speak for themselves
ALWAYS = (*SPOKEN, "lr")  # named wherever groups differ in them, even if less would do
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Group:
    """The trials of one configuration, one per seed.

    Attributes:
        name: what tells it from the other groups.
        settings: the same, by name.
        trials: in the order of their seeds.
        rows: the metrics of each trial, one mapping per evaluation.
    """

    name: str
    settings: Mapping[str, str]
    trials: tuple[Record, ...]
    rows: tuple[tuple[Row, ...], ...]

    @property
    def seeds(self) -> tuple[Any, ...]:
        """The seeds, in order."""
        return tuple(trial.config.get(SEED) for trial in self.trials)


def group_trials(trials: Sequence[Record]) -> tuple[Group, ...]:
    """Groups in the order of their first trials.

    Two groups differ in at least one setting other than the seed. Named are the model, the data,
    the optimizer and the learning rate where groups differ in them, and as many further settings
    as it takes to tell all groups apart.
    """
    found: dict[str, list[Record]] = {}
    for trial in trials:
        rest = {name: value for name, value in trial.config.items() if name != SEED}
        found.setdefault(json.dumps(rest, sort_keys=True), []).append(trial)
    configs = [flatten(members[0].config) for members in found.values()]
    named = _telling(configs)
    groups = []
    for members, config in zip(found.values(), configs, strict=True):
        settings = {name: shown(config.get(name)) for name in named}
        members = sorted(members, key=lambda trial: str(trial.config.get(SEED)).zfill(12))
        groups.append(
            Group(
                name=_name(settings) or shown(config.get("optimizer", "trial")),
                settings=settings,
                trials=tuple(members),
                rows=tuple(tuple(flatten(row) for row in trial.rows) for trial in members),
            )
        )
    return tuple(groups)


def common_settings(groups: Sequence[Group], names: Sequence[str]) -> dict[str, str]:
    """Those of the settings in which all trials agree."""
    told = {name: {shown(g.trials[0].config.get(name)) for g in groups} for name in names}
    return {name: values.pop() for name, values in told.items() if len(values) == 1}


def flatten(data: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Nested mappings as one, with dots in the names.

    Example:
        >>> flatten({"lr": 0.1, "options": {"p": 2}})
        {'lr': 0.1, 'options.p': 2}
    """
    found: dict[str, Any] = {}
    for name, value in data.items():
        if isinstance(value, Mapping):
            found |= flatten(value, f"{before}{name}.")
        else:
            found[f"{before}{name}"] = value
    return found


def as_number(value: Any) -> float:
    """A number of a file; nothing, which JSON writes for what is not finite, is NaN."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.nan


def shown(value: Any) -> str:
    """A setting as text.

    Example:
        >>> shown(0.1), shown(None), shown(["train", "test"])
        ('0.1', '–', 'train, test')
    """
    if value is None:
        return "–"
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def _telling(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """The settings that tell the configurations apart."""
    names = list(dict.fromkeys(name for config in configs for name in config if name != SEED))
    chosen: list[str] = []

    def kinds(names: Sequence[str]) -> int:
        return len({json.dumps([c.get(n) for n in names], sort_keys=True) for c in configs})

    for name in sorted(names, key=lambda name: name not in ALWAYS):  # stable: those come first
        more = kinds([name]) if name in ALWAYS else kinds([*chosen, name]) / kinds(chosen)
        if more > 1:
            chosen.append(name)
    return chosen


def _name(settings: Mapping[str, str]) -> str:
    return ", ".join(
        value if name in SPOKEN else f"{name.removeprefix('options.')} {value}"
        for name, value in settings.items()
        if value != "–"
    )
