"""Measures in path space; rescaling leaves all of them alone."""

from __future__ import annotations

import math

from pathspace.measures.measure import Measure, Reading, Subject
from pathspace.norms import path_norm

PATHS = "path space"


def path_norm_measure(p: float) -> Measure:
    """The path norm for one exponent."""
    text = "inf" if math.isinf(p) else f"{p:g}"
    return Measure(
        f"path norm (p={text})",
        f"ℓ{'∞' if math.isinf(p) else text} norm of the vector of all path values",
        f"φ_{'∞' if math.isinf(p) else text}",
        PATHS,
        "out/in",
        True,
        lambda s: Reading.of_log(path_norm(s.network, p, log=True, state=s.state)),
    )


def _basis_path_norm(s: Subject) -> Reading:
    norm = s.basis_path_norm
    attained = [f"attained by {' → '.join(norm.path)}"] if norm.path else []
    return Reading.of(norm.value, *attained)


PATH_MEASURES = (
    Measure(
        "margin / path norm",
        "10 % margin divided by the path norm with p = 2",
        "γ/φ_2",
        PATHS,
        "in",
        True,
        lambda s: s.margin_over(float(path_norm(s.network, log=True, state=s.state))),
        "data",
    ),
    Measure(
        "basis-path norm",
        "larger one of the two parts below; depends on the skeleton",
        "φ",
        PATHS,
        "",
        True,
        _basis_path_norm,
    ),
    Measure(
        "basis-path norm, roots",
        "largest |log|v|| of a negative basis path",
        "max |log|v₋||",
        PATHS,
        "",
        True,
        lambda s: Reading.of(s.basis_path_norm.roots),
    ),
    Measure(
        "basis-path norm, positive",
        "largest |v| of a positive basis path",
        "max |v₊|",
        PATHS,
        "out/in",
        True,
        lambda s: Reading.of(s.basis_path_norm.positive),
    ),
)
