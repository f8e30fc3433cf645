"""What a contest of SGD, Path-SGD and G-SGD says, in claims and words."""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import fmean

from pathspace.experiments.reproduce.controls import GSGD, SGD, Comparison
from pathspace.experiments.reproduce.findings import Claim, Findings
from pathspace.experiments.reproduce.meng2019.contestviews import (
    arms_table,
    learning_block,
    learning_figure,
    rates_table,
    sources_table,
)
from pathspace.experiments.reproduce.meng2019.gaps import METRICS
from pathspace.experiments.reproduce.meng2019.rivals import GAPS, NAMES, PATHSGD, gap_of
from pathspace.experiments.reproduce.statistics import Difference

# What the paper says of the first two.
PAPER = {"Path-SGD − SGD": "0 or below", "G-SGD − Path-SGD": "below 0"}


def contest(comparisons: Mapping[str, Comparison], epochs: int) -> Findings:
    """Findings from one comparison per data set."""
    return Findings(
        claims=tuple(_claims(comparisons)),
        statements=tuple(_statements(comparisons, epochs)),
        figures=(learning_figure(comparisons, "best"), learning_figure(comparisons, "common")),
        tables=(arms_table(comparisons), sources_table(comparisons), rates_table(comparisons)),
        blocks=tuple(
            learning_block(data, comparison, name)
            for data, comparison in comparisons.items()
            for name in METRICS
        ),
        deviations=(
            "The paper prints no numbers for this figure: only directions can be compared.",
            "The paper reports “the best result” of the step sizes; here they are chosen by the "
            "error on validation images, and trained with anew on all training images.",
            "The paper has no control: SGD and Path-SGD from G-SGD's initial weights, G-SGD with "
            "the normalised metric from theirs, and all at one step size are ours.",
        ),
    )


# Claims and words --------------------------------------------------------------------------------


def _claims(comparisons: Mapping[str, Comparison]) -> list[Claim]:
    claims = []
    for data, comparison in comparisons.items():
        for gap, says in PAPER.items():
            for name, label in METRICS.items():
                found = gap_of(comparison, gap, name, "best")
                group = f"Figure 5: {NAMES[data]}, each at its best step size"
                verdict = _verdict(found, says)
                claims.append(Claim(f"{label}, {gap}", says, found, verdict, group))
    return claims


def _verdict(found: Difference, says: str) -> str:
    if says == "0 or below" and found.low <= 0 <= found.high:
        return "no difference seen"
    return found.verdict("below 0")


def _statements(comparisons: Mapping[str, Comparison], epochs: int) -> list[str]:
    told = []
    for data, one in comparisons.items():
        errors = ", ".join(f"{one.sample(arm, 'test_error', 'best')} % by {arm} (step size "
                           f"{one.best_rates[arm]:g})" for arm in (SGD, PATHSGD, GSGD))  # fmt: skip
        gaps = "; ".join(f"{gap} {gap_of(one, gap, 'test_error', 'best')}" for gap in (*PAPER,
                         "G-SGD − SGD"))  # fmt: skip
        told.append(
            f"{NAMES[data]}: after {epochs} epochs, each at its best step size, the test error is "
            f"{errors}. Differences in percentage points, with the 95 % confidence interval over "
            f"{len(one.seeds)} seeds: {gaps}."
        )
        told.append(_of_the_start(NAMES[data], one))
        told.append(_of_the_rate(NAMES[data], one))
    return [*told, *_edges(comparisons)]


def _of_the_start(name: str, one: Comparison) -> str:
    """How much of what G-SGD gains its other initial weights explain."""
    gains = {
        PATHSGD: ("G-SGD − Path-SGD", "start: Path-SGD from skeleton weights − Path-SGD"),
        SGD: ("G-SGD − SGD", "start: SGD from skeleton weights − SGD"),
    }
    found = {
        arm: tuple(gap_of(one, gap, "test_error", "best") for gap in pair)
        for arm, pair in gains.items()
    }
    starts = " and ".join(f"{arm}'s test error by {start}" for arm, (_, start) in found.items())
    same = ", ".join(
        f"{gap.removeprefix('same start: ')} {gap_of(one, gap, 'test_error', 'best')}"
        for gap in GAPS
        if gap.startswith("same start")
    )
    shares = " ".join(_share(arm, gain, start) for arm, (gain, start) in found.items())
    return (
        f"{name}: G-SGD's initial weights alone change {starts}. From the same start: {same}. "
        f"{shares}"
    )


def _share(arm: str, gain: Difference, start: Difference) -> str:
    """The start's share of G-SGD's gain on an arm, in a sentence."""
    if not (math.isfinite(gain.mean) and math.isfinite(start.mean)):
        return f"Some trainings diverged: nothing can be said about a gain on {arm}."
    if gain.low > 0:
        return f"G-SGD is worse than {arm}, so there is no gain to be explained."
    if not gain.high < 0:
        return f"Whether G-SGD gains on {arm} is not decided by these seeds."
    share = start.mean / gain.mean
    if share > 0.5:
        return (
            f"So {100 * share:.0f} % of G-SGD's mean gain on {arm} come from the initial weights, "
            "not from the space."
        )
    if share <= 0:
        return f"So none of G-SGD's gain on {arm} comes from the initial weights."
    return (
        f"So {100 * share:.0f} % of G-SGD's mean gain on {arm} come from the initial weights; most "
        "of it does not."
    )


def _of_the_rate(name: str, one: Comparison) -> str:
    """What one step size for all does to the order."""
    gaps = ("Path-SGD − SGD", "G-SGD − Path-SGD")
    common = {gap: gap_of(one, gap, "test_error", "common") for gap in gaps}
    best = {gap: gap_of(one, gap, "test_error", "best") for gap in gaps}
    told = "; ".join(f"{gap} {found}" for gap, found in common.items())
    first = f"{name}: with step size {one.common_rate:g} for all instead, {told}. "
    means = [found.mean for gaps_ in (common, best) for found in gaps_.values()]
    if not all(map(math.isfinite, means)):
        return f"{first}Some trainings diverged at that step size."
    sizes = [fmean(abs(found.mean) for found in gaps_.values()) for gaps_ in (common, best)]
    told = (
        f"The gaps are {sizes[1]:.3g} points on average at the best step sizes, {sizes[0]:.3g} at"
    )
    if sizes[1] < sizes[0] / 2:
        return f"{first}{told} the common one: most of what that shows is a matter of the rate."
    return f"{first}{told} the common one."


def _edges(comparisons: Mapping[str, Comparison]) -> list[str]:
    found = [
        f"{arm} on {NAMES[data]}" for data, one in comparisons.items() for arm in one.at_the_edge
    ]
    if not found:
        return []
    return [f"The best step size is at an end of the grid, so that a better one may exist, for "
            f"{', '.join(found)}."]  # fmt: skip
