"""What a bound is, and the arithmetic of logarithms that all of them use."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

ERROR = "generalization error"


@dataclass(frozen=True)
class Bound:
    """An upper bound of a generalization error, or of another quantity that is named.

    Attributes:
        name: which bound.
        log10: its decimal logarithm.
        inputs: the numbers that went in.
        assumptions: what the theorem assumes, and what was substituted where it does not hold.
        quantity: what is bounded.
    """

    name: str
    log10: float
    inputs: Mapping[str, float]
    assumptions: tuple[str, ...]
    quantity: str = ERROR

    @property
    def vacuous(self) -> bool:
        """Whether it bounds an error, which is between 0 and 1, and says nothing about it."""
        return self.quantity == ERROR and self.log10 >= 0

    def __str__(self) -> str:
        note = " (vacuous)" if self.vacuous else ""
        inputs = ", ".join(f"{key} = {value:.4g}" for key, value in self.inputs.items())
        value = f"{self.name}: {self.quantity} ≤ 10^{self.log10:.2f}{note}; {inputs}"
        return "\n  ".join([value, *self.assumptions])


def check_sample(samples: int, delta: float) -> None:
    """Refuse a number of samples or a probability that makes no sense."""
    if samples < 1 or not 0 < delta < 1:
        raise ValueError(
            f"need samples >= 1 and 0 < delta < 1, not samples={samples}, delta={delta}"
        )


def log(value: float) -> float:
    """The natural logarithm, also of 0."""
    return math.log(value) if value > 0 else -math.inf


def log_sum(*logs: float) -> float:
    """The logarithm of a sum of positive numbers that are given by their logarithms."""
    *others, top = sorted(logs)
    if math.isinf(top):
        return top
    return top + math.log1p(math.fsum(math.exp(x - top) for x in others))


def decimal(natural: float) -> float:
    """A natural logarithm as a decimal one."""
    return natural / math.log(10)
