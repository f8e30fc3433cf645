r"""The measures of Figure 2 of one trained perceptron, as decimal logarithms.

With the d matrices :math:`W_i` of a perceptron without biases, of :math:`h_i` units each, these are

============== =====================================================================================
weight norm    :math:`\prod_i 4\|W_i\|_F^2`
path norm      :math:`\Omega^2`, the sum of the squares of all path values
spectral norm  :math:`\prod_i h_i \|W_i\|_\sigma^2`
BP measure     :math:`\Phi(\gamma; d, H, L)` of the basis-path norm γ without the output layer
============== =====================================================================================

and each of them divided by the square of the margin, the 5th percentile over the training set.

What of this is in the papers: Φ is Eq. (4) of Zheng et al., and Ω is defined in their section
"Preliminaries" as in Eq. (5) of Neyshabur et al. (2017, Path-SGD) with p = 2. Of the others, Zheng
et al. print no formula. Their "Empirical Verification" names the sources (weight norm: Evgeniou,
Pontil and Poggio 2000; spectral norm: Bartlett, Foster and Telgarsky 2017), says that the settings
are those of "Neyshabur et al. 2017", and speaks of ":math:`\Pi_i h_i` in spectral norm", the factor
that is here too. That this source is Neyshabur, Bhojanapalli, McAllester and Srebro, "Exploring
generalization in deep learning", and the form of both norms with their factors, are our reading and
not checked against its text. Its published code takes the same percentile of margins, and the
products of both norms without 4 and :math:`h_i`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from pathspace.bounds import basis_path_measure, without_output_layer
from pathspace.experiments.data import Split
from pathspace.experiments.training import Classification, Outcome, prepare_step, prepare_task
from pathspace.flatnesses.coordinates import Space
from pathspace.flatnesses.measure import flatness
from pathspace.flatnesses.result import Kind
from pathspace.network import Network
from pathspace.norms import BasisPathNorm, basis_path_norm, path_norm
from pathspace.performance import performance
from pathspace.skeleton import Choice
from pathspace.spectral import spectral_norm
from pathspace.tracing import trace

BP, WEIGHT, PATH, SPECTRAL = PLOTTED = ("BP measure", "weight norm", "path norm", "spectral norm")
BP_LARGEST = "BP measure, largest skeleton"
PATH_WIDTHS = "path norm with widths"
CAPACITIES = (*PLOTTED, BP_LARGEST, PATH_WIDTHS)
SIZE, MARGIN = "number of weights", "1 / margin²"
KINDS: tuple[Kind, ...] = ("ball", "trace", "expected")
SPACES: dict[Space, str] = {"paths": "PSI", "weights": "weight"}
FLATNESS = tuple(f"{kind} flatness, {name}" for name in SPACES.values() for kind in KINDS)
CHOICES: tuple[Choice, Choice] = ("modulo", "largest")
MARGIN_SHARE = 0.05
CHUNK = 4096


def over_margin(measure: str) -> str:
    """The name of a capacity divided by the squared margin."""
    return f"{measure} / margin²"


def capacities(
    outcomes: Sequence[Outcome],
    data_dir: str | Path | None,
    *,
    images: int,
    largest: int,
    epsilon: float,
    sigma: float,
) -> dict[str, Any]:
    """Measure one trained perceptron; without any measures if it diverged.

    Args:
        outcomes: of one trial.
        data_dir: the data folder.
        images: of the training set for the flatness.
        largest: number of weights up to which the flatness is measured.
        epsilon: radius of the ball, in basis-path values and in weights.
        sigma: standard deviation of the perturbations of the expected flatness.

    Returns:
        ``measures``: by name, capacities as decimal logarithms, flatness as it is. A measure is not
        there where it does not exist: without a positive margin, what is divided by it.
        ``by root``: whether a root attains the basis-path norm.
    """
    (outcome,) = outcomes
    if outcome.status == "diverged":
        return {"measures": {}, "by root": False, "reaches end": False}
    task = prepare_task(outcome.trial, data_dir)
    assert isinstance(task, Classification)
    model = prepare_step(outcome.trial, task).model
    model.load_state_dict(dict(outcome.weights))
    model.double()
    train = task.dataset.train
    network = trace(model, train.inputs[:1].double())
    seen = performance(network, cross_entropy, train.loader(CHUNK), dtype=torch.float64)
    margin = seen.quantile(MARGIN_SHARE)
    hidden, _ = without_output_layer(network)
    norm, other = (basis_path_norm(hidden, choice) for choice in CHOICES)
    found = _capacities(network, norm, other)
    measures = dict(found)
    if margin > 0:
        squared = 2 * math.log10(margin)
        measures |= {over_margin(name): value - squared for name, value in found.items()}
        measures[MARGIN] = -squared
    measures[SIZE] = math.log10(network.m)
    reaches_end = False
    if network.m <= largest:
        part = train.select(torch.arange(min(images, len(train))))
        further, reaches_end = _flatness(network, part, epsilon, sigma)
        measures |= further
    return {
        "measures": measures,
        "by root": norm.roots >= norm.positive,
        "reaches end": reaches_end,
    }


def _capacities(network: Network, norm: BasisPathNorm, other: BasisPathNorm) -> dict[str, float]:
    """From the basis-path norms with skeletons by position and of largest weights."""
    matrices = [p for p in network.model.state_dict().values() if p.dim() == 2]
    widths = sum(math.log10(len(matrix)) for matrix in matrices)
    sizes = {"d": matrices[0].shape[1], "H": max(map(len, matrices[:-1])), "L": len(matrices)}
    fours = len(matrices) * math.log10(4)
    frobenius = sum(math.log10(float(matrix.norm())) for matrix in matrices)
    paths = 2 * float(path_norm(network, 2, log=True)) / math.log(10)
    spectral = 2 * float(spectral_norm(network, log=True)) / math.log(10)
    return {
        BP: basis_path_measure(norm.value, **sizes),
        WEIGHT: 2 * frobenius + fours,
        PATH: paths,
        SPECTRAL: spectral + widths,
        BP_LARGEST: basis_path_measure(other.value, **sizes),
        PATH_WIDTHS: paths + widths + fours,
    }


def _flatness(
    network: Network, split: Split, epsilon: float, sigma: float
) -> tuple[dict[str, float], bool]:
    """All kinds in both spaces, and whether the ball in path space is cut off by its end."""
    options: Mapping[Kind, dict[str, Any]] = {
        "ball": {"epsilon": epsilon, "restarts": 1, "steps": 10},
        "trace": {"rtol": 0.1, "max_probes": 24, "rank": 4},
        "expected": {"sigma": sigma, "rtol": 0.1, "max_pairs": 16},
    }
    found: dict[str, float] = {}
    reaches_end = False
    for space, name in SPACES.items():
        for kind in KINDS:
            measured = flatness(
                network,
                cross_entropy,
                (split.inputs, split.targets),
                space=space,
                kind=kind,
                dtype=torch.float64,
                **options[kind],
            )
            found[f"{kind} flatness, {name}"] = measured.value
            reaches_end = reaches_end or bool(measured.details.get("reaches_end", False))
    return found, reaches_end
