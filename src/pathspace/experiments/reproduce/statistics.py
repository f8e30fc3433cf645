"""Numbers over seeds: spreads, paired differences with confidence intervals, sign tests."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Literal

from pathspace.errors import PathspaceError
from pathspace.experiments.data.errors import require
from pathspace.experiments.training import Outcome
from pathspace.summary.metrics import value
from pathspace.summary.trials import spread

LEVEL = 0.95  # of confidence intervals
Direction = Literal["below 0", "above 0"]


class StatisticsError(PathspaceError, ValueError):
    """Numbers that cannot be compared: not as many of the one as of the other."""


@dataclass(frozen=True)
class Sample:
    """One number per repetition, in the order of the seeds; not finite where a training diverged.

    Example:
        >>> print(Sample((3.0, 5.0)), Sample((3.0, math.nan)), Sample((3.0,)), sep=", ")
        4 ± 1.4, diverged in 1 of 2, 3
    """

    values: tuple[float, ...]

    def __len__(self) -> int:
        return len(self.values)

    @property
    def diverged(self) -> int:
        """How many are not finite."""
        return sum(not math.isfinite(number) for number in self.values)

    @property
    def mean(self) -> float:
        """The mean; NaN if any is not finite, so that a divergence is not hidden."""
        return math.nan if self.diverged or not self.values else fmean(self.values)

    @property
    def deviation(self) -> float:
        """The standard deviation; NaN for fewer than two, or if any is not finite."""
        return math.nan if self.diverged or len(self) < 2 else stdev(self.values)

    @property
    def record(self) -> dict[str, float]:
        """Mean, spread and size, for tables of data."""
        return {"mean": self.mean, "standard deviation": self.deviation, "seeds": len(self)}

    def __str__(self) -> str:
        if self.diverged:
            return f"diverged in {self.diverged} of {len(self)}"
        return spread(self.values) if self.values else "none"


@dataclass(frozen=True)
class Difference:
    """A mean of paired differences with its confidence interval.

    Attributes:
        values: the differences of those pairs in which both are finite.
        dropped: how many pairs are not among them.
        mean: of the values; NaN without any.
        low: lower end of the interval; NaN for fewer than two values.
        high: upper end.
    """

    values: tuple[float, ...]
    dropped: int
    mean: float
    low: float
    high: float

    def __len__(self) -> int:
        return len(self.values)

    @property
    def record(self) -> dict[str, float]:
        """Mean, interval and size, for tables of data."""
        return {"mean": self.mean, "low": self.low, "high": self.high, "seeds": len(self)}

    def __str__(self) -> str:
        """The mean and, in brackets, the interval.

        Example:
            >>> print(paired_difference(Sample((1.0, 2.0, 3.0)), Sample((2.0, 2.5, 4.5))))
            -1 [-2.24, +0.242]
        """
        if not self.values:
            return "diverged"
        within = "" if math.isnan(self.low) else f" [{self.low:+.3g}, {self.high:+.3g}]"
        lost = f", {self.dropped} diverged" if self.dropped else ""
        return f"{self.mean:+.3g}{within}{lost}"

    def verdict(self, claim: Direction) -> str:
        """Whether the difference is as a paper says, in a word.

        ``seen`` if the whole interval is on the claimed side of 0, ``contrary`` if it is on the
        other, else ``undecided``.

        Example:
            >>> Difference((-1.0, -1.1), 0, -1.05, -1.7, -0.4).verdict("below 0")
            'seen'
        """
        below, above = self.high < 0, self.low > 0  # False for NaN
        if not (below or above):
            return "undecided"
        return "seen" if below == (claim == "below 0") else "contrary"


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


def metric(
    outcomes: Sequence[Outcome], name: str, at: Literal["final", "best"] = "final"
) -> Sample:
    """A metric of each outcome; shares such as errors are given in percent.

    Args:
        outcomes: of one configuration, in the order of their seeds.
        name: as in the rows of metrics, such as ``test_error``.
        at: the last evaluation, or the one with the least validation error.

    Example:
        >>> from pathspace.experiments.training import Trial, train
        >>> outcome = train(Trial("mlp:64-8-10", "digits", epochs=1))
        >>> metric([outcome], "test_error").mean == 100 * outcome.final["test_error"]
        True
    """
    rows = [outcome.final if at == "final" else outcome.best for outcome in outcomes]
    return Sample(
        tuple(
            math.nan if outcome.status == "diverged" else value(row, name)
            for outcome, row in zip(outcomes, rows, strict=True)
        )
    )


def paired_difference(one: Sample, other: Sample, level: float = LEVEL) -> Difference:
    r"""One minus the other, seed by seed, with Student's confidence interval.

    .. math:: \bar d \pm t_{n-1,(1+\mathrm{level})/2}\; s_d / \sqrt n, \qquad d_i = a_i - b_i

    Pairs share their seed, hence their initial weights and order of the data, so that what these
    do to both cancels. The interval is that of normally distributed differences.

    Raises:
        StatisticsError: there are not as many of the one as of the other.

    Example:
        >>> gap = paired_difference(Sample((1.0, 2.0, 3.0)), Sample((2.0, 2.5, 4.5)))
        >>> gap.mean, round(gap.high, 3)
        (-1.0, 0.242)
    """
    if len(one) != len(other):
        raise StatisticsError(f"{len(one)} and {len(other)} numbers are no pairs")
    gaps = [a - b for a, b in zip(one.values, other.values, strict=True)]
    finite = tuple(gap for gap in gaps if math.isfinite(gap))
    mean = fmean(finite) if finite else math.nan
    half = math.nan
    if len(finite) > 1:
        t = float(require("scipy.stats").t.ppf((1 + level) / 2, len(finite) - 1))
        half = t * stdev(finite) / math.sqrt(len(finite))
    return Difference(finite, len(gaps) - len(finite), mean, mean - half, mean + half)


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


def best_rate(outcomes: Mapping[float, Sequence[Outcome]], name: str = "validation_error") -> float:
    """The rate with the least mean of a metric at the end; one that diverged is not chosen.

    Of equals the first one. If all diverged, the first one too, and what is trained with it shows
    that.

    Example:
        >>> from pathspace.experiments.training import Trial, train
        >>> split = ("unit_interval", "flatten", "validation_split:300")
        >>> rates = {
        ...     lr: [train(Trial("mlp:64-8-10", "digits", preprocess=split, lr=lr, epochs=2))]
        ...     for lr in (1e-5, 0.1)
        ... }
        >>> best_rate(rates)
        0.1
    """

    def mean(rate: float) -> float:
        found = metric(outcomes[rate], name).mean
        return math.inf if math.isnan(found) else found

    return min(outcomes, key=mean)
