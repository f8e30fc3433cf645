"""What Figure 2 comes to, in claims: which measures go with the generalization gap."""

from __future__ import annotations

from collections.abc import Iterable

from pathspace.experiments.reproduce.findings import Claim, Findings, directed_claim
from pathspace.experiments.reproduce.statistics import Direction
from pathspace.experiments.reproduce.zheng2019.capacity import (
    BP,
    PATH,
    PLOTTED,
    SPECTRAL,
    WEIGHT,
    over_margin,
)
from pathspace.experiments.reproduce.zheng2019.predictors import Correlations, statements
from pathspace.experiments.reproduce.zheng2019.sweeps import (
    DEPTH,
    LABELS,
    MEASURES,
    POOLED,
    SAID,
    SWEEPS,
    WIDTH,
    Networks,
    Sweep,
    over,
)
from pathspace.experiments.reproduce.zheng2019.sweepviews import (
    correlations_figure,
    correlations_table,
    logarithms_figure,
    networks_table,
    panels_figure,
)

LEAST = {WIDTH.name: 512.0, DEPTH.name: 3.0}  # the places with the least test error, by the text
FITS_FROM = 32.0  # hidden units per layer
NOT_MEASURED = "not measured"


def consistency(networks: Networks, deviations: tuple[str, ...]) -> Findings:
    """Findings from all trained and measured networks."""
    correlations = {
        (measure, scope): networks.correlation(measure, scope)
        for measure in MEASURES
        for scope in SAID
    }
    return Findings(
        claims=tuple(_claims(networks, correlations)),
        statements=tuple(statements(networks, correlations)),
        figures=(
            panels_figure(networks),
            logarithms_figure(networks),
            correlations_figure(correlations),
        ),
        tables=(correlations_table(correlations), networks_table(networks)),
        deviations=deviations,
    )


# Claims ------------------------------------------------------------------------------------------


def _claims(networks: Networks, correlations: Correlations) -> Iterable[Claim]:
    for sweep in SWEEPS:
        group = f"Figure 2 ({', '.join(sweep.panels)}): {sweep.x}"
        yield _fitting(networks, sweep, group)
        yield from _places(networks, sweep, group)
        yield from _trends(networks, sweep, group)
        for measure in PLOTTED if sweep == LABELS else (BP,):
            found = correlations[over_margin(measure), sweep.name]
            what = f"{over_margin(measure)}, τ with the gap"
            yield directed_claim(what, "above 0", found, group)
    for scope in (WIDTH.name, DEPTH.name, POOLED):
        for other in PLOTTED[1:]:
            found = networks.advantage(over_margin(BP), over_margin(other), scope)
            group = "τ with the gap: BP measure − other, both divided by the squared margin"
            what = f"{other}, {over(scope)}"
            yield directed_claim(what, "above 0", found, group)


def _fitting(networks: Networks, sweep: Sweep, group: str) -> Claim:
    """That networks reach zero training error."""
    if sweep == WIDTH:
        fit = [
            place
            for place in networks.by_sweep[sweep.name]
            if all(
                one.fits
                for wider, found in networks.by_sweep[sweep.name].items()
                if wider >= place
                for one in found
            )
        ]
        ours: float | str = float(min(fit)) if fit else "none"
        return Claim("units from which all fit the training set", FITS_FROM, ours, group=group)
    found = networks.of(sweep.name)
    count = sum(one.fits for one in found)
    verdict = "seen" if count == len(found) else "contrary"
    said = f"{count} of {len(found)}"
    return Claim("networks without training errors", "all", said, verdict, group)


def _places(networks: Networks, sweep: Sweep, group: str) -> Iterable[Claim]:
    """Where test error and Φ are least."""
    if sweep == LABELS:
        return
    least = networks.least(sweep.name)
    what = f"{sweep.x} with the least mean test error"
    yield Claim(what, LEAST[sweep.name], _place(least), group=group)
    if sweep == WIDTH:
        least = networks.least(sweep.name, over_margin(BP))
        what = f"{sweep.x} with the least {over_margin(BP)}"
        yield Claim(what, LEAST[sweep.name], _place(least), group=group)


def _trends(networks: Networks, sweep: Sweep, group: str) -> Iterable[Claim]:
    """What grows or falls along a sweep, by the paper's text."""
    directions: dict[str | None, Direction] = {None: "above 0"}
    if sweep == WIDTH:
        directions = {WEIGHT: "above 0", SPECTRAL: "above 0", PATH: "below 0"}
    elif sweep == DEPTH:
        directions = {WEIGHT: "above 0", SPECTRAL: "above 0"}
    for measure, direction in directions.items():
        name = None if measure is None else over_margin(measure)
        found = networks.trend(sweep.name, name)
        what = f"{name or 'test error'}, τ with the {_varied(sweep)}"
        yield directed_claim(what, direction, found, group)


def _place(place: int | None) -> float | str:
    return NOT_MEASURED if place is None else float(place)


def _varied(sweep: Sweep) -> str:
    return {LABELS: "number of labels", WIDTH: "width", DEPTH: "depth"}[sweep]
