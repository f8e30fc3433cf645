"""Regularized arms beside those of a comparison: weight decay and the basis-path penalty."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, get_args

from pathspace.experiments.reproduce.cifar.images import Case, Images
from pathspace.experiments.reproduce.controls import (
    GSGD,
    GSGD_NORMALIZED,
    SGD,
    SGD_SKELETON,
    Comparison,
    Rate,
    sgd_and_gsgd,
)
from pathspace.experiments.reproduce.experiment import Plan, side_by_side
from pathspace.experiments.reproduce.statistics import Sample, best_rate
from pathspace.experiments.training import Outcome, Trial

Kind: TypeAlias = Literal["WD", "BPR"]
Lambdas: TypeAlias = Mapping[tuple[str, Rate], float]

RATES: tuple[Rate, ...] = get_args(Rate)
SGD_WD, SGD_BPR, GSGD_BPR = f"{SGD} + WD", f"{SGD} + BPR", f"{GSGD} + BPR"
SKELETON_WD, NORMALIZED_BPR = f"{SGD_SKELETON} + WD", f"{GSGD_NORMALIZED} + BPR"
# Regularized arms: the arm without regularizer, and the regularizer.
REGULARIZED: dict[str, tuple[str, Kind]] = {
    SGD_WD: (SGD, "WD"),
    SGD_BPR: (SGD, "BPR"),
    SKELETON_WD: (SGD_SKELETON, "WD"),
    GSGD_BPR: (GSGD, "BPR"),
    NORMALIZED_BPR: (GSGD_NORMALIZED, "BPR"),
}


@dataclass(frozen=True, eq=False)
class Regularization:
    """A comparison that has the regularized arms too, each with its best λ.

    Attributes:
        comparison: all arms; the best rate of a regularized one is that of its arm without.
        lambdas: λ by regularized arm and kind of rate.
        grid: from which they were chosen.
    """

    comparison: Comparison
    lambdas: Lambdas
    grid: tuple[float, ...]

    def generalization_gap(self, arm: str, rate: Rate) -> Sample:
        """Test error minus training error in percentage points, by seed."""
        test, train = (
            self.comparison.sample(arm, name, rate) for name in ("test_error", "train_error")
        )
        return test - train

    @property
    def at_the_edge(self) -> tuple[str, ...]:
        """Arms whose λ at the common rate is the least or largest: a better one may be beyond."""
        ends = (min(self.grid), max(self.grid))
        return tuple(arm for arm in REGULARIZED if self.lambdas[arm, "common"] in ends)


def regularize(trial: Trial, kind: Kind, lam: float) -> Trial:
    """The trial with weight decay, or with the basis-path penalty in the papers' cheap form.

    G-SGD adds the penalty to the gradient of the values themselves.

    Example:
        >>> base = Trial("mlp:64-8-10", "digits")
        >>> regularize(base, "BPR", 1e-4).penalties
        ('basis-path:0.0001',)
        >>> regularize(sgd_and_gsgd(base)["G-SGD"], "BPR", 1e-4).options["bp_decay"]
        0.0001
    """
    if kind == "WD":
        return replace(trial, weight_decay=lam)
    if trial.optimizer == "gsgd":
        return replace(trial, options={**trial.options, "bp_decay": lam})
    return replace(trial, penalties=(f"basis-path:{lam:g}",))


def regularizations(images: Images) -> Plan[dict[Case, Regularization]]:
    """The comparisons without regularizers, then λ, then the regularized arms.

    λ is chosen on the first data set alone.

    As in the papers λ is chosen at the common rate, by validation error on CIFAR-10, and kept for
    CIFAR-100; and once more at the best rate of the arm without regularizer.
    """
    comparisons = yield from images.comparisons()
    first = [case for case in images.cases if case.data == images.data[0]]
    chosen = yield from side_by_side(
        {case.network: _lambdas(images, case, comparisons[case]) for case in first}
    )
    found = yield from side_by_side(
        {
            case: _trained(images, case, comparisons[case], chosen[case.network])
            for case in images.cases
        }
    )
    return found


def _arm(images: Images, case: Case, arm: str, rate: float, lam: float, seed: int) -> Trial:
    base, kind = REGULARIZED[arm]
    trial = replace(sgd_and_gsgd(images.trial(case))[base], lr=rate, seed=seed)
    return regularize(trial, kind, lam)


def _rate(comparison: Comparison, arm: str, rate: Rate) -> float:
    base, _ = REGULARIZED[arm]
    return comparison.rate_of(base, rate)


def _lambdas(images: Images, case: Case, comparison: Comparison) -> Plan[Lambdas]:
    """λ with the least validation error, by arm and kind of rate."""
    asked = [(arm, rate, lam) for arm in REGULARIZED for rate in RATES for lam in images.lambdas]
    trials = [
        _arm(images, case, arm, _rate(comparison, arm, rate), lam, images.seeds[0])
        for arm, rate, lam in asked
    ]
    if images.held_out is not None:
        split = f"validation_split:{images.held_out}"
        trials = [replace(trial, preprocess=(*trial.preprocess, split)) for trial in trials]
    answers = yield trials
    by: dict[tuple[str, Rate], dict[float, list[Outcome]]] = {}
    for (arm, rate, lam), outcome in zip(asked, answers, strict=True):
        by.setdefault((arm, rate), {})[lam] = [outcome]
    return {place: best_rate(outcomes) for place, outcomes in by.items()}


def _trained(
    images: Images, case: Case, comparison: Comparison, lambdas: Lambdas
) -> Plan[Regularization]:
    asked = [(arm, rate, seed) for rate in RATES for arm in REGULARIZED for seed in images.seeds]
    answers = yield [
        _arm(images, case, arm, _rate(comparison, arm, rate), lambdas[arm, rate], seed)
        for arm, rate, seed in asked
    ]
    found: dict[Rate, dict[str, list[Outcome]]] = {rate: {} for rate in RATES}
    for (arm, rate, _), outcome in zip(asked, answers, strict=True):
        found[rate].setdefault(arm, []).append(outcome)
    bases = {arm: base for arm, (base, _) in REGULARIZED.items()}
    merged = Comparison(
        seeds=comparison.seeds,
        common_rate=comparison.common_rate,
        best_rates={
            **comparison.best_rates,
            **{arm: comparison.best_rates[base] for arm, base in bases.items()},
        },
        common={**comparison.common, **found["common"]},
        best={**comparison.best, **found["best"]},
        tuning={
            **comparison.tuning,
            **{arm: comparison.tuning[base] for arm, base in bases.items()},
        },
    )
    return Regularization(merged, lambdas, images.lambdas)
