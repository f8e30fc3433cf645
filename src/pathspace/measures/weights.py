"""Measures in weight space; rescaling moves all of them."""

from __future__ import annotations

import math

from pathspace.measures.measure import Measure, Reading
from pathspace.network import InputSpec, Network
from pathspace.spectral import spectral_complexity, spectral_norm
from pathspace.tracing.values import leaves
from pathspace.weightnorms import group_norm, max_norm, norm_21, weight_norm

WEIGHTS = "weight space"
AFFORDABLE = 10**8  # weights of convolutions times pixels, for exact spectral norms in a second


def _has_kernels(network: Network) -> bool:
    return any(len(edge.shape) > 2 for edge in network.edges)


def _affordable(network: Network) -> bool | str:
    """Whether exact spectral norms of convolutions take about a second at most."""
    kernels = sum(edge.count for edge in network.edges if len(edge.shape) > 2)
    specs = [leaf for leaf in leaves(network.inputs) if isinstance(leaf, InputSpec)]
    pixels = max((math.prod(spec.shape[2:]) for spec in specs), default=1)
    if kernels * pixels <= AFFORDABLE:
        return True
    return "left out because it takes long for these convolutions; ask for it by its name"


WEIGHT_MEASURES = (
    Measure(
        "weight norm (p=1)",
        "sum of the sizes of all weights and biases",
        "‖w‖₁",
        WEIGHTS,
        "weight",
        False,
        lambda s: Reading.of_log(weight_norm(s.network, 1, log=True, state=s.state)),
    ),
    Measure(
        "weight norm (p=2)",
        "Frobenius norm of all weights and biases",
        "‖w‖₂",
        WEIGHTS,
        "weight",
        False,
        lambda s: Reading.of_log(weight_norm(s.network, 2, log=True, state=s.state)),
    ),
    Measure(
        "group norm (p=1, q=inf)",
        "largest 1-norm of the incoming weights of a unit",
        "μ_{1,∞}",
        WEIGHTS,
        "weight",
        False,
        lambda s: Reading.of_log(group_norm(s.network, 1, math.inf, log=True, state=s.state)),
    ),
    Measure(
        "max norm (p=2)",
        "largest 2-norm of the incoming weights of a unit",
        "μ_{2,∞}",
        WEIGHTS,
        "weight",
        False,
        lambda s: Reading.of_log(max_norm(s.network, 2, log=True, state=s.state)),
    ),
    Measure(
        "(2,1) norm",
        "sum over layers and units of the 2-norms of incoming weights, biases left out",
        "Σ‖Aᵀ‖_{2,1}",
        WEIGHTS,
        "weight",
        False,
        lambda s: Reading.of(sum(float(x) for _, x in norm_21(s.network, state=s.state))),
    ),
    Measure(
        "spectral norm",
        "product of the spectral norms of all layers, convolutions as whole maps",
        "Π‖A‖_σ",
        WEIGHTS,
        "out/in",
        False,
        lambda s: Reading.of_log(s.log_spectral_norm),
        applies=_affordable,
    ),
    Measure(
        "spectral complexity",
        "spectral norm with the (2,1) norms, margin 1 and reference 0",
        "R_A",
        WEIGHTS,
        "out/in",
        False,
        lambda s: Reading.of_log(spectral_complexity(s.network, log=True, state=s.state)),
        applies=_affordable,
    ),
    Measure(
        "kernel spectral norm",
        "product of the spectral norms of all layers, kernels as matrices (out, in·k·k)",
        "Π‖K‖_σ",
        WEIGHTS,
        "out/in",
        False,
        lambda s: Reading.of_log(spectral_norm(s.network, exact=False, log=True, state=s.state)),
        applies=_has_kernels,
    ),
    Measure(
        "kernel spectral complexity",
        "the same with the kernels as matrices (out, in·k·k)",
        "R_K",
        WEIGHTS,
        "out/in",
        False,
        lambda s: Reading.of_log(
            spectral_complexity(s.network, exact=False, log=True, state=s.state)
        ),
        applies=_has_kernels,
    ),
    Measure(
        "margin / spectral norm",
        "10 % margin divided by the spectral norm",
        "γ/Π‖A‖_σ",
        WEIGHTS,
        "in",
        False,
        lambda s: s.margin_over(s.log_spectral_norm),
        "data",
        applies=_affordable,
    ),
)
