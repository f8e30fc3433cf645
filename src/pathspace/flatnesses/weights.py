"""The weights of a network as a space to perturb it in."""

from __future__ import annotations

import torch
from torch import Tensor

from pathspace.flatnesses.coordinates import Coordinates, Space, State, flat, unflat
from pathspace.network import Network
from pathspace.weightgraph import WeightGraph, Weights


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
    def graph(self) -> WeightGraph:
        """The weights of the network, batch norm folded."""
        return self._graph

    @property
    def room(self) -> Tensor:
        """Infinite: the weights end nowhere."""
        return torch.full_like(self.point, torch.inf)

    def state(self, point: Tensor) -> Weights:
        """The state of the model that has these weights."""
        weights = self._weights.index_copy(0, self._moved, point)
        return self._graph.state(unflat(self._graph, weights), self.origin)

    def pull(self, gradients: Tensor, state: State) -> Tensor:
        """The gradient itself."""
        return gradients[self._moved]

    def tangent(self, direction: Tensor) -> Tensor:
        """The direction itself."""
        if len(self) == self._graph.m:
            return direction
        return torch.zeros_like(self._weights).index_copy_(0, self._moved, direction)

    def curvature(
        self, direction: Tensor, tangent: Tensor, product: Tensor, gradient: Tensor
    ) -> Tensor:
        """The product itself."""
        return product if len(self) == self._graph.m else product[self._moved]

    def bend(self, direction: Tensor, tangent: Tensor, gradient: Tensor) -> Tensor:
        """Zero: the weights are a linear function of themselves."""
        return gradient.new_zeros(())
