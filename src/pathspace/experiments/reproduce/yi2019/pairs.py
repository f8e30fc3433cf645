"""Pairs of networks, trained with a small and with a large batch from the same initial weights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pathspace.experiments.data.errors import require
from pathspace.experiments.executors import Result
from pathspace.experiments.reproduce.signs import SignTest, sign_test
from pathspace.experiments.reproduce.statistics import Difference, Sample, metric, paired_difference
from pathspace.experiments.reproduce.yi2019.effort import KINDS, SPACES
from pathspace.experiments.reproduce.yi2019.measuring import picture_of
from pathspace.experiments.training import Outcome
from pathspace.losslandscape import Landscape

HEIGHT = "height of the landscape"


def batch_name(batch: int) -> str:
    """How a network is called in pictures.

    Example:
        >>> batch_name(2048)
        'batch 2,048'
    """
    return f"batch {batch:,}"


def measure_name(space: str, kind: str) -> str:
    """How a flatness is called.

    Example:
        >>> measure_name("paths", "ball")
        'PSI-flatness, ball'
    """
    return f"{SPACES['paths' if space == 'paths' else 'weights']}-flatness, {kind}"


PSI = tuple(measure_name("paths", kind) for kind in KINDS)
WEIGHT = tuple(measure_name("weights", kind) for kind in KINDS)
MEASURES = (*PSI, HEIGHT, *WEIGHT)  # those in basis-path space first


@dataclass(frozen=True, eq=False)
class Pair:
    """Two networks of one seed: the small batch's first.

    Attributes:
        outcomes: of both trainings.
        measured: flatness of both.
        drawn: landscapes of both.
        roots: the least root of each.
    """

    outcomes: tuple[Outcome, Outcome]
    measured: tuple[Result, Result]
    drawn: Result
    roots: tuple[float, float]

    def values(self, measure: str) -> tuple[float, float]:
        """A measure of both: flatness, or the mean change of the loss over the landscape."""
        if measure == HEIGHT:
            first, second = (mean_change(one) for one in self.landscapes())
            return first, second
        space, kind = next(
            (space, kind) for space in SPACES for kind in KINDS
            if measure_name(space, kind) == measure
        )  # fmt: skip
        first, second = (float(one[space][kind]["value"]) for one in self.measured)
        return first, second

    def landscapes(self) -> list[Landscape]:
        """The landscapes of both."""
        return [picture_of(name, kept) for name, kept in self.drawn.values.items()]


def mean_change(landscape: Landscape) -> float:
    """The mean over the grid of how far the loss is from that of the network; NaN without points.

    Points where the chart has ended have no loss, and do not count.
    """
    inside = landscape.losses[~landscape.outside]
    return float((inside - landscape.center).abs().mean()) if len(inside) else math.nan


def both(pairs: Sequence[Pair], measure: str) -> tuple[Sample, Sample]:
    """A measure of small and large batch, over seeds."""
    small, large = zip(*(pair.values(measure) for pair in pairs), strict=True)
    return Sample(small), Sample(large)


def log_ratio(pairs: Sequence[Pair], measure: str) -> Difference:
    """log₁₀ of a measure of the large batch over that of the small one, paired by seed."""
    small, large = (
        Sample(tuple(math.log10(value) if value > 0 else math.nan for value in one.values))
        for one in both(pairs, measure)
    )
    return paired_difference(large, small)


def follows_roots(pairs: Sequence[Pair], measure: str) -> float:
    """Kendall's τ between a measure and the least root, over all networks; NaN if one is constant.

    At −1 the network with the smaller least root is always the sharper one.
    """
    values = [value for pair in pairs for value in pair.values(measure)]
    roots = [root for pair in pairs for root in pair.roots]
    return float(require("scipy.stats").kendalltau(values, roots).statistic)


def error_rates(pairs: Sequence[Pair]) -> tuple[Sample, Sample]:
    """Test errors (%) of small and large batch, over seeds."""
    small, large = (metric([p.outcomes[k] for p in pairs], "test_error") for k in (0, 1))
    return small, large


def flatter_is_better(pairs: Sequence[Pair], measure: str) -> SignTest:
    """In how many pairs the flatter network has the larger test error (below 0), or the smaller.

    The sign of each pair is that of the difference in flatness times that in test error.
    """
    small, large = error_rates(pairs)
    errors = [b - a for a, b in zip(small.values, large.values, strict=True)]
    sharper = [b - a for a, b in (pair.values(measure) for pair in pairs)]
    return sign_test(
        [math.copysign(1, e * s) if e * s else 0.0 for e, s in zip(errors, sharper, strict=True)]
    )
