r"""Bounds around the flatness of the loss in the space of basis-path values.

They take numbers, not networks: whatever measured the flatness and the values hands them over.
"""

from __future__ import annotations

import math

from pathspace.bounds.bound import Bound, check_sample, decimal, log, log_sum


def pac_bayes_bound(
    expected_flatness: float,
    squared_norm: float,
    sigma: float,
    samples: int,
    delta: float = 0.05,
    *,
    grid: int = 1,
) -> Bound:
    r"""The PAC-Bayes bound of the loss of the perturbed network beyond the training loss.

    .. math:: \mathbb{E}_u[l(v+u)] - \hat l(v) \le F_{\text{expected}}
        + 4\sqrt{\frac1n\Big(\frac{\|v\|^2}{2\sigma^2} + \ln\frac{2n}{\delta}\Big)}

    with :math:`u \sim N(0, \sigma^2 I)` and the prior :math:`N(0, \sigma^2 I)` on the basis-path
    values v, whose Kullback–Leibler divergence is :math:`\|v\|^2/(2\sigma^2)`. A prior must not
    depend on the data: if σ is the best one of several, say how many were tried and δ is divided
    by their number.

    Args:
        expected_flatness: :math:`|\mathbb{E}_u \hat l(v+u) - \hat l(v)| \ge 0`.
        squared_norm: :math:`\|v\|^2`, or the squared distance from where the prior is centred.
        sigma: σ > 0.
        samples: n, the number of training samples.
        delta: the bound holds with probability at least 1 − δ.
        grid: among how many values, fixed in advance, σ was chosen.

    Example:
        >>> bound = pac_bayes_bound(0.1, squared_norm=2.0, sigma=1.0, samples=10_000)
        >>> round(10**bound.log10, 4)  # 0.1 + 4 √((1 + ln 400,000) / 10,000)
        0.2491

    Reference: Yi et al. 2019, Eq. (8).
    """
    check_sample(samples, delta)
    if not sigma > 0 or grid < 1 or not (expected_flatness >= 0 and squared_norm >= 0):
        raise ValueError(
            "need sigma > 0, grid >= 1, expected_flatness >= 0 and squared_norm >= 0, not "
            f"{sigma}, {grid}, {expected_flatness} and {squared_norm}"
        )
    log_divergence = log(squared_norm) - math.log(2) - 2 * math.log(sigma)
    confidence = math.log(2 * samples) - math.log(delta / grid)
    spread = 0.5 * (log_sum(log_divergence, math.log(confidence)) - math.log(samples))
    total = log_sum(log(expected_flatness), math.log(4) + spread)
    assumptions = [
        "bounds the expected loss of the network with noise of variance σ² on its values",
        "assumes a loss between 0 and 1 and a prior that does not depend on the data",
    ]
    if grid > 1:
        assumptions.append(f"σ is one of {grid} values fixed in advance, at δ/{grid} each")
    inputs = {
        "flatness": expected_flatness,
        "log10 KL": decimal(log_divergence),
        "sigma": sigma,
        "n": samples,
        "delta": delta,
    }
    return Bound("PAC-Bayes bound", decimal(total), inputs, tuple(assumptions))


def psi_flatness_bound(
    largest: float,
    smallest: float,
    epsilon: float,
    *,
    inputs: int,
    width: int,
    outputs: int,
    depth: int,
    layer_norm: float = 1.0,
    lipschitz: float = 1.0,
) -> Bound:
    r"""The bound of the PSI-ε-flatness by the balance of the basis-path values.

    .. math:: \max_{\|v'-v\| \le \varepsilon} \hat l(v') - \hat l(v) \le 2\, C\, C_L\, d_0
        d_1^{L-1} d_L \big(1 + 2^{(3L+4)/2} (L-1)\, d_1 d_L\, \psi(v)\big)\, \varepsilon, \quad
        \psi(v) = \max_{1 \le s \le L} \varepsilon^{s-1}
        \frac{\max_i |v_i|^{2L+1-s}}{\min_i |v_i|^{2L}}

    The logarithm of the term of ψ is linear in s, so s = 1 or s = L attains it.

    This is the formula as published, and a measure of how unbalanced the values are rather than a
    proven bound: the proof takes :math:`d_0 d_1^{L-1} d_L` paths, :math:`(L-1) d_1` of them outside
    of the basis, which is too few for L hidden layers, and
    :math:`|v_i + \delta_i| \ge ((v_i^2 + \delta_i^2)/2)^{1/2}`, which fails for signs that differ.

    Args:
        largest: :math:`\max_i |v_i|` over the basis paths.
        smallest: :math:`\min_i |v_i|`; if it is 0 the bound is infinite.
        epsilon: radius of the ball, > 0; small enough that no unit of any training sample changes
            between active and inactive (Eq. (26)-(32) of the paper).
        inputs: :math:`d_0`.
        width: :math:`d_1`, of all hidden layers.
        outputs: :math:`d_L`.
        depth: L, the number of hidden layers.
        layer_norm: C, a bound of the 2-norms of the inputs of all layers.
        lipschitz: :math:`C_L`, the Lipschitz constant of the loss in the network's output.

    Example:
        >>> bound = psi_flatness_bound(1.0, 1.0, 0.01, inputs=2, width=3, outputs=1, depth=1)
        >>> round(10**bound.log10, 6)  # 2 · 2 · 1 · 0.01: with L = 1 the second term is 0
        0.04

    Reference: Yi et al. 2019, Theorem 5.1.
    """
    if min(inputs, width, outputs, depth) < 1 or not epsilon > 0:
        raise ValueError("need inputs, width, outputs, depth >= 1 and epsilon > 0")
    if not 0 <= smallest <= largest or not (layer_norm >= 0 and lipschitz >= 0):
        raise ValueError("need 0 <= smallest <= largest, layer_norm >= 0 and lipschitz >= 0")
    log_psi = max(_log_psi(largest, smallest, epsilon, depth, s) for s in (1, depth))
    second = (3 * depth + 4) / 2 * math.log(2) + log(depth - 1) + log_psi
    second = -math.inf if depth == 1 else second + math.log(width * outputs)
    total = math.log(2) + log(layer_norm) + log(lipschitz) + math.log(inputs * outputs)
    total += (depth - 1) * math.log(width) + math.log(epsilon) + log_sum(0.0, second)
    given = {
        "log10 psi": decimal(log_psi),
        "balance": largest / smallest if smallest else math.inf,
        "epsilon": epsilon,
        "L": depth,
        "C": layer_norm,
        "C_L": lipschitz,
    }
    assumptions = (
        "assumes equal widths, no biases, and inputs of all layers of 2-norm at most C",
        "assumes that the loss is C_L-Lipschitz in the output of the network",
        "assumes ε so small that no activation of a training sample changes; this is not checked",
        "as published: its proof has gaps, read it as a measure of the balance",
    )
    return Bound(
        "PSI-flatness bound", decimal(total), given, assumptions, "loss increase in the ball"
    )


def _log_psi(largest: float, smallest: float, epsilon: float, depth: int, s: int) -> float:
    if smallest == 0:
        return math.inf
    rise = (s - 1) * math.log(epsilon) + (2 * depth + 1 - s) * math.log(largest)
    return rise - 2 * depth * math.log(smallest)
