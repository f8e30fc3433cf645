"""Trainings of networks that grow: errors by width, and by the rule of when to stop."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pathspace.experiments.reproduce.statistics import (
    Difference,
    Sample,
    metric,
    paired_difference,
)
from pathspace.experiments.training import Outcome
from pathspace.summary.metrics import value

TRAINING = "training error"
CONVERGENCE = "test error at convergence"
ZERO = "test error at zero training error"
EARLY = "test error with early stopping"
RULES = (CONVERGENCE, ZERO, EARLY)


@dataclass(frozen=True, eq=False)
class Sweep:
    """Trainings of one data set over widths.

    Attributes:
        per_unit: weights of a hidden unit: inputs and classes.
        outcomes: by width, in the order of the seeds.
    """

    per_unit: int
    outcomes: Mapping[int, list[Outcome]]

    @property
    def widths(self) -> list[int]:
        """The widths, in their order."""
        return sorted(self.outcomes)

    def sample(self, width: int, curve: str) -> Sample:
        """One of the errors in percent, by seed; NaN where a rule was never met."""
        outcomes = self.outcomes[width]
        if curve == ZERO:
            return Sample(tuple(map(_at_zero, outcomes)))
        name = "train_error" if curve == TRAINING else "test_error"
        return metric(outcomes, name, "best" if curve == EARLY else "final")

    def change(self, start: int, curve: str) -> Difference:
        """From that width to the largest."""
        return paired_difference(self.sample(self.widths[-1], curve), self.sample(start, curve))

    def epochs(self, width: int) -> Sample:
        """How long the trainings are."""
        return Sample(tuple(float(one.final["epoch"]) for one in self.outcomes[width]))

    @property
    def enough(self) -> int | None:
        """The least width with which all seeds reach zero training error."""
        fitting = (width for width in self.widths if not self.sample(width, ZERO).diverged)
        return next(fitting, None)


def _at_zero(outcome: Outcome) -> float:
    """The test error when the training error is zero for the first time."""
    rows = (row for row in outcome.curves if row.get("train_error") == 0)
    return value(next(rows, None), "test_error")
