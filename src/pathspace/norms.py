"""Norms of a network's weights; which of them do not change under rescaling is said for each."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pathspace.basis import BasisPaths
from pathspace.flow import Flow, path_flow
from pathspace.network import Network
from pathspace.signedlogs import product, scaled
from pathspace.skeleton import Choice, Skeleton


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

    Paths run from inputs to all outputs: where a hidden layer is returned and read on, some end
    there and others go through it. :func:`~pathspace.paths` lists shorter ones, which end and begin
    at every pinned unit; the two are the same where no hidden unit is pinned.

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
    given = network.state() if state is None else state
    exponents = p if isinstance(p, Sequence) else [p]
    for exponent in exponents:
        if not exponent >= 1:
            raise ValueError(f"p must be at least 1, not {exponent}")
    with torch.no_grad() if state is None else contextlib.nullcontext():
        norms = []
        for exponent in exponents:
            flows = path_flow(network, given, exponent, biases=biases, dtype=dtype)
            logs = torch.cat([_log(flow).reshape(-1) for flow in flows])
            if not per_output:
                logs = logs.amax() if math.isinf(exponent) else logs.logsumexp(0)
            norms.append(logs if math.isinf(exponent) else logs / exponent)
        result = torch.stack(norms) if isinstance(p, Sequence) else norms[0]
        return result if log else result.exp()


def _log(flow: Flow) -> Tensor:
    # Where no path ends, a derivative of 0 in place of the infinite one of the logarithm.
    nothing = flow.tensor == 0
    logs = flow.tensor.masked_fill(nothing, 1.0).log().masked_fill(nothing, -math.inf)
    return logs + flow.log


@dataclass(frozen=True)
class BasisPathNorm:
    """The basis-path norm and where it is attained; ``float()`` gives the number.

    Attributes:
        roots: the largest ``|log|v||`` of a root (negative basis path).
        positive: the largest ``|v|`` of a basis path that is not a root.
        path: the weights along the basis path that attains the norm.
    """

    roots: float
    positive: float
    path: tuple[str, ...]

    @property
    def value(self) -> float:
        """The larger of the two parts."""
        return max(self.roots, self.positive)

    def __float__(self) -> float:
        return self.value

    def __str__(self) -> str:
        return (
            f"basis-path norm {self.value:.6g} (roots {self.roots:.6g}, positive paths "
            f"{self.positive:.6g}), attained by {' → '.join(self.path)}"
        )


def basis_path_norm(
    network: Network,
    choice: Choice | Skeleton | BasisPaths = "modulo",
    *,
    state: Mapping[str, Tensor] | None = None,
) -> BasisPathNorm:
    r"""The basis-path norm. Rescaling-invariant, but it depends on the skeleton.

    .. math:: \varphi(v) = \max\Big(\max_{a \text{ root}} |\log|v_a||,\;
        \max_{e \text{ no root}} |v_e|\Big)

    Computed in float64, tensor by tensor.

    Args:
        network: the traced network.
        choice: the skeleton, or basis paths that exist already.
        state: parameters and buffers by name; by default the model's.

    Example:
        >>> import torch, pathspace as ps
        >>> model = torch.nn.Sequential(
        ...     torch.nn.Linear(1, 1, bias=False),
        ...     torch.nn.ReLU(),
        ...     torch.nn.Linear(1, 1, bias=False),
        ... )
        >>> with torch.no_grad():
        ...     _ = model[0].weight.fill_(2.0), model[2].weight.fill_(0.25)
        >>> norm = ps.basis_path_norm(ps.trace(model, torch.ones(1, 1)))
        >>> round(float(norm), 6), norm.path  # one root: |log(2 · 0.25)|
        (0.693147, ('0.weight[0, 0]', '2.weight[0, 0]'))

    Reference: Zheng et al. 2019, Definition 1.
    """
    state = {n: t.detach() for n, t in (state or network.state()).items()}
    basis = choice if isinstance(choice, BasisPaths) else BasisPaths(network, choice, state=state)
    weights = basis.graph.weights(state)
    into, out = basis.products(weights)
    logs = torch.where(basis.is_root, product(into, out)[1].abs(), -1.0)
    largest_root = float(logs.max()) if bool(basis.is_root.any()) else 0.0
    number = int(basis.skeleton.incoming[logs.argmax()])
    positive = 0.0
    off_skeleton = basis.off_skeleton(weights)
    for k, edge in enumerate(basis.graph.edges):
        if edge.is_fixed:
            continue
        values = scaled(edge, off_skeleton[edge.parameter].double(), out, into).abs()
        top = float(values.max())
        if top > positive:
            positive = top
            if top > largest_root:
                number = int(basis.graph.start[k]) + int(values.argmax())
    if number < 0:  # no free unit, and all weights are zero
        return BasisPathNorm(largest_root, positive, ())
    path = basis.path(int(basis.coordinate(torch.tensor(number))))
    return BasisPathNorm(largest_root, positive, tuple(path))
