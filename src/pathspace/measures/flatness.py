"""Flatness of the minimum, in basis-path values and in weights: large is sharp."""

from __future__ import annotations

from functools import partial

import torch

from pathspace.errors import PathspaceError
from pathspace.flatnesses.coordinates import Space
from pathspace.flatnesses.measure import flatness
from pathspace.flatnesses.result import Kind
from pathspace.measures.measure import Measure, Reading, Subject

FLATNESS = "flatness"


def _flatness(space: Space, kind: Kind, s: Subject) -> Reading:
    if s.loss is None or s.data is None:
        raise PathspaceError("needs data")
    found = flatness(
        s.network, s.loss, s.data, space=space, kind=kind, state=s.state, dtype=torch.float64
    )
    notes = []
    if found.standard_error:
        notes.append(f"standard error {found.standard_error:.2g}")
    if space == "paths":
        notes.append('skeleton "largest", on which the value depends')
    return Reading.of(float(found), *notes)


_KINDS: tuple[tuple[Kind, str, str], ...] = (
    ("ball", "largest relative rise of the loss within 0.05", "F_ball"),
    ("trace", "trace of the Hessian of the loss", "F_trace"),
    ("expected", "mean rise of the loss under Gaussian noise", "F_exp"),
)
_SPACES: tuple[tuple[Space, str], ...] = (
    ("paths", "in basis-path values"),
    ("weights", "in weights"),
)
FLATNESS_MEASURES = tuple(
    Measure(
        f"{kind} flatness ({space})",
        f"{about}, {where}",
        symbol,
        FLATNESS,
        "",
        space == "paths",
        partial(_flatness, space, kind),
        "data",
        lambda _: None,  # it takes long: ask for it
    )
    for kind, about, symbol in _KINDS
    for space, where in _SPACES
)
