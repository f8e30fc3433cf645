r"""Spaces to perturb a network in: its weights, or the values of its basis paths.

A space gives every network a *point*, a flat vector of n numbers, and to every point near it a
state of the model. Every estimator of flatness is written once, for any space.

In both spaces the numbers are those of the graph, batch norms folded as in eval mode (see
:mod:`pathspace.weightgraph`); what no parameter determines (the gain of a batch norm without a
weight) and what the graph does not reach stays as it is.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from pathspace.basis import BasisPaths
from pathspace.errors import PathspaceError
from pathspace.flatness.linearization import Linearization
from pathspace.network import Network
from pathspace.skeleton import Choice, Skeleton, WeightIndex, choose_skeleton
from pathspace.weightgraph import WeightGraph, Weights

Space = Literal["paths", "weights"]
State = Mapping[str, Tensor]
SkeletonChoice = Choice | Skeleton | Mapping[str, Sequence[WeightIndex]]

KEPT = 0.5  # of its value is what a perturbation leaves to every root


class Coordinates(ABC):
    """A space at the present weights of a network: a point, and the states around it.

    Attributes:
        space: ``"weights"`` or ``"paths"``.
        network: the traced network.
        graph: its weights, batch norm folded.
        origin: the state of the model at :attr:`point`, detached, in the dtype asked for.
        point: (n,) the coordinates of the network.
        room: (n,) how far each coordinate may move towards zero before the space ends.
    """

    space: Space
    point: Tensor

    def __init__(
        self,
        network: Network,
        *,
        state: State | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        given = network.state() if state is None else state
        self.network = network
        self.origin: State = {
            name: tensor.detach().to(dtype if tensor.is_floating_point() else None)
            for name, tensor in given.items()
        }

    @property
    @abstractmethod
    def graph(self) -> WeightGraph:
        """The weights of the network, batch norm folded."""

    @property
    @abstractmethod
    def room(self) -> Tensor:
        """(n,) how far each coordinate may move towards zero; infinite where nothing ends there."""

    @abstractmethod
    def state(self, point: Tensor) -> Weights:
        """The state of the model at a point of the space."""

    @abstractmethod
    def pull(self, gradients: Tensor, state: State) -> Tensor:
        """(n,) gradient in this space from the (m,) gradient in the weights at ``state``."""

    @abstractmethod
    def tangent(self, direction: Tensor) -> Tensor:
        """(m,) change of the weights for a direction (n,) at :attr:`point`."""

    @abstractmethod
    def curvature(
        self, direction: Tensor, tangent: Tensor, product: Tensor, gradient: Tensor
    ) -> Tensor:
        """(n,) Hessian-vector product in this space, from that in the weights.

        Args:
            direction: (n,).
            tangent: (m,) its :meth:`tangent`.
            product: (m,) the weights' Hessian times the tangent; may be overwritten.
            gradient: (m,) the weights' gradient at :attr:`point`.
        """

    @abstractmethod
    def bend(self, direction: Tensor, tangent: Tensor, gradient: Tensor) -> Tensor:
        """Scalar: what the form zᵀ ∇²l z has beyond that of the tangent in the weights.

        It is the weights' gradient times their second derivative along the direction.
        """

    def __len__(self) -> int:
        """Number of coordinates."""
        return len(self.point)

    @cached_property
    def fixed(self) -> Tensor:
        """(m,) the weights that are no parameters and cannot be moved."""
        graph = self.graph
        fixed = torch.zeros(graph.m, dtype=torch.bool)
        for k, edge in enumerate(graph.edges):
            norm = graph.norms.get(edge.parameter)
            if norm is not None and norm.weight is None:
                fixed[graph.start[k] : graph.start[k + 1]] = True
        return fixed


class WeightCoordinates(Coordinates):
    """The weights themselves: the usual space, in which rescaling moves everything.

    Example:
        >>> import torch, pathspace as ps
        >>> network = ps.trace(torch.nn.Linear(3, 2), torch.ones(1, 3))
        >>> len(WeightCoordinates(network))
        8
    """

    space: Space = "weights"

    def __init__(
        self,
        network: Network,
        *,
        state: State | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(network, state=state, dtype=dtype)
        self._graph = WeightGraph(network)
        self._weights = flat(self._graph, self._graph.weights(self.origin))
        self._moved = (~self.fixed).nonzero().squeeze(1).to(self._weights.device)
        self.point = self._weights[self._moved]

    @property
    def graph(self) -> WeightGraph:  # noqa: D102
        return self._graph

    @property
    def room(self) -> Tensor:  # noqa: D102
        return torch.full_like(self.point, torch.inf)

    def state(self, point: Tensor) -> Weights:  # noqa: D102
        weights = self._weights.index_copy(0, self._moved, point)
        return self._graph.state(unflat(self._graph, weights), self.origin)

    def pull(self, gradients: Tensor, state: State) -> Tensor:  # noqa: D102
        return gradients[self._moved]

    def tangent(self, direction: Tensor) -> Tensor:  # noqa: D102
        if len(self) == self._graph.m:
            return direction
        return torch.zeros_like(self._weights).index_copy_(0, self._moved, direction)

    def curvature(  # noqa: D102
        self, direction: Tensor, tangent: Tensor, product: Tensor, gradient: Tensor
    ) -> Tensor:
        return product if len(self) == self._graph.m else product[self._moved]

    def bend(self, direction: Tensor, tangent: Tensor, gradient: Tensor) -> Tensor:  # noqa: D102
        return gradient.new_zeros(())


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
    def graph(self) -> WeightGraph:  # noqa: D102
        return self.basis.graph

    @cached_property
    def room(self) -> Tensor:  # noqa: D102
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

    def state(self, point: Tensor) -> Weights:  # noqa: D102
        values = self._values.index_copy(0, self._moved, point)
        return self.basis.weights(values, state=self.origin)

    def pull(self, gradients: Tensor, state: State) -> Tensor:  # noqa: D102
        return self.basis.flat(self.basis.pull(unflat(self.graph, gradients), state))[self._moved]

    def tangent(self, direction: Tensor) -> Tensor:  # noqa: D102
        return self._linearization.tangent(direction)

    def curvature(  # noqa: D102
        self, direction: Tensor, tangent: Tensor, product: Tensor, gradient: Tensor
    ) -> Tensor:
        return self._linearization.curvature(direction, tangent, product, gradient)

    def bend(self, direction: Tensor, tangent: Tensor, gradient: Tensor) -> Tensor:  # noqa: D102
        return self._linearization.bend(direction, tangent, gradient)

    @cached_property
    def _linearization(self) -> Linearization:
        numbers = self.basis.number(self._moved.cpu())
        return Linearization(self.basis, self.origin, numbers)


def flat(graph: WeightGraph, weights: Mapping[str, Tensor]) -> Tensor:
    """(m,) the weights of a graph as one vector."""
    return torch.cat([weights[edge.parameter].reshape(-1) for edge in graph.edges])


def unflat(graph: WeightGraph, vector: Tensor) -> Weights:
    """The weights of a graph from one vector: views, not copies."""
    parts = vector.split([edge.count for edge in graph.edges])
    return {
        edge.parameter: part.view(edge.shape) for edge, part in zip(graph.edges, parts, strict=True)
    }
