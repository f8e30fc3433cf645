"""The paper's words on pairs of networks beside our numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias

from pathspace.experiments.executors import Result
from pathspace.experiments.reproduce.findings import Claim, directed_claim
from pathspace.experiments.reproduce.signs import SignTest
from pathspace.experiments.reproduce.statistics import Sample, accuracy, metric, paired_difference
from pathspace.experiments.reproduce.yi2019.effort import KINDS, SPACES
from pathspace.experiments.reproduce.yi2019.pairs import (
    MEASURES,
    WEIGHT,
    Pair,
    flatter_is_better,
    log_ratio,
)
from pathspace.experiments.training import Outcome

ACCURACY = (87.78, 86.3)  # printed in Figure 3, in percent
SURE = 0.05  # of the sign test: what counts as decided

Trained: TypeAlias = Sequence[tuple[Outcome, Outcome]]


def accuracies_of(trained: Trained) -> tuple[Sample, Sample]:
    """Test accuracies (%) of small and large batch."""
    small, large = (accuracy([pair[k] for pair in trained]) for k in (0, 1))
    return small, large


def accuracy_claims(
    names: tuple[str, ...], trained: Trained, accuracies: tuple[Sample, Sample]
) -> list[Claim]:
    """What the paper prints beside Figure 3."""
    group = "Figure 3: both networks"
    small, large = accuracies
    gap = paired_difference(small, large)
    losses = [metric([pair[k] for pair in trained], "train_loss") for k in (0, 1)]
    return [
        *(
            Claim(f"test accuracy (%), {name}", paper, ours, group=group, digits=4)
            for name, paper, ours in zip(names, ACCURACY, accuracies, strict=True)
        ),
        directed_claim("test accuracy, small − large batch", "above 0", gap, group),
        *(
            Claim(f"training loss, {name}", "below 0.001", loss, _below(loss, 0.001), group)
            for name, loss in zip(names, losses, strict=True)
        ),
    ]


def _below(sample: Sample, limit: float) -> str:
    return "seen" if all(value < limit for value in sample.values) else "not reached"


def sharper_claims(pairs: Sequence[Pair]) -> list[Claim]:
    """Differences in flatness, and how often the flatter network generalizes better."""
    claims = []
    for measure in MEASURES:
        gap = log_ratio(pairs, measure)
        group = "Figure 3: log₁₀ of large over small batch (the paper measures no number)"
        paper = "above 0" if measure not in WEIGHT else "not said"
        verdict = gap.verdict("above 0") if measure not in WEIGHT else ""
        claims.append(Claim(measure, paper, gap, verdict, group))
    for measure in MEASURES:
        test = flatter_is_better(pairs, measure)
        count = test.negative + test.positive
        group = "“Flatter generalizes better”: pairs in which it is so (sign test)"
        paper = "all" if measure not in WEIGHT else "not said"
        ours = f"{test.positive} of {count}, p = {test.p:.2g}"
        claims.append(Claim(measure, paper, ours, decided(test), group))
    return claims


def moved_claims(moved: Sequence[Result]) -> list[Claim]:
    """How far the rescaling moved flatness in both spaces."""
    return [
        Claim(
            f"{name}-flatness: largest relative change",
            0.0 if space == "paths" else "above 0",
            max(changes_of(moved, space), default=math.nan),
            group="Theorems 3.2 and 4.1: both networks rescaled at random",
            digits=3,
        )
        for space, name in SPACES.items()
    ]


def decided(test: SignTest) -> str:
    """Whether a sign test shows that flatter is better, the contrary, or neither."""
    if test.p >= SURE:
        return "undecided"
    return "seen" if test.positive > test.negative else "contrary"


def changes_of(moved: Sequence[Result], space: str) -> list[float]:
    """Relative changes of all kinds in a space under the rescaling."""
    found = []
    for result in moved:
        for kind in KINDS:
            before, after = (result[when][space][kind]["value"] for when in ("before", "after"))
            found.append(abs(after / before - 1) if before else math.nan)
    return found
