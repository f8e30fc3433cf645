"""What races on several data sets say about optimizers and starts, in claims and words."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from statistics import fmean
from typing import TypeAlias

from pathspace.experiments.reproduce.controls import SGD_SKELETON
from pathspace.experiments.reproduce.findings import Claim, Findings, directed_claim
from pathspace.experiments.reproduce.neyshabur2017.naming import STANDARDIZED, setting_name
from pathspace.experiments.reproduce.neyshabur2017.race import (
    ADAGRAD,
    ADAGRAD_UNBALANCED,
    GSGD,
    PATHSGD,
    PATHSGD_UNBALANCED,
    SGD,
    SGD_UNBALANCED,
    Race,
    apart,
)
from pathspace.experiments.reproduce.neyshabur2017.racing import (
    METRICS,
    gaps_table,
    levels_table,
    race_block,
    race_figure,
    rates_table,
    speed_table,
)
from pathspace.experiments.reproduce.statistics import Difference, metric
from pathspace.experiments.reproduce.words import grid_ends
from pathspace.experiments.training import Outcome

Key: TypeAlias = tuple[str, float]  # data set and dropout
Races: TypeAlias = Mapping[Key, Race]
Pairs: TypeAlias = Mapping[Key, tuple[Outcome, Outcome]]


def learning(races: Races, precise: Pairs, epochs: int) -> Findings:
    """Findings from one race per data set, with and without dropout.

    Args:
        races: by data set and dropout.
        precise: Path-SGD in double precision from balanced and unbalanced weights, one seed.
        epochs: of each training.
    """
    dropouts = dict.fromkeys(dropout for _, dropout in races)
    return Findings(
        claims=(*_claims(races), *_precise_claims(precise)),
        statements=tuple(_statements(races, precise, epochs)),
        figures=tuple(
            race_figure({d: one for (d, p), one in races.items() if p == dropout}, dropout)
            for dropout in dropouts
        ),
        tables=(levels_table(races), gaps_table(races), speed_table(races), rates_table(races)),
        blocks=tuple(race_block(key, one, "test_error") for key, one in races.items()),
        deviations=(
            "The paper prints no numbers for this figure: only directions can be compared. Its "
            "text says that CIFAR-100 and SVHN are shown with dropout, its caption that none is; "
            "here are both.",
            "“The one that reaches the minimum error faster” is read as the step size with the "
            "least validation error after any epoch, and of equals the one that has it first; it "
            "is chosen with one seed.",
            "Layers have biases, which begin at 0.",
            STANDARDIZED,
            "The controls, SGD from skeleton weights and G-SGD with the normalised metric from "
            "SGD's start, are ours, tuned on the same grid.",
        ),
    )


# Claims ------------------------------------------------------------------------------------------


def _claims(races: Races) -> list[Claim]:
    claims = []
    for key, one in races.items():
        group = setting_name(*key)
        for arm, other in ((PATHSGD, SGD), (PATHSGD, ADAGRAD)):
            for name in ("train_loss", "test_error"):
                gap = one.difference(arm, other, name)
                what = f"{METRICS[name]}, {arm} − {other}"
                claims.append(directed_claim(what, "below 0", gap, group))
        gap = one.difference(SGD_UNBALANCED, SGD, "train_loss")
        what = f"{METRICS['train_loss']}, {SGD_UNBALANCED} − {SGD}"
        claims.append(directed_claim(what, "above 0", gap, group))
        largest = one.apart(PATHSGD, PATHSGD_UNBALANCED, "train_loss")
        what = "Path-SGD: largest difference of training losses, balanced and unbalanced"
        claims.append(Claim(what, 0.0, largest, group=group, digits=2))
    return claims


def _precise_claims(precise: Pairs) -> list[Claim]:
    return [
        Claim(
            setting_name(*key),
            0.0,
            apart(pair[:1], pair[1:], "train_loss"),
            group="Path-SGD: largest difference of training losses, in double precision",
            digits=2,
        )
        for key, pair in precise.items()
    ]


# Words -------------------------------------------------------------------------------------------


def _statements(races: Races, precise: Pairs, epochs: int) -> list[str]:
    seeds = len(next(iter(races.values())).seeds)
    settings = f"{len(races)} settings (data sets, with and without dropout; {seeds} seeds each)"
    return [
        f"Test error after {epochs} epochs, each at its step size by the paper's rule, in "
        f"{settings}: {_won(races, PATHSGD, SGD)}; {_won(races, PATHSGD, ADAGRAD)}.",
        _of_the_speed(races),
        _of_the_balance(races, precise),
        f"Training loss from unbalanced weights: {_won(races, SGD_UNBALANCED, SGD, 'train_loss')}; "
        f"{_won(races, ADAGRAD_UNBALANCED, ADAGRAD, 'train_loss')}.",
        _of_the_rate(races),
        "Path-SGD starts from the very weights that SGD starts from, so no difference between them "
        f"is due to the start. Controls, in test error: {_won(races, SGD_SKELETON, SGD)}; "
        f"{_won(races, GSGD, SGD)}; {_won(races, PATHSGD, GSGD)}.",
        *_edges(races),
    ]


def _won(races: Races, arm: str, other: str, name: str = "test_error") -> str:
    """How often an arm is below or above another, and by how much on average."""
    gaps = [one.difference(arm, other, name) for one in races.values()]
    below = _count(gaps, lambda gap: gap.high < 0)
    above = _count(gaps, lambda gap: gap.low > 0)
    finite = [gap.mean for gap in gaps if math.isfinite(gap.mean)]
    points = " points" if name.endswith("error") else ""
    mean = f", {fmean(finite):+.3g}{points} on average" if finite else ""
    return (
        f"{arm} is below {other} in {below}, above it in {above}, undecided in "
        f"{len(gaps) - below - above} of {len(gaps)}{mean}"
    )


def _count(gaps: list[Difference], holds: Callable[[Difference], bool]) -> int:
    return sum(map(holds, gaps))


def _of_the_speed(races: Races) -> str:
    """How soon Path-SGD has the loss that SGD ends with."""
    found = {
        key: (one.epochs_to(PATHSGD, SGD), one.epochs_to(ADAGRAD, SGD), one.epochs_to(SGD, SGD))
        for key, one in races.items()
    }
    sooner = sum(path.mean < own.mean for path, _, own in found.values())  # False for NaN
    never = [setting_name(*key) for key, (path, _, _) in found.items() if path.diverged]
    means = [path.mean for path, _, _ in found.values() if not path.diverged]
    after = f", after {fmean(means):.3g} epochs on average where all seeds do" if means else ""
    first = (
        f"Path-SGD reaches the training loss that SGD from balanced weights ends with, sooner than "
        f"SGD in {sooner} of {len(races)} settings{after}."
    )
    return f"{first} It does not with all seeds on {', '.join(never)}." if never else first


def _of_the_balance(races: Races, precise: Pairs) -> str:
    """Whether Path-SGD's curves from both starts are one."""
    sizes = {
        (arm, name): max(one.apart(arm, other, name) for one in races.values())
        for arm, other in ((PATHSGD, PATHSGD_UNBALANCED), (SGD, SGD_UNBALANCED))
        for name in ("train_loss", "test_error")
    }
    double = [
        max((apart(pair[:1], pair[1:], name) for pair in precise.values()), default=0.0)
        for name in ("train_loss", "test_error")
    ]
    return (
        "Path-SGD's curves from balanced and from unbalanced weights differ over all settings, "
        f"seeds and epochs by at most {sizes[PATHSGD, 'train_loss']:.2g} in training loss and "
        f"{sizes[PATHSGD, 'test_error']:.2g} points of test error in single precision; in double "
        f"precision (one seed, no dropout) by {double[0]:.2g} and {double[1]:.2g}. SGD's differ by "
        f"up to {sizes[SGD, 'train_loss']:.2g} and {sizes[SGD, 'test_error']:.2g}."
    )


def _of_the_rate(races: Races) -> str:
    """What is left of Path-SGD's gain if it has to take SGD's step size."""
    own, same = [], []
    for one in races.values():
        errors = {
            (arm, rate): metric(found, "validation_error").mean
            for arm in (SGD, PATHSGD)
            for rate, found in one.tuning[arm].items()
        }
        own.append(errors[PATHSGD, one.rates[PATHSGD]] - errors[SGD, one.rates[SGD]])
        same.append(errors[PATHSGD, one.rates[SGD]] - errors[SGD, one.rates[SGD]])
    first = (
        "While step sizes were chosen (one seed), the validation error of Path-SGD minus SGD was "
        f"{_mean(own)} points on average with a step size for each, and {_mean(same)} with SGD's "
        "for both"
    )
    means = [fmean(found) for found in (own, same) if all(map(math.isfinite, found))]
    if len(means) < 2:
        return f"{first}."
    if means[0] >= 0:
        return f"{first}: on average Path-SGD gains nothing here."
    if means[1] >= 0:
        return f"{first}: Path-SGD's gain needs a step size of its own."
    return f"{first}: Path-SGD's gain is there at one step size too."


def _mean(values: list[float]) -> str:
    finite = [number for number in values if math.isfinite(number)]
    lost = f" ({len(values) - len(finite)} diverged)" if len(finite) < len(values) else ""
    return f"{fmean(finite):+.3g}{lost}" if finite else "diverged"


def _edges(races: Races) -> list[str]:
    found: dict[str, list[str]] = {}
    for key, one in races.items():
        for arm in one.at_the_edge:
            found.setdefault(arm, []).append(setting_name(*key))
    told = [
        f"{arm} in {'all settings' if len(where) == len(races) else ', '.join(where)}"
        for arm, where in found.items()
    ]
    return grid_ends(told, "step size", "; ")
