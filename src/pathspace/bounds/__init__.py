r"""Generalization bounds, in logarithms: for real networks they are far beyond any float.

Every bound carries the assumptions of its theorem and says what was put in for those that the
network does not meet. A bound above 1 says nothing about a classification error (it is vacuous).
"""

from pathspace.bounds.basis_path import (
    basis_path_bound,
    basis_path_measure,
    path_counts,
    without_output_layer,
)
from pathspace.bounds.bound import Bound
from pathspace.bounds.flatness import pac_bayes_bound, psi_flatness_bound
from pathspace.bounds.rademacher import path_norm_bound, spectral_bound, weight_norm_bound

__all__ = [
    "Bound",
    "basis_path_bound",
    "basis_path_measure",
    "pac_bayes_bound",
    "path_counts",
    "path_norm_bound",
    "psi_flatness_bound",
    "spectral_bound",
    "weight_norm_bound",
    "without_output_layer",
]
