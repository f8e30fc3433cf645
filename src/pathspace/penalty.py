"""The two ways to use a penalty: as a term of the loss, and as gradients that are added."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from pathspace.errors import PathspaceError
from pathspace.foldedbias import Destination, State
from pathspace.network import Network
from pathspace.weightgraph import Weights


class Penalty(ABC):
    """What the penalties have in common: the two ways to use them."""

    network: Network

    @abstractmethod
    def __call__(self, state: State | None = None) -> Tensor:
        """The penalty as a float64 scalar, differentiable with respect to the weights.

        Args:
            state: parameters and buffers by name; by default the model's own.
        """

    @abstractmethod
    def _add_(self, state: State, destination: Destination) -> None:
        """Add the gradient with respect to the parameters to their destinations."""

    @torch.no_grad()
    def add_to_gradients_(self) -> None:
        """Add the gradient of the penalty to ``.grad`` of the model's parameters.

        In closed form, without a graph or full-size temporaries. A parameter without gradient gets
        one; frozen parameters are left alone.

        Example:
            >>> import torch, pathspace as ps
            >>> model = torch.nn.Sequential(
            ...     torch.nn.Linear(2, 3), torch.nn.ReLU(), torch.nn.Linear(3, 1)
            ... )
            >>> network = ps.trace(model, torch.ones(1, 2))
            >>> penalty = ps.BasisPathPenalty(network, lam1=0.1, lam2=0.1)
            >>> model(torch.ones(1, 2)).sum().backward()
            >>> penalty.add_to_gradients_()  # then step with any optimizer
        """
        parameters = self.network.parameters()

        def destination(name: str) -> Tensor | None:
            parameter = parameters.get(name)
            if parameter is None or not parameter.requires_grad:
                return None
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            if parameter.grad.layout != torch.strided:
                raise PathspaceError(
                    f"`{name}` has a sparse gradient, which the penalty cannot be added to; make "
                    "its layer with sparse=False"
                )
            return parameter.grad

        self._add_(self.network.state(), destination)

    @torch.no_grad()
    def gradients(self, state: State | None = None) -> Weights:
        """The gradient with respect to the parameters that the penalty depends on, by name."""
        given = self.network.state() if state is None else state
        parameters = self.network.parameters()
        found: Weights = {}

        def destination(name: str) -> Tensor | None:
            if name in parameters and name not in found:
                found[name] = torch.zeros_like(given[name])
            return found.get(name)

        self._add_(given, destination)
        return found
