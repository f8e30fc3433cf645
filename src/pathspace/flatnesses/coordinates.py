r"""Spaces to perturb a network in: its weights, or the values of its basis paths.

A space gives every network a *point*, a flat vector of n numbers, and to every point near it a
state of the model. Every estimator of flatness is written once, for any space.

In both spaces the numbers are those of the graph, batch norms folded as in eval mode (see
:mod:`pathspace.weightgraph`); what no parameter determines (the gain of a batch norm without a
weight) and what the graph does not reach stays as it is.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from pathspace.network import Network
from pathspace.weightgraph import WeightGraph, Weights

Space = Literal["paths", "weights"]
State = Mapping[str, Tensor]


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


def flat(graph: WeightGraph, weights: Mapping[str, Tensor]) -> Tensor:
    """(m,) the weights of a graph as one vector."""
    return torch.cat([weights[edge.parameter].reshape(-1) for edge in graph.edges])


def unflat(graph: WeightGraph, vector: Tensor) -> Weights:
    """The weights of a graph from one vector: views, not copies."""
    parts = vector.split([edge.count for edge in graph.edges])
    return {
        edge.parameter: part.view(edge.shape) for edge, part in zip(graph.edges, parts, strict=True)
    }
