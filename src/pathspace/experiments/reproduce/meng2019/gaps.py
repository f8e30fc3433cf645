"""The networks of Table 5, and the differences between arms that Figure 4 is about."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from pathspace.experiments.models import build
from pathspace.experiments.reproduce.controls import GSGD, GSGD_NORMALIZED, SGD, SGD_SKELETON
from pathspace.tracing import trace

# What is taken from what, and what the difference is due to.
GAPS = {
    "G-SGD − SGD (the paper's Δ)": (GSGD, SGD),
    "start: SGD from skeleton weights − SGD": (SGD_SKELETON, SGD),
    "space: G-SGD − SGD from skeleton weights": (GSGD, SGD_SKELETON),
    "space: G-SGD from SGD's start − SGD": (GSGD_NORMALIZED, SGD),
}
DELTA, START, SPACE, OWN_START = GAPS
# Table 5: weights and invariant ratio by hidden units per layer.
TABLE5 = {
    8: (536, 1.49e-2),
    16: (1200, 1.33e-2),
    32: (2912, 1.10e-2),
    64: (7872, 8.13e-3),
    128: (23936, 5.35e-3),
    256: (80640, 3.17e-3),
    512: (292352, 1.75e-3),
    1024: (1108992, 9.23e-4),
}


@dataclass(frozen=True)
class Size:
    """The network [49, h, h, 10], as in Table 5."""

    weights: int
    hidden: int

    @property
    def ratio(self) -> float:
        """The invariant ratio H/m."""
        return self.hidden / self.weights


def model_of(width: int) -> str:
    """The network of a width; Table 5 counts no biases."""
    return f"mlp-nobias:49-{width}-{width}-10"


def size_of(width: int) -> Size:
    """The size of the paper's network, counted by tracing it.

    Example:
        >>> size_of(8)
        Size(weights=536, hidden=16)
    """
    network = trace(build(model_of(width)), torch.zeros(1, 49))
    return Size(network.m, network.H)
