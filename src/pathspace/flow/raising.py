"""Slopes of one weight tensor, and their power, taken while they are in the cache."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pathspace import native
from pathspace.flow.values import exp

if TYPE_CHECKING:
    from pathspace.flow.products import Later

Factors = tuple[Tensor, ...]  # tensors that broadcast against a weight, to be multiplied


@dataclass(frozen=True)
class Slope:
    """The slopes of one weight tensor: ``exp(log)`` times the product of the factors.

    Attributes:
        factors: tensors that broadcast against the weight: a column and a row for a linear map of
            one sample, one tensor of the weight's shape otherwise.
        log: the logarithm of a factor that all weights have in common, so that nothing overflows.
        power: what power of the slopes these are.
        largest: the largest entry of a single factor, or more, if it is known by the way.
        total: the sum of it before it was raised, likewise.
        later: finds the only factor when it is needed, if it is not there.
    """

    factors: Factors
    log: float = 0.0
    power: float = 1.0
    largest: float | None = None
    total: float | None = None
    later: Later | None = None

    def raised(self, power: float) -> Slope:
        """Raise slopes to a power: 0 where that is infinite."""
        if self.power == power:
            return self
        first, *others = (f.pow(power).nan_to_num_(posinf=0.0) for f in self.factors)
        return Slope((first.mul_(exp(power * self.log)), *others), 0.0, power)

    def dense(self) -> Tensor:
        """The slopes as one tensor; infinite where they leave the range of its dtype."""
        common = torch.tensor(self.log, dtype=torch.float64).exp().to(self.factors[0])
        return common * math.prod(self.factors[1:], start=self.factors[0])


@dataclass
class Raising:
    """How layers raise the slopes of their weights in place, as soon as they have them.

    Attributes:
        power: what power of the slopes is wanted.
        scale: a factor of what is raised; known when the pass back begins.
        most: powers that are known to be at most as large may be found later.
    """

    power: float
    scale: float = 1.0
    most: float = 0.0

    def of(self, factors: Factors) -> Slope:
        """A single tensor, if C is there for it, is raised in place; others as they are."""
        if len(factors) > 1 or not native.fits(factors[0]):
            return Slope(factors)
        return self.done(factors[0], *native.raise_(factors[0], self.power, self.scale))

    def done(self, factor: Tensor, total: float, largest: float) -> Slope:
        """What has been raised."""
        return Slope((factor,), 0.0, self.power, largest, total)
