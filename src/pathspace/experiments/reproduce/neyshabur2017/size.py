"""What happens to training and test error as a network grows, in claims and words."""

from __future__ import annotations

import math
from collections.abc import Mapping

from pathspace.experiments.reproduce.findings import Claim, Findings
from pathspace.experiments.reproduce.neyshabur2017.growth import (
    CONVERGENCE,
    EARLY,
    RULES,
    TRAINING,
    Sweep,
)
from pathspace.experiments.reproduce.neyshabur2017.naming import NAMES
from pathspace.experiments.reproduce.neyshabur2017.sizeviews import (
    size_block,
    size_figure,
    size_table,
)
from pathspace.experiments.reproduce.statistics import Difference

ENOUGH = 32  # units that give zero training error on MNIST, section 2


def effect_of_size(sweeps: Mapping[str, Sweep]) -> Findings:
    """Findings from one sweep per data set."""
    return Findings(
        claims=tuple(claim for data, sweep in sweeps.items() for claim in _claims(data, sweep)),
        statements=tuple(text for data, one in sweeps.items() for text in _statements(data, one)),
        figures=(size_figure(sweeps),),
        tables=(size_table(sweeps),),
        blocks=tuple(size_block(data, sweep) for data, sweep in sweeps.items()),
        deviations=("No optimizers are compared here, so there is nothing to be controlled for.",),
    )


# Claims and words --------------------------------------------------------------------------------


def _claims(data: str, sweep: Sweep) -> list[Claim]:
    group, claims, enough = NAMES[data], [], sweep.enough
    if data == "mnist":
        found: float | str = "none" if enough is None else enough
        claims.append(Claim("least H with zero training error", ENOUGH, found, group=group))
        if ENOUGH in sweep.outcomes:
            error = sweep.sample(ENOUGH, TRAINING)
            claims.append(Claim(f"training error (%), H = {ENOUGH}", 0.0, error, group=group))
    for curve in (CONVERGENCE, EARLY):
        if enough is None or enough == sweep.widths[-1]:
            gap: Difference | str = "no smaller H reaches zero training error"
            verdict, start = "undecided", "least H with zero training error"
        else:
            gap = sweep.change(enough, curve)
            verdict, start = gap.verdict("below 0"), f"H = {enough}"
        what = f"{curve} (%), H = {sweep.widths[-1]} minus {start}"
        claims.append(Claim(what, "below 0", gap, verdict, group))
    return claims


def _statements(data: str, sweep: Sweep) -> list[str]:
    widths, enough, name = sweep.widths, sweep.enough, NAMES[data]
    if enough is None:
        error = sweep.sample(widths[-1], TRAINING)
        return [
            f"{name}: no network reaches zero training error with all seeds (H = {widths[-1]}: "
            f"{error} %), so what happens beyond cannot be said.",
            _of_the_largest(name, sweep),
        ]
    if enough == widths[-1]:
        first = f"{name}: only the largest network, H = {enough}, reaches zero training error."
        return [first, _of_the_largest(name, sweep)]
    changes = {curve: sweep.change(enough, curve) for curve in RULES}
    told = "; ".join(f"{curve} {change}" for curve, change in changes.items())
    return [
        f"{name}: H = {enough} is the least width with zero training error for all seeds. From "
        f"there to H = {widths[-1]} the errors change by (percentage points, with the 95 % "
        f"confidence interval of paired differences): {told}. {_verdict(changes[CONVERGENCE])}",
        _of_the_largest(name, sweep),
    ]


def _verdict(change: Difference) -> str:
    if change.high < 0:
        return "So the test error goes on falling past zero training error, as the paper says."
    if change.low > 0:
        return "So the test error rises past zero training error, other than the paper says."
    return "So whether the test error goes on falling is not decided by these seeds."


def _of_the_largest(name: str, sweep: Sweep) -> str:
    """Whether the error goes up again at the largest networks."""
    means = {width: sweep.sample(width, CONVERGENCE).mean for width in sweep.widths}
    finite = {width: mean for width, mean in means.items() if math.isfinite(mean)}
    largest = sweep.widths[-1]
    if largest not in finite:
        return f"{name}: trainings of the largest network diverged."
    least = min(finite, key=lambda width: finite[width])
    where = (
        "the least of all widths"
        if least == largest
        else f"the least is {sweep.sample(least, CONVERGENCE)} % at H = {least}"
    )
    return (
        f"{name}: the test error at convergence of the largest network, with "
        f"{largest * sweep.per_unit:,} weights, is {sweep.sample(largest, CONVERGENCE)} % "
        f"({where}); with early stopping {sweep.sample(largest, EARLY)} %."
    )
