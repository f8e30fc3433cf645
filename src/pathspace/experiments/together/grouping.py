"""Which trials can run together."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch

from pathspace.durable.files import canonical
from pathspace.experiments import models
from pathspace.experiments.loading import is_import
from pathspace.experiments.together.optimizers import STACKED, own_settings
from pathspace.experiments.together.penalties import penalty_kind
from pathspace.experiments.together.stack import flat
from pathspace.experiments.training import Trial

LARGEST = 64  # trials in a group
WEIGHTS = 2**22  # scalar weights in a group
OWN = ("seed", "lr", "weight_decay", "init", "options", "penalties", "preprocess")
LABELS = "corrupt_labels"  # the step of preprocessing that leaves inputs as they are


def groups(trials: Sequence[Trial]) -> list[list[Trial]]:
    """Trials that may run together, in groups of a size that suits caches and memory.

    Together run perceptrons without batch norm that differ in seed, rates, decay, λ, further
    numbers of their optimizer, initialisation and corrupted labels only. All others are groups of
    their own. The order is that of the first trial of each group.

    Example:
        >>> trials = [
        ...     Trial("mlp:64-16-10", "digits", lr=lr, seed=s) for lr in (1, 2) for s in (0, 1)
        ... ]
        >>> [len(group) for group in groups([*trials, Trial("mlp:64-8-10", "digits")])]
        [4, 1]
    """
    found: dict[str, list[Trial]] = {}
    for trial in dict.fromkeys(trials):
        found.setdefault(kind(trial) or trial.key, []).append(trial)
    parts = []
    for members in found.values():
        size = 1
        if len(members) > 1:
            size = max(1, min(LARGEST, WEIGHTS // _weights(members[0].model)))
        count = -(-len(members) // size)  # as even as can be
        parts += [
            members[k * len(members) // count : (k + 1) * len(members) // count]
            for k in range(count)
        ]
    return parts


def kind(trial: Trial) -> str | None:
    """What trials must have in common to run together; None for one that runs alone."""
    if (
        is_import(trial.model)
        or trial.augment is not None
        or trial.mixed != "off"
        or torch.device(trial.device).type != "cpu"
        or trial.optimizer not in STACKED
        or None in map(penalty_kind, trial.penalties)
        or not _weights(trial.model)
    ):
        return None
    common = own_settings(trial)
    if common is None:
        return None
    settings: dict[str, Any] = {k: v for k, v in trial.to_dict().items() if k not in OWN}
    settings["options"] = common
    settings["penalties"] = list(map(penalty_kind, trial.penalties))
    settings["preprocess"] = [step for step in trial.preprocess if not step.startswith(LABELS)]
    return canonical(settings)


@functools.cache
def _weights(model: str) -> int:
    """Number of weights of a perceptron that can be stacked; 0 for any other model."""
    if not model.startswith("mlp"):
        return 0
    built = models.build(model, torch.Generator())
    try:
        flat(built)
    except TypeError:
        return 0
    return sum(parameter.numel() for parameter in built.parameters())
