"""The values of a network's basis paths as a space to perturb it in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

import torch
from torch import Tensor

from pathspace.basis import BasisPaths
from pathspace.errors import PathspaceError
from pathspace.flatnesses.coordinates import Coordinates, Space, State, unflat
from pathspace.flatnesses.linearization import Linearization
from pathspace.network import Network
from pathspace.skeleton import Choice, Skeleton, WeightIndex, choose_skeleton
from pathspace.weightgraph import WeightGraph, Weights

SkeletonChoice = Choice | Skeleton | Mapping[str, Sequence[WeightIndex]]

KEPT = 0.5  # of its value is what a perturbation leaves to every root


class PathCoordinates(Coordinates):
    """The values of the basis paths of one skeleton: a space that rescaling does not move.

    The free skeleton weights stay as they are. The space ends where a root becomes zero: weights
    are quotients by roots, so that the loss usually has a pole there. Perturbations leave at least
    half of its value to every root that divides a weight (:attr:`room`).

    :meth:`state` is the map from values to weights of :meth:`pathspace.BasisPaths.weights`. For
    equal widths and skeleton weights of 1 it is the paper's Eq. (20) and (21).

    Attributes:
        basis: the basis paths.

    Args:
        network: the traced network.
        choice: the skeleton; ``"largest"`` keeps the roots away from zero.
        state: the state to start from; by default the model's.
        dtype: what floating-point numbers are converted to; by default they stay as they are.

    Example:
        >>> import torch, pathspace as ps
        >>> model = torch.nn.Sequential(
        ...     torch.nn.Linear(2, 3), torch.nn.ReLU(), torch.nn.Linear(3, 1)
        ... ).double()
        >>> network = ps.trace(model, torch.ones(1, 2).double())
        >>> before = PathCoordinates(network).point
        >>> _ = ps.rescale_(network, ps.random_rescaling(network))
        >>> torch.allclose(PathCoordinates(network).point, before, rtol=1e-12)
        True
    """

    space: Space = "paths"

    def __init__(
        self,
        network: Network,
        choice: SkeletonChoice = "largest",
        *,
        state: State | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(network, state=state, dtype=dtype)
        chosen = (
            choice
            if isinstance(choice, Skeleton)
            else choose_skeleton(network, choice, state=self.origin)
        )
        self.basis = BasisPaths(network, chosen)
        self._values = self.basis.flat(self.basis.values(self.origin))
        self._moved = self._movable().to(self._values.device)
        self.point = self._values[self._moved]

    def _movable(self) -> Tensor:
        """Coordinates whose weights are parameters."""
        numbers = self.basis.number(torch.arange(len(self.basis)))
        fixed = self.fixed[numbers]
        source, _ = self.graph.places(numbers[fixed]).ends()
        if bool((source > 0).any()):
            number = int(numbers[fixed][source > 0][0])
            raise PathspaceError(
                f"`{self.graph.name(number)}` is the gain of a batch norm without a weight, and "
                "not the only way out of its unit, so it cannot follow the values of its paths; "
                "use affine=True"
            )
        return (~fixed).nonzero().squeeze(1)

    @property
    def graph(self) -> WeightGraph:
        """The weights of the network, batch norm folded."""
        return self.basis.graph

    @cached_property
    def room(self) -> Tensor:
        """Half of each root that divides a weight; infinite for all other values."""
        room = torch.full_like(self._values, torch.inf)
        roots = self._dividing_roots().to(room.device)
        room[roots] = (1 - KEPT) * self._values[roots].abs()
        return room[self._moved]

    def _dividing_roots(self) -> Tensor:
        """Coordinates of the roots by which weights are divided: there are others than free ones.

        The root of a unit that only its free weight leaves divides nothing, and may vanish.
        """
        basis = self.basis
        leaving = -torch.ones(self.graph.H + 1, dtype=torch.long)  # the free weights do not count
        for edge in self.graph.edges:
            source = edge.source_scale
            each = torch.full((source.numel(),), edge.count // max(1, source.numel()))
            leaving.index_add_(0, source.reshape(-1), each)
        divided = torch.zeros_like(leaving).index_add_(0, basis._owner, leaving)
        return basis.coordinate(basis.skeleton.incoming[basis.is_root & (divided > 0)])

    def state(self, point: Tensor) -> Weights:
        """The state of the model that has these values, the free weights kept."""
        values = self._values.index_copy(0, self._moved, point)
        return self.basis.weights(values, state=self.origin)

    def pull(self, gradients: Tensor, state: State) -> Tensor:
        """The inverse chain rule, :meth:`pathspace.BasisPaths.pull`."""
        return self.basis.flat(self.basis.pull(unflat(self.graph, gradients), state))[self._moved]

    def tangent(self, direction: Tensor) -> Tensor:
        """J times the direction; :class:`Linearization`."""
        return self._linearization.tangent(direction)

    def curvature(
        self, direction: Tensor, tangent: Tensor, product: Tensor, gradient: Tensor
    ) -> Tensor:
        """The Hessian in the values, gradient term included; :class:`Linearization`."""
        return self._linearization.curvature(direction, tangent, product, gradient)

    def bend(self, direction: Tensor, tangent: Tensor, gradient: Tensor) -> Tensor:
        """The gradient times the second derivative of the weights; :class:`Linearization`."""
        return self._linearization.bend(direction, tangent, gradient)

    @cached_property
    def _linearization(self) -> Linearization:
        numbers = self.basis.number(self._moved.cpu())
        return Linearization(self.basis, self.origin, numbers)
