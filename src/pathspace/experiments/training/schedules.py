"""Learning-rate schedules by name, as functions of the position in training alone.

They keep nothing between steps, so a training that is taken up again needs nothing of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from pathspace.experiments.training.naming import build


class Rates(NamedTuple):
    """A factor of the learning rate, and a momentum if the schedule sets it."""

    factor: float = 1.0
    momentum: float | None = None


@dataclass(frozen=True)
class Schedule:
    """What a schedule says at each position.

    Attributes:
        rates: of iteration, epoch and number of iterations, the first two from 0.
        every: how often it says something new; a constant one says it once.
        sets_momentum: whether it sets the momentum too.
    """

    rates: Callable[[int, int, int], Rates]
    every: Literal["once", "epoch", "iteration"]
    sets_momentum: bool = False


def constant() -> Schedule:
    """The same rate throughout."""
    return Schedule(lambda iteration, epoch, total: Rates(), "once")


def steps(
    *at: int, factor: float = 0.1, unit: Literal["iterations", "epochs"] = "iterations"
) -> Schedule:
    """Multiply the rate by a factor at each of some iterations or epochs.

    ``steps:32000:48000`` is the schedule of Meng et al. 2019, section 11.4 (and of He et al.).

    Example:
        >>> schedule = steps(2, 4)
        >>> [round(schedule.rates(i, 0, 6).factor, 3) for i in range(6)]
        [1.0, 1.0, 0.1, 0.1, 0.01, 0.01]
    """
    if not at:
        raise ValueError("name at least one position, as in steps:32000:48000")
    if unit == "epochs":
        return Schedule(lambda i, e, total: Rates(factor ** sum(e >= p for p in at)), "epoch")
    return Schedule(lambda i, e, total: Rates(factor ** sum(i >= p for p in at)), "iteration")


def diminishing(
    decay: float = 0.99, momentum: float = 0.5, increase: float = 0.02, limit: float = 0.9
) -> Schedule:
    r"""After each epoch a smaller rate and more momentum.

    .. math:: \eta \leftarrow 0.99\,\eta, \qquad m \leftarrow \min(0.9, m + 0.02), \qquad m_0 = 0.5

    Example:
        >>> diminishing().rates(0, 10, 0)
        Rates(factor=0.904..., momentum=0.7)

    Reference: Neyshabur et al. 2017, Figure 1 (initial step size 0.1).
    """
    return Schedule(
        lambda i, e, total: Rates(decay**e, min(limit, momentum + increase * e)), "epoch", True
    )


def exponential(decay: float = 0.99) -> Schedule:
    """Multiply the rate by a factor after each epoch."""
    return Schedule(lambda i, e, total: Rates(decay**e), "epoch")


def cosine(warmup: int = 0, final: float = 0.0) -> Schedule:
    """Down along half a cosine to a share of the rate, after a linear warm-up.

    Args:
        warmup: iterations from 0 to the full rate.
        final: share of the rate at the end.

    Example:
        >>> [round(cosine().rates(i, 0, 4).factor, 2) for i in range(5)]
        [1.0, 0.85, 0.5, 0.15, 0.0]
    """

    def rates(iteration: int, epoch: int, total: int) -> Rates:
        if iteration < warmup:
            return Rates((iteration + 1) / warmup)
        return Rates(_down((iteration - warmup) / max(1, total - warmup), 1.0, final))

    return Schedule(rates, "iteration")


def one_cycle(peak: float = 0.3, start: float = 0.04, final: float = 1e-4) -> Schedule:
    """Up along half a cosine and down along another.

    Args:
        peak: the share of the training after which the rate is full.
        start: share of the rate at the start.
        final: share of the rate at the end.
    """
    if not 0 < peak < 1:
        raise ValueError(f"peak should be between 0 and 1, not {peak}")

    def rates(iteration: int, epoch: int, total: int) -> Rates:
        done = iteration / max(1, total)
        if done < peak:
            return Rates(_down(done / peak, start, 1.0))
        return Rates(_down((done - peak) / (1 - peak), 1.0, final))

    return Schedule(rates, "iteration")


SCHEDULES: dict[str, Callable[..., Schedule]] = {
    "constant": constant,
    "steps": steps,
    "diminishing": diminishing,
    "exponential": exponential,
    "cosine": cosine,
    "one-cycle": one_cycle,
}


def parse_schedule(text: str) -> Schedule:
    """The schedule that a text such as ``steps:32000:48000`` names.

    Example:
        >>> parse_schedule("steps:1:factor=0.5").rates(3, 0, 9).factor
        0.5
        >>> parse_schedule("cosin")
        Traceback (most recent call last):
        pathspace.experiments.training.errors.TrialError: unknown schedule 'cosin'; did you mean ...
    """
    return build("schedule", text, SCHEDULES)


def _down(share: float, first: float, last: float) -> float:
    """From the first value to the last along half a cosine."""
    return last + (first - last) * (1 + math.cos(math.pi * min(1.0, share))) / 2
