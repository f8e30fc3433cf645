"""The bounds of one network along its training, as a job."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from pathspace.experiments.reproduce.yi2019.trained import SKELETON, trained
from pathspace.experiments.training import Outcome
from pathspace.flatnesses import PathCoordinates, ball_bound, error_rate, pac_bayes
from pathspace.flatnesses.measure import flatness

PRIORS = ("zero", "start")


def bounds_of(
    outcomes: Sequence[Outcome],
    data_dir: str | Path | None,
    *,
    images: int,
    pairs: int,
    restarts: int,
    steps: int,
) -> dict[str, Any]:
    """Eq. (8) and Theorem 5.1 of one trained perceptron, beside what they bound.

    Args:
        outcomes: of one training.
        data_dir: the data folder.
        images: training images for Theorem 5.1; Eq. (8) takes all of them.
        pairs: perturbations u and −u per σ of Eq. (8).
        restarts: of the search in the ball of Theorem 5.1.
        steps: gradients of each.

    Returns:
        ``pac-bayes`` by centre of the prior: decimal logarithms of the bound and of KL, σ, and the
        expected flatness there; ``ball``: decimal logarithms of the bound of Theorem 5.1 and of the
        rise that is found in that ball, its radius ε, the largest value over the smallest.
    """
    (outcome,) = outcomes
    one = trained(outcome, data_dir)
    start = PathCoordinates(one.network, SKELETON, state={**one.network.state(), **one.start})
    found: dict[str, Any] = {}
    for prior, centre in zip(PRIORS, (None, start.point), strict=True):
        bayes = pac_bayes(
            one.network, error_rate, one.data(), choice=SKELETON, prior=centre, max_pairs=pairs
        )
        found[prior] = {
            "bound": bayes.bound.log10,
            "KL": bayes.bound.inputs["log10 KL"],
            "sigma": bayes.sigma,
            "flatness": bayes.flatness.value,
            "error": bayes.flatness.standard_error,
        }
    double = trained(outcome, data_dir, dtype=torch.float64)
    data = double.data(images)
    theorem = ball_bound(double.network, data, choice=SKELETON)
    ball = flatness(
        double.network,
        cross_entropy,
        data,
        choice=SKELETON,
        epsilon=theorem.epsilon,
        restarts=restarts,
        steps=steps,
    )
    rise = ball.value * (1 + ball.loss)
    return {
        "pac-bayes": found,
        "ball": {
            "bound": theorem.bound.log10,
            "rise": math.log10(rise) if rise > 0 else -math.inf,
            "epsilon": theorem.epsilon,
            "balance": theorem.balance.ratio,
        },
    }
