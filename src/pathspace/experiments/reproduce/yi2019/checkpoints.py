"""Networks along their training with their bounds, in order."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pathspace.experiments.data.errors import require
from pathspace.experiments.executors import Result
from pathspace.experiments.reproduce.statistics import Sample
from pathspace.experiments.training import Outcome

LARGEST = 1e300  # what a bound beyond all floats is shown as


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A network after so many steps.

    Attributes:
        seed: of its training.
        iterations: steps so far.
        outcome: of the training up to here.
        result: its bounds.
    """

    seed: int
    iterations: int
    outcome: Outcome
    result: Result

    @property
    def train_error(self) -> float:
        """In percent."""
        return 100 * float(self.outcome.final["train_error"])

    @property
    def test_error(self) -> float:
        """In percent."""
        return 100 * float(self.outcome.final["test_error"])

    @property
    def gap(self) -> float:
        """Test error minus training error, in percent."""
        return self.test_error - self.train_error

    @property
    def ball(self) -> Mapping[str, Any]:
        """Theorem 5.1: bound and rise as decimal logarithms, epsilon, balance."""
        found: Mapping[str, Any] = self.result["ball"]
        return found

    def pac_bayes(self, prior: str) -> float:
        """Eq. (8) with a prior, in percent."""
        log10 = float(self.result["pac-bayes"][prior]["bound"])
        return 100 * 10**log10 if log10 < 290 else LARGEST

    def promised(self, prior: str) -> float:
        """What Eq. (8) says that the error of the perturbed network is at most, in percent.

        That is the training error and the bound; beyond 100 % it says nothing.
        """
        return self.train_error + self.pac_bayes(prior)


@dataclass
class Course:
    """All checkpoints from one kind of start.

    Attributes:
        start: in words.
        checkpoints: by seed, then by steps.
    """

    start: str
    checkpoints: list[Checkpoint] = field(default_factory=list)

    def add(self, checkpoint: Checkpoint) -> None:
        """Append one."""
        self.checkpoints.append(checkpoint)

    def of(self, seed: int) -> list[Checkpoint]:
        """Those of one training."""
        return [one for one in self.checkpoints if one.seed == seed]

    def seeds(self) -> list[int]:
        """Of the trainings."""
        return list(dict.fromkeys(one.seed for one in self.checkpoints))

    def last(self) -> list[Checkpoint]:
        """The last of each training."""
        return [self.of(seed)[-1] for seed in self.seeds()]

    def at(self, iterations: int) -> list[Checkpoint]:
        """Those after so many steps."""
        return [one for one in self.checkpoints if one.iterations == iterations]

    def iterations(self) -> list[int]:
        """All numbers of steps."""
        return sorted({one.iterations for one in self.checkpoints})

    def agreement(self, bound: Literal["pac-bayes", "ball"]) -> Sample:
        """Kendall's τ between a bound and the gap along each training; NaN if one is constant."""
        found = []
        for seed in self.seeds():
            line = self.of(seed)
            bounds = [
                one.pac_bayes("start") if bound == "pac-bayes" else float(one.ball["bound"])
                for one in line
            ]
            tau = math.nan
            if len(line) > 1:
                gaps = [one.gap for one in line]
                tau = float(require("scipy.stats").kendalltau(bounds, gaps).statistic)
            found.append(tau)
        return Sample(tuple(found))
