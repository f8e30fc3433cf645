"""What Figure 2 comes to in words, chosen by the numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from statistics import median

from pathspace.experiments.reproduce.zheng2019.capacity import (
    BP,
    BP_LARGEST,
    FLATNESS,
    MARGIN,
    PLOTTED,
    SIZE,
    over_margin,
)
from pathspace.experiments.reproduce.zheng2019.correlation import Correlation
from pathspace.experiments.reproduce.zheng2019.sweeps import (
    DEPTH,
    MEASURES,
    POOLED,
    SAID,
    SWEEPS,
    WIDTH,
    Networks,
    over,
)

Correlations = Mapping[tuple[str, str], Correlation]


def statements(networks: Networks, correlations: Correlations) -> Iterable[str]:
    """One sentence or two on each question, the most important first."""
    yield _who_fits(networks)
    yield _errors(networks)
    yield _of_the_bp_measure(networks, correlations)
    yield _best(correlations)
    yield _controls(correlations)
    yield _of_the_flatness(networks, correlations)
    yield _of_the_skeleton(networks)


def _who_fits(networks: Networks) -> str:
    every = networks.of(POOLED)
    fit = sum(one.fits for one in every)
    missing = [
        f"{place} {sweep.x} ({sum(not one.fits for one in found)} of {len(found)}, training error "
        f"{networks.sample(sweep.name, place, 'train')} %)"
        for sweep in SWEEPS
        for place, found in networks.by_sweep[sweep.name].items()
        if not all(one.fits for one in found)
    ]
    rest = f" Not so: {'; '.join(missing)}." if missing else ""
    return f"{fit} of {len(every)} networks end without a training error.{rest}"


def _errors(networks: Networks) -> str:
    told = []
    for sweep in SWEEPS:
        places = list(networks.by_sweep[sweep.name])
        ends = [networks.sample(sweep.name, place, "test") for place in (places[0], places[-1])]
        least = networks.least(sweep.name)
        at = "" if least is None else f", least with {least:,}"
        told.append(
            f"from {ends[0]} with {places[0]:,} to {ends[1]} with {places[-1]:,} {sweep.x}{at}"
        )
    return f"Test errors (%) go {'; '.join(told)}."


def _of_the_bp_measure(networks: Networks, correlations: Correlations) -> str:
    found = {scope: correlations[over_margin(BP), scope] for scope in SAID}
    told = ", ".join(f"{one} {over(scope)}" for scope, one in found.items())
    sweeps = [sweep.name for sweep in SWEEPS]
    seen = [found[name].verdict("above 0") for name in sweeps]
    ahead = [
        (other, scope)
        for scope in (WIDTH.name, DEPTH.name)
        for other in PLOTTED[1:]
        if networks.advantage(over_margin(BP), over_margin(other), scope).low > 0
    ]
    if ahead:
        words = ", ".join(f"the {other} {over(scope)}" for other, scope in ahead)
        verdict = f"It is ahead of {words}, with an interval above 0."
    else:
        verdict = (
            "Over widths and depths it is ahead of none of the other three with an interval "
            "above 0: that it goes with the gap better than they do is not seen here."
        )
    return (
        f"Kendall's τ between the paper's measure, {over_margin(BP)}, and the gap is {told}; the "
        f"interval is above 0 in {seen.count('seen')} of {len(seen)} sweeps and below 0 in "
        f"{seen.count('contrary')}. {verdict}"
    )


def _best(correlations: Correlations) -> str:
    told = []
    for scope in SAID:
        found = {
            m: correlations[m, scope] for m in MEASURES if math.isfinite(correlations[m, scope].tau)
        }
        if found:
            best = max(found, key=lambda measure: found[measure].tau)
            told.append(f"{best} ({found[best]}) {over(scope)}")
    if not told:
        return "No measure can be ranked: the gap is the same for all networks."
    return f"Of all {len(MEASURES)} measures, the largest τ with the gap has {'; '.join(told)}."


def _controls(correlations: Correlations) -> str:
    """Whether something as simple as a count or the margin does as well."""
    told = []
    for scope in SAID:
        measure = correlations[over_margin(BP), scope]
        simple = {name: correlations[name, scope] for name in (SIZE, MARGIN)}
        better = [f"{n} ({c})" for n, c in simple.items() if abs(c.tau) >= abs(measure.tau)]
        if better:
            told.append(f"{over(scope)} {' and '.join(better)}")
    if not told:
        return (
            f"Neither the number of weights nor {MARGIN} alone has as strong a correlation with "
            f"the gap, of either sign, as {over_margin(BP)}, in any sweep or over all."
        )
    return (
        f"As strong a correlation with the gap as {over_margin(BP)}, of either sign, has without "
        f"any norm of the weights: {'; '.join(told)}."
    )


def _of_the_flatness(networks: Networks, correlations: Correlations) -> str:
    found = {name: correlations[name, POOLED] for name in FLATNESS}
    told = ", ".join(f"{name} {one}" for name, one in found.items())
    every = networks.of(POOLED)
    measured = sum(FLATNESS[0] in one.measures for one in every)
    cut = sum(one.reaches_end for one in every)
    return (
        f"Flatness, over all {measured} networks that it was measured of: τ with the gap is {told} "
        f"(large values are sharp minima). In {cut} networks the ball reaches beyond the end of "
        "path space, where it is cut off."
    )


def _of_the_skeleton(networks: Networks) -> str:
    """What decides the size of Φ."""
    every = [one for one in networks.of(POOLED) if BP in one.measures]
    if not every:
        return "No network could be measured."
    roots = sum(one.by_root for one in every)
    sizes = [one.measures[BP] for one in every]
    shrunk = median(one.measures[BP] - one.measures[BP_LARGEST] for one in every)
    return (
        f"Φ is between 10^{min(sizes):.1f} and 10^{max(sizes):.1f}. In {roots} of {len(every)} "
        "networks its γ is the |log|v|| of one root, a path of skeleton weights that happens to "
        "be small, and Φ grows like a power of e^γ. Another skeleton of the same function, that of "
        f"the largest weights, divides Φ by 10^{shrunk:.1f} (median)."
    )
