r"""Margin bounds by norms of the weights: path norm, Frobenius norm, spectral norm.

All three bound the Rademacher complexity R of the networks of one size whose norm is at most that
of the given one, and with it, with probability at least 1 − δ, the error of a classifier beyond
the share of training samples whose margin is below γ:

.. math:: \text{error} - \hat{\text{error}}_\gamma \le \frac{c}{\gamma} R
    + 3\sqrt{\frac{\ln(2/\delta)}{2n}}

with c = 2 for one output f(x) and margin y·f(x), and c = 4K for K outputs and the margins of
:func:`pathspace.margins`, where R is that of one output (2 for the symmetrization, times K for the
score of the own class and K for the largest other one). The norm and γ count as fixed before the
data were seen; all of them at once cost another logarithm.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pathspace.bounds.bound import Bound, check_sample, decimal, log, log_sum
from pathspace.bounds.chain import Chain, fully_connected
from pathspace.network import Network
from pathspace.norms import path_norm
from pathspace.weightnorms import State


def path_norm_bound(
    network: Network,
    samples: int,
    largest_input: float,
    margin: float = 1.0,
    *,
    p: float = 1.0,
    delta: float = 0.05,
) -> Bound:
    r"""The margin bound by the path norm. Rescaling-invariant.

    .. math:: R \le \phi_p(w) \, (2 H^{1/p^*})^{d-1} \sqrt{\min(p^*, 4\ln(2D))} \;
        \frac{\max_i \|x_i\|_{p^*}}{\sqrt n}, \qquad \frac1p + \frac1{p^*} = 1

    for d matrices, H hidden units in the widest layer and D inputs; :math:`\phi_p` is that of the
    output with the largest one. For p = 1 the width does not count:
    :math:`2^d \phi_1 \sqrt{\ln(2D)} \max_i\|x_i\|_\infty / \sqrt n`. Biases are weights of one more
    input that is 1, exactly as :func:`pathspace.path_norm` counts them.

    Args:
        network: the traced network, a chain of fully connected ReLU layers.
        samples: n, the number of training samples.
        largest_input: the largest p*-norm of a training input; for p = 1 the largest entry.
        margin: γ, see above.
        p: exponent of the path norm, 1 ≤ p < ∞.
        delta: the bound holds with probability at least 1 − δ.

    Example:
        >>> import torch, pathspace as ps
        >>> model = torch.nn.Sequential(
        ...     torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1)
        ... ).double()
        >>> network = ps.trace(model, torch.ones(1, 4).double())
        >>> before = ps.bounds.path_norm_bound(network, 1000, 1.0)
        >>> _ = ps.rescale_(network, ps.random_rescaling(network))
        >>> abs(ps.bounds.path_norm_bound(network, 1000, 1.0).log10 - before.log10) < 1e-9
        True

    Reference: Neyshabur, Tomioka and Srebro 2015 (Norm-based capacity control in neural networks),
    Theorem 1 with q = ∞ and Theorem 5.
    """
    if not 1 <= p < math.inf:
        raise ValueError(f"p must be at least 1 and finite, not {p}")
    chain = fully_connected(network)
    log_norm = float(path_norm(network, p, log=True, per_output=True).max())
    dual = math.inf if p == 1 else p / (p - 1)
    complexity = _group_norm_complexity(chain, log_norm, dual, 1 / dual, samples, largest_input)
    inputs = {"p": p, "log10 path norm": decimal(log_norm)}
    return _bound("path-norm bound", chain, complexity, samples, margin, delta, inputs)


def weight_norm_bound(
    network: Network,
    samples: int,
    largest_input: float,
    margin: float = 1.0,
    *,
    delta: float = 0.05,
) -> Bound:
    r"""The margin bound by the Frobenius norms of the layers. Not rescaling-invariant.

    .. math:: R \le 2^{d-1} \prod_{k=1}^{d} \|W_k\|_F \; \frac{\sqrt 2 \max_i \|x_i\|_2}{\sqrt n}

    for d matrices, of the last of which only the row of one output counts (the longest one).
    Biases are weights of one more input that is 1, handed on through every layer by a weight 1 that
    counts in its norm.

    Args:
        network: the traced network, a chain of fully connected ReLU layers.
        samples: n, the number of training samples.
        largest_input: the largest 2-norm of a training input.
        margin: γ, see above.
        delta: the bound holds with probability at least 1 − δ.

    Reference: Neyshabur, Tomioka and Srebro 2015, Theorem 1 with p = q = 2.
    """
    chain = fully_connected(network)
    *inner, last = chain.matrices()
    norms = torch.stack([*(w.norm() for w in inner), last.norm(dim=1).max()])
    log_norm = float(norms.log().sum())
    complexity = _group_norm_complexity(chain, log_norm, 2.0, 0.0, samples, largest_input)
    inputs = {"log10 product of norms": decimal(log_norm)}
    return _bound("weight-norm bound", chain, complexity, samples, margin, delta, inputs)


def spectral_bound(
    network: Network,
    samples: int,
    data_norm: float,
    margin: float = 1.0,
    *,
    reference: State | None = None,
    delta: float = 0.05,
) -> Bound:
    r"""The margin bound by the spectral complexity, with its constants. Not rescaling-invariant.

    .. math:: \frac{8}{n} + \frac{72 \ln n \sqrt{2 \ln(\sqrt 2\, W)}\, \|X\|_F}{\gamma n}
        \prod_k \|A_k\|_\sigma \Big(\sum_k \frac{\|A_k^T - M_k^T\|_{2,1}^{2/3}}
        {\|A_k\|_\sigma^{2/3}}\Big)^{3/2} + 3\sqrt{\frac{\ln(2/\delta)}{2n}}

    W is the largest width. It follows from the paper's covering number
    :math:`\ln N(\varepsilon) \le \|X\|_F^2 \ln(2W^2) R_A^2 / \varepsilon^2`, the Lipschitz
    constant 2/γ of the ramp loss of a margin, and Dudley's integral from 1/n on; the theorem at
    the head of the paper hides constants and the logarithm of n. It is for margins over several
    outputs; one output f counts as the two (f, 0). Biases are weights of one more input that is 1.

    Args:
        network: the traced network, a chain of fully connected ReLU layers.
        samples: n, the number of training samples.
        data_norm: the Frobenius norm of the matrix of all training inputs,
            :math:`(\sum_i \|x_i\|_2^2)^{1/2}`.
        margin: γ, see above.
        reference: the state that gives the matrices :math:`M_k`, chosen before the data were seen,
            such as the one at initialisation; by default zero.
        delta: the bound holds with probability at least 1 − δ.

    Reference: Bartlett, Foster and Telgarsky 2017 (Spectrally-normalized margin bounds for neural
    networks).
    """
    _check(samples, margin, delta, data_norm=data_norm)
    chain = fully_connected(network)
    matrices = chain.matrices()
    start: list[Tensor | float] = [0.0] * len(matrices)
    if reference is not None:
        start = list(fully_connected(network, reference).matrices())
    sigma = torch.stack([torch.linalg.matrix_norm(a, ord=2) for a in matrices]).log()
    group = torch.stack(
        [(a - m).norm(dim=1).sum() for a, m in zip(matrices, start, strict=True)]
    ).log()
    own = torch.eye(len(matrices), dtype=torch.bool)
    others = sigma.expand(own.shape).masked_fill(own, 0.0).sum(1)
    log_complexity = float(1.5 * ((group + others) * (2 / 3)).logsumexp(0))
    widest = max(2, *(max(matrix.shape) for matrix in matrices))
    size = math.hypot(data_norm, math.sqrt(samples)) if chain.has_biases else data_norm
    main = math.log(72) + log(math.log(samples)) + 0.5 * math.log(math.log(2 * widest**2))
    main += log(size) + log_complexity - math.log(margin * samples)
    total = log_sum(main, math.log(8 / samples), _log_confidence(samples, delta))
    inputs = {
        "log10 complexity": decimal(log_complexity),
        "W": widest,
        "|X|": size,
        "n": samples,
        "margin": margin,
    }
    one = chain.widths[-1] == 1
    kind = "one output f counts as the two (f, 0)" if one else "margins over all outputs"
    notes = _assumptions(chain, kind)
    return Bound("spectral bound", decimal(total), inputs, notes)


# What they share ---------------------------------------------------------------------------------


def _group_norm_complexity(
    chain: Chain, log_norm: float, dual: float, width: float, samples: int, largest_input: float
) -> float:
    """The logarithm of R in Theorem 1 of Neyshabur et al.; ``width`` is the exponent of H."""
    _check(samples, 1.0, 0.5, largest_input=largest_input)
    extra = int(chain.has_biases)
    inputs, *hidden, _ = chain.widths
    largest = largest_input
    if extra:  # the p*-norm of (x, 1), without overflow
        top = max(largest_input, 1.0)
        low = min(largest_input, 1.0) / top
        largest = top if math.isinf(dual) else top * (1 + low**dual) ** (1 / dual)
    depth = len(hidden) + 1
    per_layer = math.log(2) + width * math.log(max(hidden, default=1) + extra)
    factor = min(dual, 4 * math.log(2 * (inputs + extra)))
    total = log_norm + (depth - 1) * per_layer + 0.5 * math.log(factor)
    return total + log(largest) - 0.5 * math.log(samples)


def _bound(
    name: str,
    chain: Chain,
    complexity: float,
    samples: int,
    margin: float,
    delta: float,
    inputs: dict[str, float],
) -> Bound:
    _check(samples, margin, delta)
    outputs = chain.widths[-1]
    factor = 2 if outputs == 1 else 4 * outputs
    main = math.log(factor) + complexity - math.log(margin)
    total = log_sum(main, _log_confidence(samples, delta))
    inputs = {
        **inputs,
        "log10 R": decimal(complexity),
        "d": len(chain.weights),
        "n": samples,
        "margin": margin,
    }
    kind = "margin y·f(x) of one output" if outputs == 1 else f"margins over {outputs} outputs"
    notes = _assumptions(chain, f"{kind}: {factor} R / margin")
    return Bound(name, decimal(total), inputs, notes)


def _assumptions(chain: Chain, outputs: str) -> tuple[str, ...]:
    notes = ["bounds the error beyond the share of training samples with a margin below γ", outputs]
    if chain.has_biases:
        notes.append("assumes no biases; they are weights of one more input that is 1")
    notes.append("counts norm and margin as fixed before the data were seen")
    return tuple(notes)


def _log_confidence(samples: int, delta: float) -> float:
    return math.log(3) + 0.5 * math.log(math.log(2 / delta) / (2 * samples))


def _check(samples: int, margin: float, delta: float, **sizes: float) -> None:
    check_sample(samples, delta)
    if not margin > 0:
        raise ValueError(f"margin must be positive, not {margin}")
    for name, size in sizes.items():
        if not size >= 0:
            raise ValueError(f"{name} must not be negative, not {size}")
