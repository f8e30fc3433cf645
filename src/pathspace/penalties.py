r"""Regularizers that do not change under rescaling, as a term of the loss or as gradients.

The basis-path penalty keeps positive basis paths small and roots near ±1,

.. math:: R = \frac{\lambda_1}{2}\|v_+\|^2 + \frac{\lambda_2}{4}\|\log v_-^2\|^2 .
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from pathspace.basis import BasisPaths
from pathspace.network import Network
from pathspace.signedlogs import product, scaled
from pathspace.skeleton import Choice, Skeleton, WeightIndex
from pathspace.weightgraph import Weights


class BasisPathPenalty:
    r"""The basis-path penalty R of a network; call it to get a scalar for ``loss + penalty()``.

    Exact gradients: for a weight that is not on the skeleton,
    :math:`\partial R/\partial w_e = \lambda_1 v_e I(u) O(v)`, also where :math:`w_e = 0`; for a
    skeleton weight the sum over all paths through it, and for those of a root in addition
    :math:`2 \lambda_2 \log|v_a| / w` (twice Eq. (11) of the paper, whose derivative of
    :math:`\frac14(\log v^2)^2` lacks a factor 2). The paper's cheap form sets the gradient of all
    skeleton weights to 0.

    Args:
        network: the traced network.
        lam1: weight of the positive basis paths.
        lam2: weight of the roots (negative basis paths).
        choice: the skeleton, see :class:`~pathspace.BasisPaths`.
        exact: gradients of all weights; ``False`` is the paper's cheap form.

    Example:
        >>> import torch, pathspace as ps
        >>> model = torch.nn.Sequential(
        ...     torch.nn.Linear(2, 3), torch.nn.ReLU(), torch.nn.Linear(3, 1)
        ... )
        >>> network = ps.trace(model, torch.ones(1, 2))
        >>> penalty = ps.BasisPathPenalty(network, lam1=0.1, lam2=0.1, exact=True)
        >>> loss = model(torch.ones(1, 2)).square().sum() + penalty()
        >>> loss.backward()
        >>> before = float(penalty().detach())
        >>> _ = ps.rescale_(network, ps.random_rescaling(network))
        >>> abs(float(penalty().detach()) / before - 1) < 1e-3  # invariant
        True

    Reference: Zheng et al. 2019, section "Basis-path regularization", Eq. (10)-(11).
    """

    def __init__(
        self,
        network: Network,
        lam1: float = 1.0,
        lam2: float = 1.0,
        choice: Choice | Skeleton | Mapping[str, Sequence[WeightIndex]] = "modulo",
        *,
        exact: bool = False,
    ) -> None:
        for name, value in (("lam1", lam1), ("lam2", lam2)):
            if not value >= 0:
                raise ValueError(f"{name} must not be negative, not {value}")
        self.basis = BasisPaths(network, choice)
        self.network, self.lam1, self.lam2, self.exact = network, lam1, lam2, exact

    def __repr__(self) -> str:
        kind = "exact" if self.exact else "cheap"
        return f"<BasisPathPenalty lam1={self.lam1:g}, lam2={self.lam2:g}, {kind} gradients>"

    def __call__(self, state: Mapping[str, Tensor] | None = None) -> Tensor:
        """R as a float64 scalar, differentiable with respect to the weights.

        Args:
            state: parameters and buffers by name; by default the model's own.
        """
        basis = self.basis
        weights = basis.graph.weights(self.network.state() if state is None else state)
        skeleton = weights if self.exact else {name: w.detach() for name, w in weights.items()}
        into, out = basis.products(skeleton)
        log_roots = product(into, out)[1, basis.is_root]
        total = self.lam2 * log_roots.square().sum()
        off_skeleton = basis.off_skeleton(weights)
        for edge in basis.graph.edges:
            if not edge.is_fixed:
                values = scaled(edge, off_skeleton[edge.parameter], out, into)
                total = total + self.lam1 / 2 * values.square().sum(dtype=torch.float64)
        return total

    def gradients(self, state: Mapping[str, Tensor] | None = None) -> Weights:
        """The gradient of R with respect to the parameters that it depends on, by name."""
        source = self.network.state() if state is None else state
        leaves = {
            name: tensor.detach().requires_grad_(tensor.is_floating_point())
            for name, tensor in source.items()
        }
        names = [name for name in self.network.parameters() if name in leaves]
        with torch.enable_grad():
            value = self(leaves)
        found: tuple[Tensor | None, ...] = torch.autograd.grad(
            value, [leaves[n] for n in names], allow_unused=True
        )
        return {n: g for n, g in zip(names, found, strict=True) if g is not None}
