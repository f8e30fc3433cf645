"""Optimizers from balanced and unbalanced weights, each at the step size of the paper's rule."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pathspace.experiments.reproduce.controls import NORMALIZED, SGD_SKELETON, tune
from pathspace.experiments.reproduce.experiment import Plan
from pathspace.experiments.reproduce.statistics import (
    Difference,
    Sample,
    metric,
    paired_difference,
)
from pathspace.experiments.training import Outcome, Trial
from pathspace.summary.metrics import value

SGD, SGD_UNBALANCED = "SGD (balanced)", "SGD (unbalanced)"
ADAGRAD, ADAGRAD_UNBALANCED = "AdaGrad (balanced)", "AdaGrad (unbalanced)"
PATHSGD, PATHSGD_UNBALANCED = "Path-SGD", "Path-SGD (unbalanced)"
GSGD = "G-SGD (balanced)"
PAPER = (SGD, SGD_UNBALANCED, ADAGRAD, ADAGRAD_UNBALANCED, PATHSGD)  # the curves of the figure
CONTROLS = (SGD_SKELETON, GSGD)


def racers(base: Trial, picks: int) -> dict[str, Trial]:
    """The arms that have a step size of their own: the paper's, then the controls.

    Args:
        base: SGD from balanced weights.
        picks: how many draws of hidden units unbalance the weights.

    Example:
        >>> arms = racers(Trial("mlp:64-8-8-10", "digits", init="balanced"), 4)
        >>> arms["AdaGrad (unbalanced)"].init
        'unbalanced:4'
    """
    unbalanced = f"unbalanced:{picks}"
    return {
        SGD: base,
        SGD_UNBALANCED: replace(base, init=unbalanced),
        ADAGRAD: replace(base, optimizer="adagrad"),
        ADAGRAD_UNBALANCED: replace(base, optimizer="adagrad", init=unbalanced),
        PATHSGD: replace(base, optimizer="pathsgd"),
        SGD_SKELETON: replace(base, init="skeleton"),
        GSGD: replace(base, optimizer="gsgd", options={**base.options, **NORMALIZED}),
    }


@dataclass(frozen=True, eq=False)
class Race:
    """One data set, with or without dropout.

    Attributes:
        seeds: in the order of the outcomes.
        rates: the step size of each arm.
        tuning: the outcomes that they were chosen by, by arm and rate.
        outcomes: the final ones, by arm.
    """

    seeds: tuple[int, ...]
    rates: Mapping[str, float]
    tuning: Mapping[str, Mapping[float, list[Outcome]]]
    outcomes: Mapping[str, list[Outcome]]

    def sample(self, arm: str, name: str) -> Sample:
        """A metric at the end; shares in percent."""
        return metric(self.outcomes[arm], name)

    def difference(self, arm: str, other: str, name: str) -> Difference:
        """A metric of one arm minus that of the other, paired by seed."""
        return paired_difference(self.sample(arm, name), self.sample(other, name))

    def apart(self, arm: str, other: str, name: str) -> float:
        """The largest difference of two arms' curves, see :func:`apart`."""
        return apart(self.outcomes[arm], self.outcomes[other], name)

    def epochs_to(self, arm: str, goal: str) -> Sample:
        """Epochs until an arm's training loss is at most the last one of another, by seed.

        Infinite where that does not happen.
        """
        levels = self.sample(goal, "train_loss").values
        pairs = zip(self.outcomes[arm], levels, strict=True)
        return Sample(tuple(_first(one, level) for one, level in pairs))

    @property
    def at_the_edge(self) -> tuple[str, ...]:
        """Arms whose step size is an end of the grid."""
        return tuple(
            arm for arm, tried in self.tuning.items() if self.rates[arm] in (min(tried), max(tried))
        )


def race(
    base: Trial, *, picks: int, seeds: Sequence[int], rates: Sequence[float], validation: int
) -> Plan[Race]:
    """Choose all step sizes with the first seed, then train with all images and seeds.

    Path-SGD runs from unbalanced weights too, at the step size chosen from balanced ones.

    Args:
        base: SGD from balanced weights.
        picks: see :func:`racers`.
        seeds: of the final trainings.
        rates: the grid.
        validation: training images set aside while step sizes are chosen.
    """
    arms = racers(base, picks)
    tuning = yield from tune(arms, seeds=seeds[:1], rates=rates, validation=validation)
    chosen = {arm: reaches_first(tried) for arm, tried in tuning.items()}
    chosen[PATHSGD_UNBALANCED] = chosen[PATHSGD]
    arms[PATHSGD_UNBALANCED] = replace(arms[PATHSGD], init=f"unbalanced:{picks}")
    found = yield [
        replace(trial, lr=chosen[arm], seed=seed) for arm, trial in arms.items() for seed in seeds
    ]
    runs = (found[k : k + len(seeds)] for k in range(0, len(found), len(seeds)))
    return Race(tuple(seeds), chosen, tuning, dict(zip(arms, runs, strict=True)))


def reaches_first(outcomes: Mapping[float, Sequence[Outcome]]) -> float:
    r"""The step size that reaches the least validation error, and of several the fastest.

    .. math:: \eta^* = \arg\min_\eta\, (\min_t e_\eta(t),\ \min\{t : e_\eta(t) = \min_s e_\eta(s)\})

    with the mean validation error e over seeds after t epochs. One that diverged is not chosen,
    unless all did; then it is the first.

    Reference: Neyshabur et al. 2017, section 6.
    """

    def rank(rate: float) -> tuple[float, float]:
        if any(one.status == "diverged" for one in outcomes[rate]):
            return math.inf, math.inf
        rows = zip(*(one.curves for one in outcomes[rate]), strict=False)
        errors = [
            (sum(value(row, "validation_error") for row in at), float(at[0]["epoch"]))
            for at in rows
        ]
        return min(error for error in errors if not math.isnan(error[0]))

    return min(outcomes, key=rank)


def apart(outcomes: Sequence[Outcome], others: Sequence[Outcome], name: str) -> float:
    """The largest difference of a metric between two arms, over all seeds and epochs.

    Infinite if a training of one diverged and that of the other did not.
    """
    gaps = [0.0]
    for one, other in zip(outcomes, others, strict=True):
        if (one.status == "diverged") != (other.status == "diverged"):
            return math.inf
        pairs = zip(one.curves, other.curves, strict=False)
        found = (abs(value(a, name) - value(b, name)) for a, b in pairs)
        gaps += [gap for gap in found if not math.isnan(gap)]
    return max(gaps)


def _first(outcome: Outcome, level: float) -> float:
    losses = ((float(row["epoch"]), value(row, "train_loss")) for row in outcome.curves)
    return next((epoch for epoch, loss in losses if loss <= level), math.inf)
