"""Trained networks of the three sweeps of Figure 2, and how measures go with the gap."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pathspace.experiments.executors import Result
from pathspace.experiments.reproduce.statistics import Sample
from pathspace.experiments.reproduce.zheng2019.capacity import (
    CAPACITIES,
    FLATNESS,
    MARGIN,
    SIZE,
    over_margin,
)
from pathspace.experiments.reproduce.zheng2019.correlation import (
    Correlation,
    kendall,
    kendall_difference,
)
from pathspace.experiments.training import Outcome
from pathspace.summary.metrics import value

POOLED = "all"
MEASURES = (*CAPACITIES, *map(over_margin, CAPACITIES), MARGIN, SIZE, *FLATNESS)


@dataclass(frozen=True)
class Sweep:
    """One column of Figure 2.

    Attributes:
        name: of the sweep.
        panels: of the figure.
        x: what is varied, for axes.
        log_x: logarithmic axis.
    """

    name: str
    panels: tuple[str, str]
    x: str
    log_x: bool = False


SWEEPS = (
    Sweep("labels", ("a", "b"), "random labels"),
    Sweep("width", ("c", "d"), "hidden units per layer", log_x=True),
    Sweep("depth", ("e", "f"), "hidden layers"),
)
LABELS, WIDTH, DEPTH = SWEEPS
SAID = {LABELS.name: "random labels", WIDTH.name: "widths", DEPTH.name: "depths", POOLED: "all"}


def over(scope: str) -> str:
    """A sweep, or all networks, in a sentence.

    Example:
        >>> over("width"), over(POOLED)
        ('over widths', 'over all networks')
    """
    return "over all networks" if scope == POOLED else f"over {SAID[scope]}"


@dataclass(frozen=True)
class Trained:
    """One trained network.

    Attributes:
        outcome: of its training.
        measures: by name, see :func:`.capacity.capacities`.
        by_root: whether a root attains the basis-path norm.
        reaches_end: whether the ball of the flatness is cut off by the end of path space.
    """

    outcome: Outcome
    measures: Mapping[str, float]
    by_root: bool = False
    reaches_end: bool = False

    @property
    def configuration(self) -> tuple[str, ...]:
        """What it has in common with the trainings from other seeds."""
        return self.outcome.trial.model, *self.outcome.trial.preprocess

    def error(self, split: str) -> float:
        """In percent, at the end."""
        return value(self.outcome.final, f"{split}_error")

    @property
    def gap(self) -> float:
        """Test error minus training error, absolute, in percentage points."""
        return abs(self.error("test") - self.error("train"))

    @property
    def fits(self) -> bool:
        """Whether the training error is zero, as it was seen at the end."""
        return self.outcome.final.get("train_error") == 0.0


@dataclass(frozen=True, eq=False)
class Networks:
    """All networks, by sweep and place; a configuration may belong to two sweeps.

    Attributes:
        by_sweep: name of the sweep, value of what is varied, then one network per seed.
    """

    by_sweep: Mapping[str, Mapping[int, list[Trained]]]

    def of(self, scope: str) -> list[Trained]:
        """Those of a sweep, or all of them, each once."""
        if scope != POOLED:
            return [one for networks in self.by_sweep[scope].values() for one in networks]
        found = (one for places in self.by_sweep.values() for ns in places.values() for one in ns)
        return list({one.outcome.trial: one for one in found}.values())

    def sample(self, sweep: str, place: int, split: str) -> Sample:
        """The errors (%) of all seeds at one place."""
        return Sample(tuple(one.error(split) for one in self.by_sweep[sweep][place]))

    def correlation(self, measure: str, scope: str) -> Correlation:
        """Of a measure with the gap."""
        having = _having(self.of(scope), measure)
        return kendall(*_lists(having, measure), _clusters(having))

    def advantage(self, measure: str, other: str, scope: str) -> Correlation:
        """By how much a measure's correlation with the gap is above another's, same networks."""
        having = _having(self.of(scope), measure, other)
        first, gaps = _lists(having, measure)
        second, _ = _lists(having, other)
        return kendall_difference(first, second, gaps, _clusters(having))

    def trend(self, sweep: str, measure: str | None = None) -> Correlation:
        """Of a measure, or of the test error, with what the sweep varies."""
        names = () if measure is None else (measure,)
        found = [
            (place, one.error("test") if measure is None else one.measures[measure])
            for place, networks in self.by_sweep[sweep].items()
            for one in _having(networks, *names)
        ]
        places = [place for place, _ in found]
        return kendall([value for _, value in found], [float(place) for place in places], places)

    def relative(self, measure: str, sweep: str) -> dict[int, Sample]:
        """A capacity at each place, divided by its largest mean over the sweep."""
        logs = {
            place: [one.measures[measure] for one in _having(networks, measure)]
            for place, networks in self.by_sweep[sweep].items()
        }
        top = max((log for found in logs.values() for log in found), default=0.0)
        scaled = {
            place: Sample(tuple(10.0 ** (log - top) for log in found))
            for place, found in logs.items()
            if found
        }
        largest = max((sample.mean for sample in scaled.values()), default=1.0)
        return {
            place: Sample(tuple(number / largest for number in sample.values))
            for place, sample in scaled.items()
        }

    def logarithms(self, measure: str, sweep: str) -> dict[int, Sample]:
        """The decimal logarithm of a capacity at each place."""
        return {
            place: Sample(tuple(one.measures[measure] for one in having))
            for place, networks in self.by_sweep[sweep].items()
            if (having := _having(networks, measure))
        }

    def least(self, sweep: str, measure: str | None = None) -> int | None:
        """The place with the least mean of a measure's logarithm, or of the test error."""
        if measure is None:
            found = {k: self.sample(sweep, k, "test") for k in self.by_sweep[sweep]}
        else:
            found = self.logarithms(measure, sweep)
        means = {k: sample.mean for k, sample in found.items() if math.isfinite(sample.mean)}
        return min(means, key=lambda place: means[place]) if means else None


def networks_of(
    places: Mapping[str, Mapping[int, Iterable[tuple[Outcome, Result]]]],
) -> Networks:
    """The networks from outcomes and what was measured of them."""
    return Networks(
        {
            sweep: {
                place: [
                    Trained(outcome, one["measures"], one["by root"], one["reaches end"])
                    for outcome, one in found
                ]
                for place, found in by_place.items()
            }
            for sweep, by_place in places.items()
        }
    )


# Helpers -----------------------------------------------------------------------------------------


def _having(networks: Iterable[Trained], *measures: str) -> list[Trained]:
    """Those that have the measures and a gap."""
    return [
        one
        for one in networks
        if math.isfinite(one.gap)
        and all(math.isfinite(one.measures.get(name, math.nan)) for name in measures)
    ]


def _lists(networks: Sequence[Trained], measure: str) -> tuple[list[float], list[float]]:
    return [one.measures[measure] for one in networks], [one.gap for one in networks]


def _clusters(networks: Sequence[Trained]) -> list[tuple[str, ...]]:
    return [one.configuration for one in networks]
