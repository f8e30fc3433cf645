"""The table of all measures, and how to choose among them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pathspace.entries import Entry, nearest
from pathspace.errors import PathspaceError
from pathspace.measures.behaviour import DATA_MEASURES, NETWORK_MEASURES
from pathspace.measures.bounds import BOUND_MEASURES
from pathspace.measures.flatness import FLATNESS_MEASURES
from pathspace.measures.measure import Measure
from pathspace.measures.paths import PATH_MEASURES, path_norm_measure
from pathspace.measures.weights import WEIGHT_MEASURES
from pathspace.network import Network


class UnknownMeasure(PathspaceError, ValueError):
    """No measure has this name."""


def measures(p: Sequence[float] = (1, 2, math.inf)) -> tuple[Measure, ...]:
    """All measures, in the order of the report.

    Args:
        p: exponents of the path norms.

    Example:
        >>> [measure.name for measure in measures(p=[2]) if measure.group == "path space"]
        ['path norm (p=2)', 'margin / path norm', 'basis-path norm', 'basis-path norm, roots', ...]
    """
    return (
        *NETWORK_MEASURES,
        *DATA_MEASURES,
        *map(path_norm_measure, p),
        *PATH_MEASURES,
        *WEIGHT_MEASURES,
        *FLATNESS_MEASURES,
        *BOUND_MEASURES,
    )


def select(
    wanted: Sequence[str | Measure] | None, network: Network, with_data: bool, p: Sequence[float]
) -> tuple[list[Measure], list[Entry]]:
    """Choose measures by their names.

    Args:
        wanted: names of measures, families or groups, and measures of one's own; ``None`` for all.
        network: what they are for.
        with_data: whether there are data.
        p: exponents of the path norms.

    Returns:
        what to measure, and entries for what is left out with a reason.

    Raises:
        UnknownMeasure: a name that is not known; the message suggests the nearest.
    """
    known = measures(p)
    if isinstance(wanted, str):
        wanted = [wanted]
    own = [one for one in wanted or () if isinstance(one, Measure)]
    names = [one for one in wanted or () if isinstance(one, str)]
    by_name = {one.name for one in known}
    for name in names:
        if not any(name in _labels(one) for one in known):
            raise UnknownMeasure(f"no measure is called {name!r}{nearest(name, by_name)}")
    chosen, skipped = [], []
    for one in known:
        if wanted is not None and not any(name in _labels(one) for name in names):
            continue
        applies = one.applies(network)
        if one.name in names or (applies is None and with_data and one.group in names):
            chosen.append(one)
            continue
        if (one.needs == "data" and not with_data) or applies in (False, None):
            continue
        if applies is True:
            chosen.append(one)
        else:
            skipped.append(one.refusal(str(applies)))
    return [*chosen, *own], skipped


def _labels(one: Measure) -> tuple[str, str, str]:
    """The names by which a measure is chosen: its own, its family's and its group's."""
    return one.name, one.name.partition(" (")[0], one.group
