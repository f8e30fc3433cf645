"""Sign tests: whether numbers are on one side of 0 more often than coins would be."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class SignTest:
    """How often numbers are negative, and how surprising that is if signs were coin tosses.

    Attributes:
        negative: how many are below 0.
        positive: how many are above; zeros count for neither.
        p: probability of a count at least as one-sided, in either direction.
    """

    negative: int
    positive: int
    p: float

    def __str__(self) -> str:
        return f"{self.negative} of {self.negative + self.positive} below 0, p = {self.p:.2g}"


def sign_test(values: Sequence[float]) -> SignTest:
    r"""The exact two-sided sign test; zeros are left out.

    .. math:: p = \min\Big(1,\; 2 \sum_{k \le \min(n_-, n_+)} \binom nk 2^{-n}\Big)

    Example:
        >>> print(sign_test([-1.0, -2.0, -0.5, -3.0, -1.5]))
        5 of 5 below 0, p = 0.062
    """
    negative, positive = sum(v < 0 for v in values), sum(v > 0 for v in values)
    n = negative + positive
    tail = sum(math.comb(n, k) for k in range(min(negative, positive) + 1))
    return SignTest(negative, positive, min(1.0, 2 * tail / 2**n))
