r"""Regularizers that do not change under rescaling, as a term of the loss or as gradients.

The path-norm penalty keeps all paths small, the basis-path penalty keeps positive basis paths small
and roots near ±1:

.. math:: R = \frac{\lambda}{2}\,\phi_p(w)^2, \qquad
    R = \frac{\lambda_1}{2}\|v_+\|^2 + \frac{\lambda_2}{4}\|\log v_-^2\|^2 .

Both are used in one of two ways. As a term of the loss, with autograd::

    (loss + penalty()).backward()

or, cheaper, by adding the gradient in closed form to what the loss has left in ``.grad``::

    loss.backward()
    penalty.add_to_gradients_()
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from pathspace.basis import BasisPaths
from pathspace.basisgradients import BasisPathGradient
from pathspace.flow.powers import add_power_slopes_
from pathspace.flow.raising import Slope
from pathspace.flow.slopes import power_slopes
from pathspace.flow.values import exp
from pathspace.foldedbias import Destination, FoldedBias, State, add_, inverse_deviation
from pathspace.network import Edge, Network
from pathspace.norms import path_norm
from pathspace.penalty import Penalty
from pathspace.signedlogs import product, scaled
from pathspace.skeleton import Choice, Skeleton, WeightIndex

__all__ = ["BasisPathPenalty", "PathNormPenalty", "Penalty"]


class BasisPathPenalty(Penalty):
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
        self._gradient = BasisPathGradient(self.basis, exact)

    def __repr__(self) -> str:
        kind = "exact" if self.exact else "cheap"
        return f"<BasisPathPenalty lam1={self.lam1:g}, lam2={self.lam2:g}, {kind} gradients>"

    def __call__(self, state: State | None = None) -> Tensor:
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
                squares = _sum_of_squares(edge, off_skeleton[edge.parameter], into, out)
                total = total + self.lam1 / 2 * squares
        return total

    def _add_(self, state: State, destination: Destination) -> None:
        graph = self.basis.graph
        weights = graph.weights(state)
        folded = {
            name: torch.zeros_like(weights[name])
            for key, norm in graph.norms.items()
            for name in (key, norm.bias)
            if name is not None
        }

        def unfolded(name: str) -> Tensor | None:
            return folded[name] if name in folded else destination(name)

        self._gradient.add_(weights, unfolded, self.lam1, self.lam2)
        for key, norm in graph.norms.items():
            if norm.weight is not None:
                add_(destination(norm.weight), folded[key] * inverse_deviation(norm, state))
            if norm.bias is not None:
                FoldedBias(norm, graph.absorbed.get(key), state).add_(
                    folded[norm.bias], destination
                )


class PathNormPenalty(Penalty):
    r"""The path-norm penalty of a network; call it to get a scalar for ``loss + penalty()``.

    .. math:: R = \frac{\lambda}{2}\,\phi_p(w)^2, \qquad
        \frac{\partial R}{\partial w_e} = \lambda\, \phi_p^{2-p}\,
        \frac{\partial \phi_p^p}{\partial |w_e|^p}\, |w_e|^{p-1}\, \mathrm{sign}(w_e)

    For a single layer and p = 2 it is weight decay; with more layers it is what weight decay
    becomes when rescaling must not matter. As a term of the loss it costs a pass through
    :func:`~pathspace.path_norm` and back; :meth:`add_to_gradients_` takes the slopes of
    :func:`~pathspace.flow.path_slopes` instead.

    Args:
        network: the traced network.
        lam: its weight λ.
        p: finite exponent ≥ 1.
        biases: count paths that start at a bias.

    Example:
        >>> import torch, pathspace as ps
        >>> from pathspace.penalties import PathNormPenalty
        >>> model = torch.nn.Linear(2, 1, bias=False)
        >>> _ = torch.nn.init.constant_(model.weight, 3.0)
        >>> penalty = PathNormPenalty(ps.trace(model, torch.ones(1, 2)), lam=0.1)
        >>> round(float(penalty().detach()), 6)  # 0.1/2 · (3² + 3²)
        0.9
        >>> penalty.add_to_gradients_()
        >>> model.weight.grad  # 0.1 · 3
        tensor([[0.3000, 0.3000]])

    Reference: Neyshabur et al. 2015, section 4 (path regularization).
    """

    def __init__(
        self, network: Network, lam: float = 1.0, p: float = 2.0, *, biases: bool = True
    ) -> None:
        if not lam >= 0:
            raise ValueError(f"lam must not be negative, not {lam}")
        if not 1 <= p < math.inf:
            raise ValueError(f"p must be finite and at least 1, not {p}")
        self.network, self.lam, self.p, self.biases = network, lam, p, biases

    def __repr__(self) -> str:
        return f"<PathNormPenalty lam={self.lam:g}, p={self.p:g}>"

    def __call__(self, state: State | None = None) -> Tensor:
        """R as a float64 scalar, differentiable with respect to the weights.

        Args:
            state: parameters and buffers by name; by default the model's own.
        """
        given = self.network.state() if state is None else state
        log = path_norm(self.network, self.p, log=True, biases=self.biases, state=given)
        return self.lam / 2 * (2 * log).exp()

    def _add_(self, state: State, destination: Destination) -> None:
        found = power_slopes(self.network, state, self.p, biases=self.biases)
        if not abs(found.log) < 40:  # slopes may have left the range of float32, or all powers
            found = power_slopes(
                self.network, state, self.p, biases=self.biases, dtype=torch.float64
            )
        if found.log == -math.inf:
            return  # no path carries anything: R is least here
        common = (2 / self.p - 1) * found.log

        def add_slopes_(gradient: Tensor, weight: Tensor, slope: Slope) -> None:
            factor = self.lam * exp(slope.log + common)
            add_power_slopes_(gradient, weight.detach(), slope.factors, factor, self.p)

        for name, slope in found.slopes.items():
            gradient = destination(name)
            if gradient is not None:
                add_slopes_(gradient, state[name], slope)
        for fold in found.folds:
            if fold.names:
                with torch.enable_grad():
                    value, parts = fold.value(state, fold.slope.factors[0].dtype)
                gradient = torch.zeros_like(value)
                add_slopes_(gradient, value, fold.slope)
                found_parts = torch.autograd.grad(value, list(parts.values()), gradient)
                for name, part in zip(parts, found_parts, strict=True):
                    add_(destination(name), part)


def _sum_of_squares(edge: Edge, weight: Tensor, into: Tensor, out: Tensor) -> Tensor:
    """The sum of the squares of path values; infinite only if it is beyond float64."""
    found = scaled(edge, weight, out, into).square().sum(dtype=torch.float64)
    if bool(found.isfinite()):
        return found
    wide = weight.double()
    return scaled(edge, wide, out, into).masked_fill(wide == 0, 0.0).square().sum()
