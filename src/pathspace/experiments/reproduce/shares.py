"""What share of a gain is due to the start alone, with an interval over seeds."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from pathspace.experiments.reproduce.statistics import LEVEL, Sample, student

# For the page of an experiment that speaks of shares.
FIELLER = (
    "Shares of a gain are ratios of means over seeds; their intervals are Fieller's, for pairs of "
    "normally distributed numbers."
)


@dataclass(frozen=True)
class Share:
    """A ratio of two means over the same seeds.

    Attributes:
        value: the ratio; NaN without any seed.
        low: lower end of its interval; NaN for fewer than two seeds, and infinite where the whole
            cannot be told from 0, so that any ratio is possible.
        high: upper end.
        seeds: how many there are in which both are finite.
    """

    value: float
    low: float
    high: float
    seeds: int

    def __str__(self) -> str:
        """In percent, with the interval.

        Example:
            >>> print(Share(0.75, 0.6, 0.9, 5), Share(0.75, -math.inf, math.inf, 3), sep="; ")
            75 % (95 % interval 60 to 90); 75 % (with no bounded interval)
        """
        if math.isnan(self.low):
            return f"{_percent(self.value)} %"
        if math.isinf(self.low):
            return f"{_percent(self.value)} % (with no bounded interval)"
        ends = f"{_percent(self.low)} to {_percent(self.high)}"
        return f"{_percent(self.value)} % ({_percent(LEVEL)} % interval {ends})"

    @property
    def size(self) -> Literal["most", "less", "undecided"]:
        """Whether the whole interval is above one half, below, or neither."""
        if self.low > 0.5:
            return "most"
        return "less" if self.high < 0.5 else "undecided"  # False for NaN


def share_of(part: Sample, whole: Sample, level: float = LEVEL) -> Share:
    r"""The ratio of two means over seeds, with Fieller's interval.

    All ratios ρ are in it for which :math:`\bar a - \rho\,\bar b` is not told from 0,

    .. math:: (\bar a - \rho\,\bar b)^2 \le \frac{t^2}{n}
        \left(s_{aa} - 2 \rho\, s_{ab} + \rho^2 s_{bb}\right),

    with t the quantile of Student's distribution and s the covariances of part a and whole b over
    seeds. That is an interval if the mean of the whole is told from 0 at the same level.

    Args:
        part: one number per seed; seeds that are not finite here or there are left out.
        whole: the same seeds, in the same order.
        level: of the interval.

    Raises:
        StatisticsError: there are not as many of the one as of the other.

    Example:
        >>> share = share_of(Sample((-1.0, -1.1, -0.9)), Sample((-2.1, -2.0, -1.9)))
        >>> print(share)
        50 % (95 % interval 39 to 61)

    Reference: Fieller, Some problems in interval estimation, 1954.
    """
    kept = (part - whole).finite  # raises unless these are pairs
    a, b = ([sample.values[k] for k in kept] for sample in (part, whole))
    n = len(kept)
    mean_a, mean_b = (fmean(values) if n else math.nan for values in (a, b))
    value = mean_a / mean_b if mean_b else math.nan
    if n < 2:
        return Share(value, math.nan, math.nan, n)
    spread = student(n, level) ** 2 / (n * (n - 1))
    aa, ab, bb = (
        spread * sum((x - fmean(one)) * (y - fmean(two)) for x, y in zip(one, two, strict=True))
        for one, two in ((a, a), (a, b), (b, b))
    )
    square, middle, rest = mean_b**2 - bb, mean_a * mean_b - ab, mean_a**2 - aa
    if square <= 0:
        return Share(value, -math.inf, math.inf, n)
    half = math.sqrt(max(0.0, middle**2 - square * rest))
    return Share(value, (middle - half) / square, (middle + half) / square, n)


def share_words(share: Share, gain: str) -> str:
    """How much of a gain the start alone explains, chosen by the interval.

    Args:
        share: what the start alone gains, over the gain.
        gain: the gain in words.

    Example:
        >>> share_words(Share(0.75, 0.6, 0.9, 5), "the gain")
        '75 % (95 % interval 60 to 90) of the gain come from the initial weights, not from the
         space'
    """
    if math.isnan(share.value):
        return f"in no seed all trainings ended, so that no share of {gain} can be told"
    if share.size == "most":
        return f"{share} of {gain} come from the initial weights, not from the space"
    if share.high <= 0.005:  # which is shown as 0
        return f"none of {gain} comes from the initial weights ({share})"
    if share.size == "less":
        return f"the initial weights explain {share} of {gain}, and most of it they do not"
    return (
        f"the initial weights explain {share} of {gain}; whether that is most of it, these seeds "
        "do not tell"
    )


def _percent(share: float) -> int:
    return round(100 * share)
