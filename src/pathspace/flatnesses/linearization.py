r"""First and second derivatives of the map from basis-path values to weights, at one point.

With :math:`w_e = v_e O(u) / (v_{a(u)} O(v))` and the free weights fixed, a direction :math:`\dot v`
moves the weights by

.. math:: \dot w_e = \frac{\dot v_e}{I(u)O(v)} - w_e r_{a(u)}, \qquad r_a = \dot v_a / v_a .

Differentiating :math:`J^\top g` along it, where the gradient g moves by :math:`h = \nabla^2_w l\,
\dot w`, gives the Hessian-vector product in the values, gradient term included:

.. math:: (\nabla^2_v l\,\dot v)_e = \frac{h_e - g_e r_{a(u)}}{I(u)O(v)}, \quad \text{for a root } a
    \text{ minus } \frac{1}{v_a}\sum_{e:\,a(u)=a}\big((h_e - g_e r_a)\,w_e + g_e \dot w_e\big).

A quadratic form needs less, the second derivative :math:`\ddot w_e = -2 r_{a(u)} \dot w_e` alone:

.. math:: \dot v^\top \nabla^2_v l\,\dot v = \dot w^\top \nabla^2_w l\,\dot w
    - 2 \sum_e g_e r_{a(u)} \dot w_e .

Everything is a product along one axis of a weight tensor or a sum over it: O(m) per direction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from pathspace.basis import BasisPaths
from pathspace.signedlogs import inverse, plain, product, scaled


@dataclass(frozen=True)
class _Piece:
    """A weight tensor some of whose sources are free; 0 at the free weights."""

    part: slice
    weight: Tensor
    source: Tensor  # scales of the sources, broadcastable
    owner: Tensor  # scales of their roots, flat


class Linearization:
    """The derivatives at one state; see the module.

    Directions are taken one at a time: vectors of this size stay in the cache.

    Args:
        basis: the basis paths.
        state: where to differentiate.
        numbers: (n,) the weights whose basis paths are the coordinates, sorted; all roots are in.
    """

    def __init__(self, basis: BasisPaths, state: Mapping[str, Tensor], numbers: Tensor) -> None:
        graph = basis.graph
        weights = {name: weight.clone() for name, weight in graph.weights(state).items()}
        into, out = basis.products(weights)
        factors = {
            edge.parameter: scaled(
                edge, torch.ones_like(weights[edge.parameter]), inverse(out), inverse(into)
            )
            for edge in graph.edges
        }
        free = graph.places(basis.skeleton.outgoing)
        for tensors in (weights, factors):
            free.put_(tensors, torch.zeros(graph.H + 1, dtype=torch.float64))
        self._factor = torch.cat([factors[edge.parameter].reshape(-1) for edge in graph.edges])
        like = self._factor
        self._numbers = numbers.to(like.device)
        # Weights that are no coordinates read the first one, and multiply it by 0.
        self._reading = torch.zeros(graph.m, dtype=torch.long, device=like.device)
        self._reading[self._numbers] = torch.arange(len(numbers), device=like.device)
        others = torch.ones(graph.m, dtype=torch.bool, device=like.device)
        others[self._numbers] = False
        self._factor[others] = 0.0
        owner, is_root = basis._owner, basis.is_root
        self._root = self._reading[basis.skeleton.incoming[owner].clamp_min(0)]  # by scale
        self._per_root = plain(inverse(product(into, out))).to(like)  # 1 / v_a(u), by scale
        self._per_root[0] = 0.0
        self._is_root = is_root.nonzero().squeeze(1).to(like.device)
        self._root_number = basis.skeleton.incoming[is_root].to(like.device)
        self._pieces = [
            _Piece(
                slice(int(graph.start[k]), int(graph.start[k + 1])),
                weights[edge.parameter],
                edge.source_scale.to(like.device),
                owner[edge.source_scale.reshape(-1)].to(like.device),
            )
            for k, edge in enumerate(graph.edges)
            if edge.from_free
        ]

    def tangent(self, direction: Tensor) -> Tensor:
        """(m,) J times a direction (n,)."""
        result = direction.index_select(0, self._reading).mul_(self._factor)
        relative = direction[self._root] * self._per_root
        for piece in self._pieces:
            own = result[piece.part].view_as(piece.weight)
            own.addcmul_(piece.weight, relative[piece.source], value=-1)
        return result

    def bend(self, direction: Tensor, tangent: Tensor, gradient: Tensor) -> Tensor:
        """The second derivative of the weights along a direction, times the gradient: a scalar."""
        relative = direction[self._root] * self._per_root
        total = torch.zeros_like(self._per_root[0])
        for piece in self._pieces:
            slope, change = (v[piece.part].view_as(piece.weight) for v in (gradient, tangent))
            by_source = (slope * change).sum_to_size(piece.source.shape)
            total -= 2 * (by_source * relative[piece.source]).sum()
        return total

    def curvature(
        self, direction: Tensor, tangent: Tensor, product: Tensor, gradient: Tensor
    ) -> Tensor:
        """(n,) the Hessian in the values times a direction, from that in the weights.

        Args:
            direction: (n,).
            tangent: (m,) J times the direction.
            product: (m,) the Hessian in the weights times the tangent; overwritten.
            gradient: (m,) the gradient in the weights.
        """
        relative = direction[self._root] * self._per_root
        sums = torch.zeros_like(self._per_root)
        for piece in self._pieces:
            own, slope, change = (
                vector[piece.part].view_as(piece.weight) for vector in (product, gradient, tangent)
            )
            own.addcmul_(slope, relative[piece.source], value=-1)  # h − g r
            flow = (own * piece.weight).addcmul_(slope, change)  # (h − g r) w + g ẇ
            sums.index_add_(0, piece.owner, flow.sum_to_size(piece.source.shape).reshape(-1))
        product.mul_(self._factor)
        product[self._root_number] -= (sums * self._per_root)[self._is_root]
        return product.index_select(0, self._numbers)
