"""What a contest of SGD, Path-SGD and G-SGD says, in claims and words."""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import fmean

from pathspace.experiments.reproduce.controls import GSGD, METRICS, SGD, Comparison, Rate
from pathspace.experiments.reproduce.findings import Claim, Findings
from pathspace.experiments.reproduce.meng2019.contestviews import (
    arms_table,
    contest_block,
    contest_figure,
    rates_table,
    sources_table,
)
from pathspace.experiments.reproduce.meng2019.rivals import GAPS, NAMES, PATHSGD
from pathspace.experiments.reproduce.shares import FIELLER, share_of, share_words
from pathspace.experiments.reproduce.statistics import Difference
from pathspace.experiments.reproduce.words import grid_ends

# What the paper says of the first two.
PAPER = {"Path-SGD − SGD": "0 or below", "G-SGD − Path-SGD": "below 0"}


def contest(comparisons: Mapping[str, Comparison], epochs: int) -> Findings:
    """Findings from one comparison per data set."""
    return Findings(
        claims=tuple(_claims(comparisons)),
        statements=tuple(_statements(comparisons, epochs)),
        figures=(contest_figure(comparisons, "best"), contest_figure(comparisons, "common")),
        tables=(arms_table(comparisons), sources_table(comparisons), rates_table(comparisons)),
        blocks=tuple(
            contest_block(data, comparison, name)
            for data, comparison in comparisons.items()
            for name in METRICS
        ),
        deviations=(
            "The paper prints no numbers for this figure: only directions can be compared.",
            "The paper reports “the best result” of the step sizes; here they are chosen by the "
            "error on validation images, and trained with anew on all training images.",
            "The paper has no control: SGD and Path-SGD from G-SGD's initial weights, G-SGD with "
            "the normalised metric from theirs, and all at one step size are ours.",
            FIELLER,
        ),
    )


# Claims and words --------------------------------------------------------------------------------


def _gap(one: Comparison, gap: str, name: str = "test_error", rate: Rate = "best") -> Difference:
    return one.difference(*GAPS[gap], name, rate)


def _claims(comparisons: Mapping[str, Comparison]) -> list[Claim]:
    claims = []
    for data, comparison in comparisons.items():
        for gap, says in PAPER.items():
            for name, label in METRICS.items():
                found = _gap(comparison, gap, name)
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
        gaps = "; ".join(f"{gap} {_gap(one, gap)}" for gap in (*PAPER,
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
    starts = " and ".join(
        f"{arm}'s test error by {_gap(one, start)}" for arm, (_, start) in gains.items()
    )
    same = ", ".join(
        f"{gap.removeprefix('same start: ')} {_gap(one, gap)}"
        for gap in GAPS
        if gap.startswith("same start")
    )
    shares = " ".join(_share(one, arm, *pair) for arm, pair in gains.items())
    return (
        f"{name}: G-SGD's initial weights alone change {starts}. From the same start: {same}. "
        f"{shares}"
    )


def _share(one: Comparison, arm: str, gain: str, start: str) -> str:
    """The start's share of G-SGD's gain on an arm, in a sentence."""
    found = _gap(one, gain)
    if not (math.isfinite(found.mean) and math.isfinite(_gap(one, start).mean)):
        return f"Some trainings diverged: nothing can be said about a gain on {arm}."
    if found.low > 0:
        return f"G-SGD is worse than {arm}, so there is no gain to be explained."
    if not found.high < 0:
        return f"Whether G-SGD gains on {arm} is not decided by these seeds."
    part, whole = (one.gaps(*GAPS[gap], "test_error", "best") for gap in (start, gain))
    gained = f"G-SGD's mean gain on {arm}"
    return f"So {share_words(share_of(part, whole), gained)}."


def _of_the_rate(name: str, one: Comparison) -> str:
    """What one step size for all does to the order."""
    gaps = ("Path-SGD − SGD", "G-SGD − Path-SGD")
    common = {gap: _gap(one, gap, rate="common") for gap in gaps}
    best = {gap: _gap(one, gap) for gap in gaps}
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
    return grid_ends(
        [f"{arm} on {NAMES[data]}" for data, one in comparisons.items() for arm in one.at_the_edge],
        "best step size",
    )
