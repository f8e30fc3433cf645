"""Numbers over seeds: spreads, and paired differences with confidence intervals."""

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
        return len(self) - len(self.finite)

    @property
    def mean(self) -> float:
        """The mean; NaN if any is not finite, so that a divergence is not hidden."""
        return math.nan if self.diverged or not self.values else fmean(self.values)

    @property
    def deviation(self) -> float:
        """The standard deviation; NaN for fewer than two, or if any is not finite."""
        return math.nan if self.diverged or len(self) < 2 else stdev(self.values)

    @property
    def finite(self) -> tuple[int, ...]:
        """The places of those that are finite."""
        return tuple(k for k, number in enumerate(self.values) if math.isfinite(number))

    def __sub__(self, other: Sample) -> Sample:
        """The differences, seed by seed.

        Raises:
            StatisticsError: there are not as many of the one as of the other.

        Example:
            >>> Sample((3.0, 5.0)) - Sample((1.0, 2.0))
            Sample(values=(2.0, 3.0))
        """
        if len(self) != len(other):
            raise StatisticsError(f"{len(self)} and {len(other)} numbers are no pairs")
        return Sample(tuple(a - b for a, b in zip(self.values, other.values, strict=True)))

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
        return verdict_of(self.low, self.high, claim)


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


def accuracy(outcomes: Sequence[Outcome]) -> Sample:
    """The test accuracy in percent at the end of each training."""
    errors = metric(outcomes, "test_error")
    return Sample(tuple(100 - error for error in errors.values))


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
    gaps = one - other
    finite = tuple(gaps.values[k] for k in gaps.finite)
    mean = fmean(finite) if finite else math.nan
    half = math.nan
    if len(finite) > 1:
        half = student(len(finite), level) * stdev(finite) / math.sqrt(len(finite))
    return Difference(finite, gaps.diverged, mean, mean - half, mean + half)


def student(count: int, level: float = LEVEL) -> float:
    """The quantile of Student's distribution for the mean of so many numbers.

    Example:
        >>> round(student(3), 2)
        4.3
    """
    return float(require("scipy.stats").t.ppf((1 + level) / 2, count - 1))


def verdict_of(low: float, high: float, claim: Direction) -> str:
    """Whether an interval is on the claimed side of 0, in a word: see :meth:`Difference.verdict`.

    Example:
        >>> verdict_of(0.1, 0.4, "below 0"), verdict_of(-0.1, math.nan, "below 0")
        ('contrary', 'undecided')
    """
    below, above = high < 0, low > 0  # False for NaN
    if not (below or above):
        return "undecided"
    return "seen" if below == (claim == "below 0") else "contrary"


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
