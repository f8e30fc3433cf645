r"""The bound of Zheng et al. (2019), by the basis-path norm."""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from pathspace.bounds.bound import Bound, check_sample, decimal, log, log_sum
from pathspace.bounds.chain import fully_connected
from pathspace.errors import PathspaceError
from pathspace.network import Network
from pathspace.norms import basis_path_norm
from pathspace.skeleton import Choice


def basis_path_measure(gamma: float, d: int, H: int, L: int) -> float:
    r"""The decimal logarithm of the basis-path measure Φ.

    .. math:: \Phi(\gamma; d, H, L) = (H e^{2\gamma} + (d-1) H \gamma^2)
        \,(1 + (H-1)\gamma^2 e^{2\gamma})^{L-2}

    It bounds the squared 2-path norm of a network d → H → … → H with L − 1 weight matrices and
    basis-path norm γ. Φ → H as γ → 0.

    Args:
        gamma: the basis-path norm, ≥ 0.
        d: number of inputs.
        H: width of all hidden layers.
        L: depth, counted with the output layer, ≥ 2.

    Example:
        >>> round(10 ** basis_path_measure(0.0, d=784, H=32, L=4), 6)
        32.0

    Reference: Zheng et al. 2019, Eq. (4).
    """
    if gamma < 0 or d < 1 or H < 1 or L < 2:
        raise ValueError("need gamma >= 0, d >= 1, H >= 1 and L >= 2")
    log_gamma2 = 2 * math.log(gamma) if gamma > 0 else -math.inf
    first = log_sum(math.log(H) + 2 * gamma, log(d - 1) + math.log(H) + log_gamma2)
    factor = log_sum(0.0, log(H - 1) + log_gamma2 + 2 * gamma)
    return decimal(first + (L - 2) * factor)


def path_counts(d: int, H: int, L: int) -> list[int]:
    """How many paths have b = 0, 1, …, L − 1 weights off the skeleton.

    The network is d → H → … → H with L − 1 matrices and the papers' skeleton. The H paths with
    b = 0 are the roots; all together are d·H^(L−1).

    Example:
        >>> path_counts(3, 4, 3), 3 * 4**2
        ([4, 20, 24], 48)

    Reference: Zheng et al. 2019, proof of Theorem 2, which counts L − 1 matrices.
    """
    counts = [H]
    for b in range(1, L - 1):
        first_layer = (d - 1) * H * math.comb(L - 2, b - 1) * (H - 1) ** (b - 1)
        counts.append(first_layer + H * math.comb(L - 2, b) * (H - 1) ** b)
    return [*counts, (d - 1) * H * (H - 1) ** (L - 2)]


def basis_path_bound(
    network: Network,
    samples: int,
    largest_input: float,
    *,
    delta: float = 0.05,
    choice: Choice = "modulo",
) -> Bound:
    r"""The bound of Theorem 2, for a network of ReLU layers followed by a linear output layer.

    .. math:: 4\sqrt{\frac{2\ln(4/\delta)}{n}} + 2\sqrt{\frac{2\,\Phi(\gamma; d, H, L)\,(4H)^{L-1}\,
        \|v\|_2^2 \, \max_i\|x_i\|_2^2}{n}}

    γ is the basis-path norm of the network without its output layer v.

    Args:
        network: the traced network.
        samples: n, the number of training samples.
        largest_input: the largest 2-norm of a training input.
        delta: the bound holds with probability at least 1 − δ.
        choice: the skeleton.

    Reference: Zheng et al. 2019, Theorem 2.
    """
    check_sample(samples, delta)
    if largest_input < 0:
        raise ValueError(f"need largest_input >= 0, not {largest_input}")
    hidden, output = without_output_layer(network)
    widths = fully_connected(network).widths
    assumptions = ["assumes binary labels and a fully connected ReLU network without biases"]
    if len(set(widths[1:-1])) > 1:
        assumptions.append(f"assumes equal widths; has {widths}, H is the largest")
    if widths[-1] != 1:
        assumptions.append("assumes one output; v is the Frobenius norm of the output layer")
    if any(edge.from_constant for edge in network.edges):
        assumptions.append("assumes no biases; bias paths are counted in gamma")
    d, H, L = widths[0], max(widths[1:-1]), len(widths) - 1
    gamma = float(basis_path_norm(hidden, choice))
    log_phi = basis_path_measure(gamma, d, H, L) * math.log(10)
    inside = math.log(2) + log_phi + (L - 1) * math.log(4 * H) + 2 * log(output)
    inside += 2 * log(largest_input) - math.log(samples)
    first = math.log(4) + 0.5 * math.log(2 * math.log(4 / delta) / samples)
    total = log_sum(first, math.log(2) + inside / 2)
    inputs = {"gamma": gamma, "d": d, "H": H, "L": L, "n": samples, "|v|": output}
    return Bound("basis-path bound", decimal(total), inputs, tuple(assumptions))


def without_output_layer(network: Network) -> tuple[Network, float]:
    """The network that ends at the last hidden units, and the 2-norm of the output layer."""
    outputs = torch.zeros(len(network.scale), dtype=torch.bool)
    for space in network.spaces:
        if "output" in space.reasons:
            outputs[space.units] = True
    into = [edge for edge in network.edges if bool(outputs[edge.target].all())]
    last = torch.zeros(network.H + 1, dtype=torch.bool)
    for edge in into:
        last[edge.source_scale.reshape(-1)] = True
    last[0] = False
    if not into or not bool(last.any()) or len(network.spaces) < 3:
        raise PathspaceError("the network has no hidden layer in front of a linear output layer")
    kept = ~last
    kept[0] = False
    number = torch.where(kept, kept.long().cumsum(0), 0)
    weights = network.parameters()
    size = math.sqrt(
        sum(float(weights[e.parameter].detach().double().square().sum()) for e in into
            if not e.from_constant)
    )  # fmt: skip
    edges = tuple(
        replace(
            edge,
            target_scale=number[edge.target_scale],
            source_scale=number[edge.source_scale],
        )
        for edge in network.edges
        if edge not in into
    )
    norms = tuple(replace(n, input_scale=number[n.input_scale]) for n in network.normalizations)
    exact = network.exact[kept[1:]]
    scale = number[network.scale]
    hidden = replace(network, edges=edges, scale=scale, exact=exact, normalizations=norms)
    return hidden, size
