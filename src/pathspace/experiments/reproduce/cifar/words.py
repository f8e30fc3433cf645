"""What comparisons say about a gain and where it comes from, in words chosen by the numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from pathspace.experiments.data import find_source
from pathspace.experiments.reproduce.cifar.images import Case, Images
from pathspace.experiments.reproduce.cifar.presets import PAPER_REGULARIZED
from pathspace.experiments.reproduce.cifar.regularizing import REGULARIZED, Regularization
from pathspace.experiments.reproduce.controls import Comparison, Rate
from pathspace.experiments.reproduce.shares import share_of, share_words
from pathspace.experiments.reproduce.statistics import Difference
from pathspace.experiments.reproduce.words import grid_ends, listed

MARGIN = 3  # points of test error: closer to guessing than this, nothing was learned


@dataclass(frozen=True)
class Question:
    """Four arms that tell a gain of the space from one of the start and of the rate.

    Attributes:
        gaining: the arm that the paper says is better.
        baseline: than this one.
        moved: the baseline from the other's initial weights.
        unmoved: an arm of the same space from the baseline's initial weights.
    """

    gaining: str
    baseline: str
    moved: str
    unmoved: str

    def gap(self, comparison: Comparison, rate: Rate) -> Difference:
        """What the paper compares, in test error."""
        return comparison.difference(self.gaining, self.baseline, "test_error", rate)


def overview(comparisons: Mapping[Case, Comparison], question: Question) -> str:
    """How many comparisons are as the paper says, at the common and at the best rates."""
    seeds = len(next(iter(comparisons.values())).seeds)
    common = next(iter(comparisons.values())).common_rate
    counted: dict[Rate, str] = {}
    for rate in ("common", "best"):
        found = [question.gap(one, rate).verdict("below 0") for one in comparisons.values()]
        counted[rate] = (
            f"lower in {found.count('seen')}, higher in {found.count('contrary')} and not to be "
            f"told apart in {found.count('undecided')} of {len(found)} comparisons"
        )
    return (
        f"Judged by 95 % confidence intervals over {seeds} seeds, the test error of "
        f"{question.gaining} is, compared with {question.baseline}, {counted['common']} at the "
        f"common rate {common:g}; with the best rate for each, {counted['best']}."
    )


def attribution(case: Case, comparison: Comparison, question: Question) -> str:
    """The gap of one case, and what of it is due to the start, the space and the rate."""

    def gap(one: str, other: str) -> Difference:
        return comparison.difference(one, other, "test_error", "common")

    delta, best = (question.gap(comparison, rate) for rate in ("common", "best"))
    start = gap(question.moved, question.baseline)
    share = _share(comparison, question)
    rates = ", ".join(
        f"{arm} {comparison.best_rates[arm]:g}" for arm in (question.baseline, question.gaining)
    )
    return (
        f"{case.title}, rate {comparison.common_rate:g}: {question.gaining} − {question.baseline} "
        f"is {delta} points of test error: {_judged(delta)}. {question.baseline} from the other's "
        f"initial weights already differs by {start}{share}. From the same initial "
        f"weights the difference is {gap(question.gaining, question.moved)}; {question.unmoved} − "
        f"{question.baseline} is {gap(question.unmoved, question.baseline)}. At the best rates "
        f"({rates}) {question.gaining} − {question.baseline} is {best}{_of_the_rate(delta, best)}."
    )


def edges(comparisons: Mapping[Case, Comparison], arms: Sequence[str]) -> list[str]:
    """Where the grid of rates may have been too small."""
    counts = {arm: sum(arm in one.at_the_edge for one in comparisons.values()) for arm in arms}
    total = len(comparisons)
    found = [
        arm if total == 1 else f"{arm} ({number} of {total} networks)"
        for arm, number in counts.items()
        if number
    ]
    return grid_ends(found, separator="; ")


def unlearned(comparisons: Mapping[Case, Comparison], arms: Sequence[str]) -> list[str]:
    """Arms that are no better than guessing, or diverged: comparisons with them are no gains."""
    found = []
    for case, one in comparisons.items():
        for arm in arms:
            rates = {f"{one.common_rate:g}": "common", f"{one.best_rates[arm]:g}": "best"}
            for shown, rate in rates.items():
                errors = one.sample(arm, "test_error", cast(Rate, rate))
                if errors.diverged or errors.mean > guessing(case) - MARGIN:
                    percent = "" if errors.diverged else " %"
                    found.append(f"{arm} at rate {shown} ({case.title}: {errors}{percent})")
    if not found:
        return []
    return [
        f"Within {MARGIN} points of guessing, or diverged, so that differences from these only say "
        f"that the other learns at that rate: {'; '.join(found)}."
    ]


def guessing(case: Case) -> float:
    """The test error (%) of guessing."""
    return 100 - 100 / find_source(case.data).classes


def lambda_edges(found: Mapping[Case, Regularization]) -> list[str]:
    """Where the grid of λ may have been too small."""
    places = [f"{arm} ({case.title})" for case, one in found.items() for arm in one.at_the_edge]
    if not places:
        return []
    if len(places) == len(found) * len(REGULARIZED):
        return ["λ is at an end of its grid for every arm, so that a better one may exist."]
    return [
        "λ at the common rate is at an end of its grid, so that a better one may exist, for "
        f"{', '.join(places)}."
    ]


def _judged(gap: Difference) -> str:
    return {
        "seen": "a gain, as the paper says",
        "contrary": "a loss, contrary to the paper",
        "undecided": "no difference that these seeds could tell from chance",
    }[gap.verdict("below 0")]


def _share(comparison: Comparison, question: Question) -> str:
    """How much of a gain the start alone explains."""
    start, gain = (
        comparison.gaps(arm, question.baseline, "test_error", "common")
        for arm in (question.moved, question.gaining)
    )
    if question.gap(comparison, "common").verdict("below 0") != "seen":
        return ""
    return f": {share_words(share_of(start, gain), 'the gain')}"


def _of_the_rate(common: Difference, best: Difference) -> str:
    """What becomes of the difference when each arm has its own rate."""
    before, after = common.verdict("below 0"), best.verdict("below 0")
    if before == "seen":
        if not abs(best.mean) >= abs(common.mean) / 2:
            return ": most of the gain at the common rate is a matter of the rate"
        if after == "seen":
            return ": the gain remains when each has its own rate"
        return ": a gain that these seeds cannot tell from chance any more"
    if after == "seen":
        return ": a gain that the common rate does not show"
    return ": no gain either" if after == "undecided" else ": a loss"


def regularizer_deviations(settings: Images) -> tuple[str, ...]:
    """How the regularizers differ from the papers'."""
    return (
        f"λ is the best of {listed(settings.lambdas)} by validation error "
        "of the first seed"
        + (
            " (papers: {0.1, 0.2, 0.5} × 10^−α, α = 3, 4, 5, 6)."
            if len(settings.lambdas) < len(PAPER_REGULARIZED.lambdas)
            else ", the papers' grid."
        )
        + " At best rates it is chosen anew, and the rate is that of the arm without regularizer.",
        "BPR is the cheap form of Zheng et al., in which skeleton weights get no gradient; its λ1 "
        "and λ2 are equal. The papers do not say how it treats batch norms: for SGD it is that of "
        "the network whose batch norms are folded into weights, for G-SGD that of the values "
        "that G-SGD trains.",
    )
