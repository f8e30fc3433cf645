"""Kendall's rank correlation with a bootstrap interval over configurations."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from pathspace.experiments.reproduce.statistics import LEVEL, Direction, verdict_of

DRAWS = 2000


@dataclass(frozen=True)
class Correlation:
    """A rank correlation, or a difference of two, with its bootstrap interval.

    Attributes:
        tau: Kendall's τ_b, or the difference; NaN where one side is constant.
        low: lower end of the interval.
        high: upper end.
        models: how many points there are.
        configurations: how many clusters of points there are.
    """

    tau: float
    low: float
    high: float
    models: int
    configurations: int

    @property
    def record(self) -> dict[str, float]:
        """All of it, for tables of data."""
        return asdict(self)

    def __str__(self) -> str:
        """The correlation and, in brackets, the interval.

        Example:
            >>> print(kendall([1, 2, 3], [1, 2, 3], "abc"), Correlation(0.5, -0.1, 0.9, 9, 3))
            +1.00 [+1.00, +1.00] +0.50 [-0.10, +0.90]
        """
        if math.isnan(self.tau):
            return "undefined"
        within = "" if math.isnan(self.low) else f" [{self.low:+.2f}, {self.high:+.2f}]"
        return f"{self.tau:+.2f}{within}"

    def verdict(self, claim: Direction) -> str:
        """Whether the whole interval is on the claimed side of 0 (seen), the other, or neither."""
        return verdict_of(self.low, self.high, claim)


def kendall(
    x: Sequence[float],
    y: Sequence[float],
    clusters: Sequence[Hashable],
    *,
    draws: int = DRAWS,
    seed: int = 0,
) -> Correlation:
    r"""Kendall's τ_b between two lists, with a percentile interval of the cluster bootstrap.

    .. math:: \tau_b = \frac{\sum_{i<j} s^x_{ij} s^y_{ij}}
        {\sqrt{\sum_{i<j} |s^x_{ij}| \sum_{i<j} |s^y_{ij}|}}, \qquad
        s^x_{ij} = \mathrm{sign}(x_i - x_j)

    What is drawn, with replacement, are whole clusters: trainings of one configuration with several
    seeds are no independent evidence on what configurations do. A point that is drawn several times
    is tied with itself, and so counts for no pair. All draws are three products of matrices.

    Args:
        x: one number per model.
        y: one number per model.
        clusters: the configuration of each model.
        draws: of the bootstrap.
        seed: of the bootstrap.

    Example:
        >>> found = kendall([1.0, 2.0, 3.0, 4.0], [1.0, 3.0, 2.0, 4.0], [0, 1, 2, 3])
        >>> round(found.tau, 3), found.configurations
        (0.667, 4)
    """
    counts, total = _resamples(clusters, draws, seed)
    return _interval(_tau(x, y, counts), len(x), total)


def kendall_difference(
    x: Sequence[float],
    other: Sequence[float],
    y: Sequence[float],
    clusters: Sequence[Hashable],
    *,
    draws: int = DRAWS,
    seed: int = 0,
) -> Correlation:
    """How much larger Kendall's τ with y is for x than for the other, from the same draws.

    Example:
        >>> found = kendall_difference([1, 2, 3], [3, 2, 1], [1, 2, 3], "abc")
        >>> found.tau
        2.0
    """
    counts, total = _resamples(clusters, draws, seed)
    return _interval(_tau(x, y, counts) - _tau(other, y, counts), len(x), total)


# Helpers -----------------------------------------------------------------------------------------


def _resamples(clusters: Sequence[Hashable], draws: int, seed: int) -> tuple[Tensor, int]:
    """(1 + draws, n) how often each point counts; in the first row once. And how many clusters."""
    numbers = {cluster: k for k, cluster in enumerate(dict.fromkeys(clusters))}
    place = torch.tensor([numbers[cluster] for cluster in clusters], dtype=torch.long)
    total = len(numbers)
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(max(total, 1), (draws, total), generator=generator)
    often = torch.zeros(draws, total, dtype=torch.float64)
    often.scatter_add_(1, drawn, torch.ones_like(drawn, dtype=torch.float64))
    return torch.cat([torch.ones(1, len(place), dtype=torch.float64), often[:, place]]), total


def _tau(x: Sequence[float], y: Sequence[float], counts: Tensor) -> Tensor:
    """τ_b for each row of counts; NaN where one side is constant."""
    first, second = (_signs(values) for values in (x, y))

    def over_pairs(matrix: Tensor) -> Tensor:
        return ((counts @ matrix) * counts).sum(1)

    sizes = over_pairs(first.abs()) * over_pairs(second.abs())
    return over_pairs(first * second) / sizes.sqrt()  # 0/0 is NaN


def _signs(values: Sequence[float]) -> Tensor:
    column = torch.tensor(values, dtype=torch.float64)
    return (column[:, None] - column[None]).sign()


def _interval(found: Tensor, models: int, configurations: int) -> Correlation:
    draws = found[1:][~found[1:].isnan()]
    low = high = math.nan
    if configurations > 2 and len(draws):
        ends = torch.tensor([(1 - LEVEL) / 2, (1 + LEVEL) / 2], dtype=torch.float64)
        low, high = draws.quantile(ends).tolist()
    return Correlation(float(found[0]), low, high, models, configurations)
