"""Bounds of the generalization error, with their assumptions as notes."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

from pathspace import bounds
from pathspace.bounds import Bound
from pathspace.entries import power_of_ten
from pathspace.errors import PathspaceError
from pathspace.measures.measure import Measure, Reading, Subject
from pathspace.performance import InputSizes

BOUNDS = "bounds"


def _reading(bound: Bound, *notes: str) -> Reading:
    vacuous = ["above 1: it says nothing about an error"] if bound.vacuous else []
    about = "; ".join([*notes, *bound.assumptions])
    return Reading(power_of_ten(bound.log10), bound.log10, (*vacuous, about))


def _basis_path_bound(s: Subject) -> Reading:
    if not isinstance(s.choice, str):
        raise PathspaceError(
            'the bound leaves the output layer out, so a given skeleton does not fit; use "modulo"'
        )
    largest = s.on_data.inputs.norm
    return _reading(bounds.basis_path_bound(s.holder, s.n, largest, choice=s.choice))


def _margin_bound(
    bound: Callable[..., Bound], size: Callable[[InputSizes], float], s: Subject
) -> Reading:
    """A bound for the 10 % margin, with the size of the inputs that it speaks of."""
    margin = s.on_data.quantile(0.1)
    if not margin > 0:
        raise PathspaceError(
            "at least a tenth of the samples is misclassified: the 10 % margin is not positive"
        )
    note = f"γ = {margin:.4g} is the 10 % margin"
    return _reading(bound(s.holder, s.n, size(s.on_data.inputs), margin), note)


def _spectral_bound(s: Subject) -> Reading:
    # Of a part of the training samples one knows the mean square, not the sum of squares.
    share = math.sqrt(s.n / s.on_data.samples)
    return _margin_bound(bounds.spectral_bound, lambda inputs: share * inputs.total, s)


BOUND_MEASURES = (
    Measure(
        "basis-path bound",
        "bound of the generalization error by the basis-path norm, δ = 0.05",
        "",
        BOUNDS,
        "",
        "but for the scales of the last hidden layer, whose outgoing weights enter by their norm",
        _basis_path_bound,
        "data",
    ),
    Measure(
        "path-norm bound",
        "margin bound of the generalization error by the path norm with p = 1, δ = 0.05",
        "",
        BOUNDS,
        "",
        True,
        partial(_margin_bound, bounds.path_norm_bound, lambda inputs: inputs.entry),
        "data",
    ),
    Measure(
        "weight-norm bound",
        "margin bound of the generalization error by Frobenius norms, δ = 0.05",
        "",
        BOUNDS,
        "",
        False,
        partial(_margin_bound, bounds.weight_norm_bound, lambda inputs: inputs.norm),
        "data",
    ),
    Measure(
        "spectral bound",
        "margin bound of the generalization error by the spectral complexity, δ = 0.05",
        "",
        BOUNDS,
        "",
        False,
        _spectral_bound,
        "data",
    ),
)
