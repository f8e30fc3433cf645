"""Comparisons of optimizers, with the controls that show where a gain comes from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from pathspace.experiments.reproduce.experiment import Plan
from pathspace.experiments.reproduce.statistics import (
    Difference,
    Sample,
    best_rate,
    metric,
    paired_difference,
)
from pathspace.experiments.training import Outcome, Trial, TrialError

Rate: TypeAlias = Literal["common", "best"]

SGD = "SGD"
SGD_SKELETON = "SGD from skeleton weights"
GSGD = "G-SGD"
GSGD_NORMALIZED = "G-SGD from SGD's start"

ARMS = (SGD, SGD_SKELETON, GSGD, GSGD_NORMALIZED)
METRICS = {"train_loss": "training loss", "test_error": "test error (%)"}

# What is taken from what, by name.
Gaps: TypeAlias = Mapping[str, tuple[str, str]]

# G-SGD as published; skeleton weights are set to 1 by the initialisation, so that SGD from
# skeleton weights starts from the very same ones.
PUBLISHED: dict[str, Any] = {"skeleton": "modulo", "metric": "paper", "roots": "additive"}

# G-SGD in normalised units, so that it can start anywhere; free weights rest as in the papers, so
# that it differs from what is published in as little as possible.
NORMALIZED: dict[str, Any] = {"metric": "diagonal"}


def sgd_and_gsgd(base: Trial) -> dict[str, Trial]:
    """SGD against G-SGD as published, with a control for the start and one for the space.

    Published G-SGD starts from other weights than SGD: its skeleton weights are 1, and so its first
    function is another one. "SGD from skeleton weights" starts there too: what it gains on SGD is
    the start's doing, and what G-SGD gains on *it* is the space's. "G-SGD from SGD's start" (with
    the normalised metric) needs no other start: what it gains on SGD is the space's as well.

    Args:
        base: SGD's trial; its initialisation should be He's, as that of the skeleton is.

    Example:
        >>> arms = sgd_and_gsgd(Trial("mlp:64-8-10", "digits", lr=0.1))
        >>> [(name, trial.optimizer, trial.init) for name, trial in arms.items()]
        [('SGD', 'sgd', 'he'), ('SGD from skeleton weights', 'sgd', 'skeleton'),
         ('G-SGD', 'gsgd', 'skeleton'), ("G-SGD from SGD's start", 'gsgd', 'he')]
    """
    if base.optimizer != "sgd" or base.init != "he":
        raise TrialError(
            f"base: a trial of sgd from init he is needed, not {base.optimizer} from {base.init}"
        )
    return {
        SGD: base,
        SGD_SKELETON: replace(base, init="skeleton"),
        GSGD: replace(
            base, init="skeleton", optimizer="gsgd", options={**base.options, **PUBLISHED}
        ),
        GSGD_NORMALIZED: replace(base, optimizer="gsgd", options={**base.options, **NORMALIZED}),
    }


@dataclass(frozen=True, eq=False)
class Comparison:
    """Optimizers, each at a common rate and at its own best one.

    Attributes:
        seeds: the seeds, in the order of the outcomes.
        common_rate: the same for all.
        best_rates: of each arm, by validation error; none if rates were not tuned.
        common: outcomes at the common rate, by arm.
        best: outcomes at the best rate, by arm.
        tuning: the outcomes that the best rates were chosen by, by arm and rate.
    """

    seeds: tuple[int, ...]
    common_rate: float
    best_rates: Mapping[str, float]
    common: Mapping[str, list[Outcome]]
    best: Mapping[str, list[Outcome]]
    tuning: Mapping[str, Mapping[float, list[Outcome]]]

    @property
    def is_tuned(self) -> bool:
        """Whether each arm has a best rate."""
        return bool(self.best_rates)

    def outcomes(self, arm: str, rate: Rate) -> list[Outcome]:
        """The outcomes of an arm, by seed."""
        return (self.common if rate == "common" else self.best)[arm]

    def lines(self, arms: Sequence[str], rate: Rate) -> dict[str, list[Outcome]]:
        """The outcomes of some arms, for curves."""
        return {arm: self.outcomes(arm, rate) for arm in arms}

    def rate_of(self, arm: str, rate: Rate) -> float:
        """The common rate, or the best one of an arm."""
        return self.common_rate if rate == "common" else self.best_rates[arm]

    def sample(self, arm: str, name: str, rate: Rate) -> Sample:
        """A metric at the end of an arm's trainings; shares in percent."""
        return metric(self.outcomes(arm, rate), name)

    @property
    def at_the_edge(self) -> tuple[str, ...]:
        """Arms whose best rate is the least or largest of the grid: a better one may lie beyond."""
        return tuple(
            arm
            for arm, rate in self.best_rates.items()
            if rate in (min(self.tuning[arm]), max(self.tuning[arm]))
        )

    def gaps(self, arm: str, other: str, name: str, rate: Rate) -> Sample:
        """A metric of one arm minus that of the other, seed by seed."""
        return self.sample(arm, name, rate) - self.sample(other, name, rate)

    def difference(self, arm: str, other: str, name: str, rate: Rate) -> Difference:
        """A metric of one arm minus that of the other, paired by seed."""
        return paired_difference(self.sample(arm, name, rate), self.sample(other, name, rate))


def rate_words(common: float, what: str = "rate", everyone: str = "all") -> dict[Rate, str]:
    """Both kinds of rates in words.

    Args:
        common: the common rate.
        what: it is called.
        everyone: how all arms are called.

    Example:
        >>> rate_words(0.1)
        {'common': 'all at rate 0.1', 'best': 'each at its best rate'}
    """
    return {"common": f"{everyone} at {what} {common:g}", "best": f"each at its best {what}"}


def compare(
    arms: Mapping[str, Trial],
    *,
    seeds: Sequence[int],
    rates: Sequence[float],
    common: float,
    validation: int | None = None,
    tuning_seeds: Sequence[int] | None = None,
    tuning_epochs: int | None = None,
) -> Plan[Comparison]:
    """Train every arm at the common rate and at its best one, over all seeds.

    The best rate is that with the least mean validation error at the end, over the same grid for
    all arms; test examples have no say in it.

    Args:
        arms: a trial each, whose rate and seed are replaced.
        seeds: one training each.
        rates: the grid; without any, arms are trained at the common rate only.
        common: the same rate for all arms.
        validation: training examples to set aside while rates are chosen; afterwards all are
            trained with. By default the trials set some aside themselves, for good.
        tuning_seeds: seeds that rates are chosen by; the first one by default.
        tuning_epochs: length of the trainings that rates are chosen by; by default that of the
            others.

    Raises:
        TrialError: there are no validation examples to choose by.

    Example:
        >>> from pathspace.experiments.reproduce.running import conduct
        >>> steps = ("unit_interval", "flatten")
        >>> arms = sgd_and_gsgd(Trial("mlp:64-8-10", "digits", preprocess=steps, epochs=1))
        >>> plan = compare(arms, seeds=(0, 1), rates=(0.01, 0.1), common=0.01, validation=300)
        >>> comparison = conduct(plan)
        >>> comparison.best_rates["SGD"], len(comparison.common["G-SGD"])
        (0.1, 2)
    """
    chosen_by = seeds[:1] if tuning_seeds is None else tuning_seeds
    tuning: dict[str, dict[float, list[Outcome]]] = {}
    if rates:
        tried = arms
        if tuning_epochs is not None:
            tried = {name: replace(trial, epochs=tuning_epochs) for name, trial in arms.items()}
        tuning = yield from tune(tried, seeds=chosen_by, rates=rates, validation=validation)
    best = {arm: best_rate(by_rate) for arm, by_rate in tuning.items()}
    wanted = [(arm, common) for arm in arms] + list(best.items())
    trained = yield [
        replace(arms[arm], lr=rate, seed=seed) for arm, rate in wanted for seed in seeds
    ]
    runs = [trained[k : k + len(seeds)] for k in range(0, len(trained), len(seeds))]
    return Comparison(
        seeds=tuple(seeds),
        common_rate=common,
        best_rates=best,
        common=dict(zip(arms, runs[: len(arms)], strict=True)),
        best=dict(zip(best, runs[len(arms) :], strict=True)),
        tuning=tuning,
    )


def tune(
    arms: Mapping[str, Trial],
    *,
    seeds: Sequence[int],
    rates: Sequence[float],
    validation: int | None = None,
) -> Plan[dict[str, dict[float, list[Outcome]]]]:
    """Train every arm at every rate, with validation examples to choose by.

    Args:
        arms: as for :func:`compare`.
        seeds: those that rates are chosen by.
        rates: the grid.
        validation: as for :func:`compare`.

    Returns:
        outcomes by arm and rate, in the order of the seeds.

    Raises:
        TrialError: there are no validation examples.
    """
    cases = [(arm, rate, seed) for arm in arms for rate in rates for seed in seeds]
    held_out = {name: _with_validation(trial, validation) for name, trial in arms.items()}
    found = yield [replace(held_out[arm], lr=rate, seed=seed) for arm, rate, seed in cases]
    tuning: dict[str, dict[float, list[Outcome]]] = {name: {} for name in arms}
    for (arm, rate, _), outcome in zip(cases, found, strict=True):
        tuning[arm].setdefault(rate, []).append(outcome)
    return tuning


def _with_validation(trial: Trial, count: int | None) -> Trial:
    if count is not None:
        if not trial.preprocess:
            raise TrialError("preprocess: name the steps, so that validation_split can follow them")
        return replace(trial, preprocess=(*trial.preprocess, f"validation_split:{count}"))
    if not any(step.startswith("validation_split") for step in trial.preprocess):
        raise TrialError(
            "there are no validation examples to choose rates by; say validation=, or put "
            "validation_split into preprocess"
        )
    return trial
