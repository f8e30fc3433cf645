r"""The bound and the condition of Theorem 5.1, evaluated on data."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pathspace.basis import BasisPaths
from pathspace.bounds import Bound, psi_flatness_bound
from pathspace.bounds.chain import Chain, fully_connected
from pathspace.errors import PathspaceError
from pathspace.evaluation import Data, Objective
from pathspace.flatnesses.balance import PathBalance, path_balance
from pathspace.flatnesses.paths import PathCoordinates, SkeletonChoice
from pathspace.network import Network


@dataclass(frozen=True)
class BallBound:
    """The bound of Theorem 5.1 and the condition under which it is stated.

    Attributes:
        bound: the bound of the rise of the loss in the ball of radius ``epsilon``.
        epsilon: the radius it is evaluated for.
        radii: by hidden layer, the smallest perturbation that could switch a unit for some sample.
        balance: the path balance.
    """

    bound: Bound
    epsilon: float
    radii: tuple[float, ...]
    balance: PathBalance

    @property
    def radius(self) -> float:
        """The constant of the theorem: ε must be smaller."""
        return min(self.radii)

    @property
    def condition_holds(self) -> bool:
        """Whether ε meets the condition of the theorem on these data."""
        return self.epsilon < self.radius

    def __str__(self) -> str:
        verdict = "holds" if self.condition_holds else "does not hold"
        line = f"condition ε = {self.epsilon:.4g} < {self.radius:.4g} {verdict} on these data"
        return f"{self.bound}\n  {line}"


def ball_bound(
    network: Network,
    data: Data,
    *,
    epsilon: float | None = None,
    lipschitz: float = math.sqrt(2),
    choice: SkeletonChoice = "modulo",
) -> BallBound:
    r"""Theorem 5.1 on data: how small ε must be, and what the loss can then rise by.

    In the representative with free weights ±1, a hidden unit i with input :math:`z_i` keeps its
    activation for every sample if, for the first layer (Eq. 26) and for the others (Eq. 32),

    .. math:: \|\delta\| < \frac{|z_i(x)|}{\|x\|}, \qquad
        \|\delta\| < \frac{|z_i|}{\big[2\sum_j (y_j / v_{a(j)})^2\big]^{1/2}},

    y the outputs of the layer before, :math:`v_{a(j)}` the root of unit j, the sum over the weights
    into i that are not free (and 1 for a bias). The limit η → 0 is taken. The paper's
    :math:`\delta_0(\eta)`, which bounds the change of y and of the roots, has no closed form: after
    the first layer this is its condition to leading order, and no certificate. Where Eq. 31-32
    divide path values by roots, Eq. 28 and 30 show that outputs y are meant.

    Args:
        network: a traced chain of fully connected ReLU layers.
        data: pairs (inputs, targets), as for :func:`pathspace.flatness`.
        epsilon: radius of the ball; by default half of the largest one allowed.
        lipschitz: :math:`C_L` of the loss in the network's output; √2 is that of cross-entropy.
        choice: the skeleton; the paper's is ``"modulo"``.

    Returns:
        the bound, ε, and the condition by layer.

    Reference: Yi et al. 2019, Theorem 5.1 and Eq. (26)-(32).
    """
    place = PathCoordinates(network, choice, dtype=torch.float64)
    basis = place.basis
    values = basis.values(place.origin)
    gauged = basis.weights(values, free=basis.free(place.origin).sign(), state=place.origin)
    chain = fully_connected(network, gauged)
    if len(chain.weights) < 2:
        raise PathspaceError("Theorem 5.1 is about hidden layers; this network has none")
    kept, roots = _weights_and_roots(basis, values)
    radii = [math.inf] * (len(chain.weights) - 1)
    largest_norm = 0.0
    for batch in Objective(network, _no_loss, data, dtype=torch.float64).batches():
        y = next(iter((*batch.args, *batch.kwargs.values()))).flatten(1)
        if not bool(y.isfinite().all()):
            raise PathspaceError("some inputs are not finite, so that Theorem 5.1 says nothing")
        for k, inputs, radius in _layers(chain, kept, roots, y):
            radii[k] = min(radii[k], radius)
            largest_norm = max(largest_norm, float(inputs.norm(dim=1).max()))
            if math.isnan(radius) or not math.isfinite(largest_norm):
                raise PathspaceError(
                    f"the values of hidden layer {k} leave the range of torch.float64, so that the "
                    "bound of Theorem 5.1 cannot be computed"
                )
    if epsilon is None:
        epsilon = min(radii) / 2
        if not epsilon > 0:
            raise PathspaceError(
                "a hidden unit has the input 0 for some sample, so that Theorem 5.1 allows no "
                "ball at all; leave that sample out, or pass an epsilon to see the bound alone"
            )
    balance = path_balance(network, basis.skeleton)
    hidden = chain.widths[1:-1]
    bound = psi_flatness_bound(
        balance.largest,
        balance.smallest,
        epsilon,
        inputs=chain.widths[0],
        width=max(hidden),
        outputs=chain.widths[-1],
        depth=len(hidden),
        layer_norm=largest_norm,
        lipschitz=lipschitz,
    )
    notes = [line for line in bound.assumptions if "not checked" not in line]
    if len(set(hidden)) > 1:
        notes.append(f"has the widths {chain.widths}; the largest of the hidden ones is used")
    if chain.has_biases:
        notes.append("has biases; they count as paths")
    bound = replace(bound, assumptions=tuple(notes))
    return BallBound(bound, epsilon, tuple(radii), balance)


def _weights_and_roots(
    basis: BasisPaths, values: Mapping[str, Tensor]
) -> tuple[list[Tensor], list[Tensor]]:
    """By layer: 0 at the free weights and 1 elsewhere; and the roots of its source units."""
    graph = basis.graph
    free = graph.places(basis.skeleton.outgoing)
    by_scale = free.take(values)  # at the free weight of a unit, values hold that of its root
    kept = {edge.parameter: torch.ones(edge.shape, dtype=torch.float64) for edge in graph.edges}
    free.put_(kept, torch.zeros(graph.H + 1, dtype=torch.float64))
    matrices = [edge for edge in graph.edges if len(edge.shape) == 2]
    return (
        [kept[edge.parameter] for edge in matrices],
        [by_scale[edge.source_scale].reshape(-1) for edge in matrices],
    )


def _layers(
    chain: Chain, kept: list[Tensor], roots: list[Tensor], y: Tensor
) -> list[tuple[int, Tensor, float]]:
    """Number, inputs and smallest radius of each hidden layer, for a batch of inputs."""
    found = []
    for k, (weight, bias) in enumerate(zip(chain.weights[:-1], chain.biases[:-1], strict=True)):
        weight, known = weight.cpu(), y.cpu()
        z = known @ weight.T + (0 if bias is None else bias.cpu())
        # The first layer has no free weights, and its sources no roots (they stand as 1).
        reach = (known / roots[k]).square() @ kept[k].T + (0 if bias is None else 1)
        if k:
            reach = 2 * reach
        radius = torch.where(reach > 0, z.abs() / reach.sqrt(), torch.inf)
        found.append((k, known, float(radius.min())))
        y = z.relu()
    return found


def _no_loss(outputs: object, targets: object) -> Tensor:
    return torch.zeros(())
