"""Norms of a network's weights; which of them do not change under rescaling is said for each."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from pathspace.flow import Flow, path_flow
from pathspace.network import Network


def path_norm(
    network: Network,
    p: float | Sequence[float] = 2.0,
    *,
    log: bool = False,
    biases: bool = True,
    per_output: bool = False,
    state: Mapping[str, Tensor] | None = None,
    dtype: torch.dtype = torch.float64,
) -> Tensor:
    r"""The ℓp path norm: the p-norm of the vector of all path values. Rescaling-invariant.

    .. math:: \phi_p(w) = \Big(\sum_{\text{paths}} \prod_{e} |w_e|^p\Big)^{1/p},
        \qquad \phi_\infty(w) = \max_{\text{paths}} \prod_e |w_e|

    One forward pass through the recorded program with :math:`|w|^p` on inputs of ones. A weight
    shared over space counts once per place. Every input of a pooling window is the end of a path
    (average pooling with the weight 1/k), a difference counts as a sum, a LeakyReLU of slope a
    multiplies by max(1, \|a\|), and batch norm is folded (eval mode). Differentiable with respect
    to ``state``.

    Args:
        network: the traced network.
        p: exponent ≥ 1, also ``math.inf``; several exponents give a vector.
        log: return the natural logarithm, which neither overflows nor underflows.
        biases: count paths that start at a bias.
        per_output: one norm per output value (flattened) instead of one for all.
        state: parameters and buffers by name; by default the model's, without gradient.
        dtype: what to compute in.

    Raises:
        NoPathSum: where an operation is not positively homogeneous, naming the layer.

    Example:
        >>> import torch, pathspace as ps
        >>> model = torch.nn.Sequential(
        ...     torch.nn.Linear(2, 2, bias=False),
        ...     torch.nn.ReLU(),
        ...     torch.nn.Linear(2, 1, bias=False),
        ... )
        >>> with torch.no_grad():
        ...     _ = model[0].weight.copy_(torch.tensor([[1.0, 2.0], [0.0, -3.0]]))
        ...     _ = model[2].weight.copy_(torch.tensor([[2.0, -1.0]]))
        >>> network = ps.trace(model, torch.ones(1, 2))
        >>> round(float(ps.path_norm(network, 1)), 6)  # |1·2| + |2·2| + |0·1| + |3·1|
        9.0

    Reference: Neyshabur et al. 2017, Eq. (5).
    """
    state = {n: t.detach() for n, t in network.state().items()} if state is None else state
    if isinstance(p, Sequence):
        options = {"log": log, "biases": biases, "per_output": per_output, "dtype": dtype}
        return torch.stack([path_norm(network, q, state=state, **options) for q in p])  # type: ignore[arg-type]
    if not p >= 1:
        raise ValueError(f"p must be at least 1, not {p}")
    flows = path_flow(network, state, p, biases=biases, dtype=dtype)
    logs = torch.cat([_log(flow).reshape(-1) for flow in flows])
    if not per_output:
        logs = logs.amax() if math.isinf(p) else logs.logsumexp(0)
    result = logs if math.isinf(p) else logs / p
    return result if log else result.exp()


def _log(flow: Flow) -> Tensor:
    return flow.tensor.log() + flow.log
