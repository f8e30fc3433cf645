r"""Charts: the weights of a network as a function of a few coordinates t.

In both spaces a weight e = u → v on the line or plane through a model is

.. math:: w_e(t) = \frac{w_e + \sum_k t_k d_{k,e}}{R_u(t)}, \qquad
    R_u(t) = 1 + \sum_k t_k \rho_{k,u}.

In weight space d is the direction itself and R = 1. In basis-path space the point
:math:`v + \sum_k t_k \xi_k` has these weights with :math:`d_{k,e} = \xi_{k,e} / (I(u)\,O(v))` and
:math:`\rho_{k,u} = \xi_{k,a(u)} / v_{a(u)}`, the free skeleton weights fixed. So the numerators of
any number of points are one product of matrices, and weights that leave an input or the constant
(R = 1) are affine in t. Where some R is not positive a root has gone through zero: the chart ends.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor

from pathspace.basis import BasisPaths
from pathspace.errors import PathspaceError
from pathspace.signedlogs import inverse, plain, product, scaled
from pathspace.weightgraph import Places, WeightGraph, Weights

Space = Literal["paths", "weights"]
Direction = Tensor | Mapping[str, Tensor]


@dataclass(frozen=True)
class Chart:
    """The states of a model on a line or plane; made by a :class:`Coordinates`.

    Attributes:
        graph: the weights of the network.
        state: the model at t = 0, parameters and buffers by name.
        numerators: by parameter, (1 + K, ...): the weights at t = 0 and the K directions d.
        ratios: (K, H+1) float64, the directions ρ of R by scale; 0 in weight space.
        free: the free skeleton weights, which stay as they are; ``None`` in weight space.
    """

    graph: WeightGraph
    state: Mapping[str, Tensor]
    numerators: Weights
    ratios: Tensor
    free: Places | None = None

    def contains(self, points: Tensor) -> Tensor:
        """(P,) whether no root has reached zero on the way to these points (P, K)."""
        return (1 + points.double() @ self.ratios > 0).all(1)

    def reach(self, points: Tensor) -> float:
        """The factor by which the directions may be multiplied until a point leaves the chart."""
        return reach(self.ratios, points)

    def states(self, points: Tensor, names: Collection[str] | None = None) -> Weights:
        """The states at points (P, K): entries that depend on t get a leading axis P.

        Args:
            points: (P, K), inside the chart.
            names: the entries that are wanted; by default all.
        """
        ratio = 1 + points.double() @ self.ratios  # (P, H+1)
        coefficients = torch.cat([points.new_ones(len(points), 1), points], 1)
        wanted = self.moving if names is None else names
        weights: Weights = {}
        for edge in self.graph.edges:
            name, stack = edge.parameter, self.numerators[edge.parameter]
            if self._entries[name].isdisjoint(wanted):
                weights[name] = stack[0]
                continue
            moved = (coefficients.to(stack) @ stack.flatten(1)).view(-1, *edge.shape)
            if self.free is not None and edge.from_free:
                moved.div_(ratio[:, edge.source_scale].to(stack))
                for index in self._free_places.get(name, ()):
                    moved[(..., *index)] = stack[0][index]
            weights[name] = moved
        if not self.graph.norms:  # then an entry is a weight, and the way back is short
            found = {entry: w for name, w in weights.items() for entry in self._entries[name]}
            state = {**self.state, **found}
        else:
            state = self.graph.state(weights, self.state)
        return state if names is None else {name: state[name] for name in names}

    def at(self, point: Tensor) -> Weights:
        """The state at one point (K,)."""
        states = self.states(point[None])
        # One tensor per parameter, however many names it has: functional_call looks at identity.
        first = {id(states[name]): states[name][0] for name in self.moving}
        return {name: first.get(id(tensor), tensor) for name, tensor in states.items()}

    @cached_property
    def moving(self) -> frozenset[str]:
        """The entries of the state that depend on t."""
        return frozenset().union(*self._entries.values())

    def affine(self) -> Weights:
        """By entry of the state, (1 + K, ...): the coefficients of those that are affine in t."""
        norms = self.graph.norms
        folded = norms.keys() | {norm.bias for norm in norms.values()}
        return {
            name: self.numerators[edge.parameter]
            for edge in self.graph.edges
            if edge.parameter not in folded and (self.free is None or not edge.from_free)
            for name in self._entries[edge.parameter]
        }

    @cached_property
    def _free_places(self) -> dict[str, list[Any]]:
        """By parameter: where its free weights are."""
        found: dict[str, list[Any]] = {}
        for block in self.free.blocks if self.free is not None else ():
            name = self.graph.edges[block.edge].parameter
            device = self.numerators[name].device
            found.setdefault(name, []).append(tuple(i.to(device) for i in block.index))
        return found

    @cached_property
    def _entries(self) -> dict[str, frozenset[str]]:
        """By weight of the graph: the entries of the state that it determines."""
        names, norms = self.graph.network.names(), self.graph.norms
        found: dict[str, set[str]] = {}
        for edge in self.graph.edges:
            norm = norms.get(edge.parameter)
            if norm is not None and norm.weight is None:
                found[edge.parameter] = set()  # made of statistics alone
            else:
                found[edge.parameter] = set(names.get(edge.parameter, [edge.parameter]))
        for norm in norms.values():  # a batch norm's bias holds its mean times its gain
            if norm.weight is not None and norm.bias is not None:
                both = found[norm.weight] | found[norm.bias]
                found[norm.weight] = found[norm.bias] = both
        return {name: frozenset(entries) for name, entries in found.items()}


def reach(ratios: Tensor, points: Tensor) -> float:
    """The factor by which ρ may be multiplied until R = 0 somewhere at these points (P, K)."""
    shrinkage = float((-points.double() @ ratios).max())
    return 1 / shrinkage if shrinkage > 0 else math.inf


class Coordinates:
    """What is perturbed: the m weights, or the m − H basis-path values, of one state.

    A direction is a vector of length :attr:`size`, or a dict of tensors shaped like the weights. A
    batch norm is folded; a gain that consists of running statistics alone cannot be moved.

    Args:
        graph: the weights of the network.
        state: the model, parameters and buffers by name, detached.
        basis: for basis-path space; ``None`` is weight space.
    """

    def __init__(
        self, graph: WeightGraph, state: Mapping[str, Tensor], basis: BasisPaths | None = None
    ) -> None:
        self.graph, self.state, self.basis = graph, state, basis
        self.weights = graph.weights(state)
        if basis is not None:
            self._check_fixed_gains(basis)

    @property
    def space(self) -> Space:
        """``"paths"`` or ``"weights"``."""
        return "weights" if self.basis is None else "paths"

    @property
    def size(self) -> int:
        """Number of coordinates."""
        return self.graph.m if self.basis is None else len(self.basis)

    def values(self, state: Mapping[str, Tensor]) -> Weights:
        """The coordinates of a state: its weights, or its basis-path values."""
        return self.graph.weights(state) if self.basis is None else self.basis.values(state)

    def flat(self, direction: Direction) -> Tensor:
        """A direction as a vector of length :attr:`size`."""
        if isinstance(direction, Tensor):
            if direction.shape != (self.size,):
                raise PathspaceError(
                    f"a direction in the space of {self.space} of this network has length "
                    f"{self.size:,}, not shape {tuple(direction.shape)}"
                )
            return direction
        missing = [e.parameter for e in self.graph.edges if e.parameter not in direction]
        if missing:
            raise PathspaceError(f"the direction has no entry `{missing[0]}`")
        if self.basis is not None:
            return self.basis.flat(direction)
        return torch.cat([direction[edge.parameter].reshape(-1) for edge in self.graph.edges])

    def unflat(self, vector: Tensor) -> Weights:
        """The dict of a flat direction, 0 where nothing can be moved."""
        if self.basis is not None:
            parts = self.basis.unflat(vector)
        else:
            split = vector.split([edge.count for edge in self.graph.edges])
            pairs = zip(self.graph.edges, split, strict=True)
            parts = {edge.parameter: part.view(edge.shape) for edge, part in pairs}
        return {
            name: torch.zeros_like(part) if self._is_fixed_gain(name) else part
            for name, part in parts.items()
        }

    def ratios(self, directions: Sequence[Direction]) -> Tensor:
        """(K, H+1) float64, the directions ρ of R by scale."""
        if self.basis is None:
            return torch.zeros(len(directions), self.graph.H + 1, dtype=torch.float64)
        root_value = plain(product(*self._products))
        root_value[0] = 1.0
        parts = [self.unflat(self.flat(direction)) for direction in directions]
        moved = torch.stack([self.basis._root.take(part, 0.0) for part in parts])
        moved[:, 0] = 0.0
        return moved / root_value

    def chart(self, directions: Sequence[Direction]) -> Chart:
        """The chart of the line or plane through the state along these directions."""
        parts = [self.unflat(self.flat(direction).detach()) for direction in directions]
        numerators, free = {}, None
        for edge in self.graph.edges:
            weight = self.weights[edge.parameter]
            steps = [part[edge.parameter].to(weight) for part in parts]
            if self.basis is not None:
                into, out = self._products
                steps = [scaled(edge, step, inverse(out), inverse(into)) for step in steps]
            numerators[edge.parameter] = torch.stack([weight, *steps])
        if self.basis is not None:
            free = self.graph.places(self.basis.skeleton.outgoing)
        return Chart(self.graph, self.state, numerators, self.ratios(directions), free)

    @cached_property
    def _products(self) -> tuple[Tensor, Tensor]:
        """I and O of every scale."""
        assert self.basis is not None
        return self.basis.products(self.weights)

    def _is_fixed_gain(self, name: str) -> bool:
        norm = self.graph.norms.get(name)
        return norm is not None and norm.weight is None

    def _check_fixed_gains(self, basis: BasisPaths) -> None:
        """Refuse a gain that is no parameter but would move: not free, and of a unit that moves."""
        free = basis.skeleton.outgoing
        for k, edge in enumerate(self.graph.edges):
            if self._is_fixed_gain(edge.parameter) and edge.from_free:
                numbers = self.graph.start[k] + torch.arange(edge.count)
                hidden = edge.source_scale.expand(edge.shape).reshape(-1) > 0
                if not bool(torch.isin(numbers[hidden], free).all()):
                    raise PathspaceError(
                        f"`{edge.space}` is a batch norm without a weight whose input other layers "
                        "read too, so some basis paths through it cannot be moved; use "
                        'affine=True, or space="weights"'
                    )
