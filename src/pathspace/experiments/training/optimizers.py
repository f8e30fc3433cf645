"""Optimizers by name: torch's and ours, with the options that each takes."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pathspace import optim
from pathspace.experiments.training.checking import as_type, type_name
from pathspace.experiments.training.errors import TrialError, unknown
from pathspace.network import Network

# What is the engine's to say, or has no effect on what is computed.
RESERVED = frozenset(
    "params lr network weight_decay maximize foreach capturable differentiable fused".split()
)


@dataclass(frozen=True)
class Entry:
    """An optimizer that can be asked for by name.

    Attributes:
        constructor: the class.
        needs_network: whether it takes the traced network.
        description: one line.
        rate: the learning rate of a trial that names none; by default the constructor's own.
    """

    constructor: type[torch.optim.Optimizer]
    needs_network: bool
    description: str
    rate: float | None = None

    @functools.cached_property
    def parameters(self) -> Mapping[str, inspect.Parameter]:
        """All that the constructor takes, by name."""
        return inspect.signature(self.constructor).parameters

    @property
    def options(self) -> dict[str, Any]:
        """The options that a trial may set, with their defaults."""
        return {n: p.default for n, p in self.parameters.items() if n not in RESERVED}

    @property
    def lr(self) -> float:
        """The learning rate of a trial that names none."""
        return float(self.parameters["lr"].default) if self.rate is None else self.rate


OPTIMIZERS: dict[str, Entry] = {
    # torch's 0.001 is too small for SGD to learn anything in a first try
    "sgd": Entry(torch.optim.SGD, False, "gradient descent, with momentum if asked for", 0.1),
    "adagrad": Entry(torch.optim.Adagrad, False, "AdaGrad"),
    "adam": Entry(torch.optim.Adam, False, "Adam"),
    "adamw": Entry(torch.optim.AdamW, False, "Adam, weight decay apart from the gradient"),
    "pathsgd": Entry(optim.PathSGD, True, "Path-SGD: SGD on path-normalised weights", 0.1),
    "pathadagrad": Entry(optim.PathAdagrad, True, "AdaGrad on path-normalised weights"),
    "pathadam": Entry(optim.PathAdam, True, "Adam on path-normalised weights"),
    "gsgd": Entry(optim.GSGD, True, "G-SGD: SGD on basis-path values", 0.1),
    "gadagrad": Entry(optim.GAdagrad, True, "AdaGrad on basis-path values"),
    "gadam": Entry(optim.GAdam, True, "Adam on basis-path values"),
    "balancedsgd": Entry(optim.BalancedSGD, True, "SGD in the balanced representative", 0.1),
}


def find_optimizer(name: str) -> Entry:
    """The entry of that name.

    Raises:
        TrialError: there is none; the message suggests the nearest.

    Example:
        >>> find_optimizer("gsgd").options["metric"]
        'normalized'
    """
    if name not in OPTIMIZERS:
        raise unknown("optimizer", name, OPTIMIZERS)
    return OPTIMIZERS[name]


def check_options(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of an optimizer, each of the type of its default.

    Raises:
        TrialError: an option that it does not have, or of the wrong type.

    Example:
        >>> check_options("sgd", {"momentum": 1, "nesterov": True})
        {'momentum': 1.0, 'nesterov': True}
        >>> check_options("sgd", {"momentun": 0.9})
        Traceback (most recent call last):
        pathspace.experiments.training.errors.TrialError: unknown option of sgd 'momentun'; did ...
    """
    known = find_optimizer(name).options
    checked: dict[str, Any] = {}
    for key, value in options.items():
        if key in ("lr", "weight_decay"):
            raise TrialError(f"options: {key} is a setting of the trial, not an option of {name}")
        if key not in known:
            raise unknown(f"option of {name}", key, known)
        wanted = _type_of(known[key])
        try:
            checked[key] = as_type(value, wanted)
        except TypeError:
            raise TrialError(
                f"options: {key} of {name} should be {type_name(wanted)}, not {value!r}"
            ) from None
    return checked


def make_optimizer(
    name: str,
    parameters: Iterable[Tensor],
    *,
    lr: float,
    weight_decay: float,
    options: Mapping[str, Any],
    network: Network | None,
) -> torch.optim.Optimizer:
    """The optimizer of that name for these parameters.

    Raises:
        TrialError: the constructor does not accept a value.
    """
    entry = find_optimizer(name)
    extra: dict[str, Any] = {"network": network} if entry.needs_network else {}
    try:
        return entry.constructor(  # type: ignore[call-arg]
            list(parameters), lr=lr, weight_decay=weight_decay, **options, **extra
        )
    except (TypeError, ValueError) as error:
        raise TrialError(f"optimizer {name}: {error}") from error


def _type_of(default: Any) -> Any:
    """The type that an option has, by its default."""
    if isinstance(default, tuple):
        return tuple[(float,) * len(default)]  # type: ignore[misc]
    if default == 0.0 and isinstance(default, float):
        return float | tuple[float, float]  # bp_decay takes two; the constructors check
    if isinstance(default, int) and not isinstance(default, bool):
        return float if default == 0 else int  # torch writes some of its rates as 0
    return Any if default is None else type(default)
