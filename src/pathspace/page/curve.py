"""Curves of numbers, and their mean and spread over repetitions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev


@dataclass(frozen=True)
class Curve:
    """Points in the order of ``x``; a value that is not finite leaves a gap.

    Attributes:
        name: what the legend says.
        x: where the points are.
        y: their values.
        low: the lower edge of the band around them; empty for no band.
        high: the upper edge.
        counts: how many repetitions each point is the mean of; empty for one each.
    """

    name: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    counts: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if len(self.x) != len(self.y):
            raise ValueError(f"{self.name}: {len(self.x)} places and {len(self.y)} values")
        for given in (self.low, self.high, self.counts):
            if given and len(given) != len(self.x):
                raise ValueError(f"{self.name}: {len(self.x)} places and {len(given)} of the band")

    def records(self) -> tuple[dict[str, float | int | str], ...]:
        """The points as rows of a table."""
        columns = {"x": self.x, "y": self.y, "low": self.low, "high": self.high}
        named = {key: values for key, values in {**columns, "count": self.counts}.items() if values}
        return tuple(
            {"curve": self.name, **dict(zip(named, point, strict=True))}
            for point in zip(*named.values(), strict=True)
        )


def mean_curve(name: str, runs: Sequence[Sequence[tuple[float, float]]]) -> Curve:
    r"""The mean over runs at each x, within one standard deviation.

    .. math:: \bar y(x) = \frac1n \sum_i y_i(x), \qquad \bar y(x) \pm
        \sqrt{\tfrac1{n-1} \sum_i (y_i(x) - \bar y(x))^2}

    A run that ended early counts only where it has points, and ``counts`` says so. One value that
    is not finite makes the mean not finite: a run that diverged is not hidden by the others.

    Args:
        name: what the legend says.
        runs: the points (x, y) of each run.

    Returns:
        The curve; without a band if there is a single run.

    Example:
        >>> curve = mean_curve("sgd", [[(0, 1.0), (1, 3.0)], [(0, 3.0), (1, 5.0), (2, 6.0)]])
        >>> curve.y, curve.counts
        ((2.0, 4.0, 6.0), (2, 2, 1))
        >>> round(curve.high[0] - curve.y[0], 4)
        1.4142
    """
    found: dict[float, list[float]] = {}
    for run in runs:
        for x, y in run:
            found.setdefault(x, []).append(y)
    xs = tuple(sorted(found))
    means = tuple(fmean(found[x]) if _finite(found[x]) else math.nan for x in xs)
    if len(runs) < 2:
        return Curve(name, xs, means)
    spreads = [stdev(found[x]) if len(found[x]) > 1 and _finite(found[x]) else math.nan for x in xs]
    low = tuple(mean - spread for mean, spread in zip(means, spreads, strict=True))
    high = tuple(mean + spread for mean, spread in zip(means, spreads, strict=True))
    return Curve(name, xs, means, low, high, tuple(len(found[x]) for x in xs))


def _finite(values: Sequence[float]) -> bool:
    return all(map(math.isfinite, values))
