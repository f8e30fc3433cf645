r"""The gradient of the basis-path penalty in closed form, added in place.

With :math:`v_e = I(u)\,w_e\,O(v)` for a weight e = u→v that is not on the skeleton,

.. math:: \frac{\partial R}{\partial w_e} = \lambda_1 w_e \big(I(u)\,O(v)\big)^2 .

R depends on a skeleton weight w through the products I and O that it is part of. What depends on
:math:`\log|I(u)|` is :math:`E(u) = \lambda_1 \sum v_e^2` over the weights that leave u, and
:math:`2\lambda_2 \log|v_a|` if u has a root a; the same for :math:`\log|O(v)|` with the weights
that enter v. So :math:`w\,\partial R/\partial w` is the sum of these over all units behind w in the
forest of in-edges, and before it in the forest of out-edges.

All operations on some rows of a weight are done while they are in the cache, without full-size
temporaries: the weights are read once and the gradients read and written once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from pathspace.basis import BasisPaths
from pathspace.flow.powers import rows
from pathspace.foldedbias import Destination
from pathspace.network import Edge
from pathspace.signedlogs import log_product
from pathspace.squaresums import OuterSums, Piece, SquareSums
from pathspace.weightgraph import Places


class BasisPathGradient:
    """Adds the gradient of the penalty to tensors; made once for a set of basis paths.

    Args:
        basis: the basis paths.
        exact: whether skeleton weights have a gradient; if not, theirs is 0.
    """

    def __init__(self, basis: BasisPaths, exact: bool) -> None:
        graph, skeleton = basis.graph, basis.skeleton
        self.exact, self.skeleton, self.is_root = exact, skeleton, basis.is_root
        self.incoming = graph.places(skeleton.incoming)
        self.outgoing = graph.places(skeleton.outgoing)
        numbers = torch.unique(torch.cat([skeleton.incoming, skeleton.outgoing])[1:])
        self.matrices = [
            _Matrix(edge, _between(numbers, graph.start[k], graph.start[k + 1]))
            for k, edge in enumerate(graph.edges)
            if not edge.is_fixed
        ]

    @torch.no_grad()
    def add_(
        self, weights: Mapping[str, Tensor], destination: Destination, lam1: float, lam2: float
    ) -> None:
        """Add the gradient with respect to the weights of the graph to their destinations."""
        into = log_product(self.incoming.take(weights), self.skeleton.parent)[1]
        out = log_product(self.outgoing.take(weights), self.skeleton.child)[1]
        leaving, entering = torch.zeros_like(into), torch.zeros_like(out)
        for matrix in self.matrices:
            name = matrix.edge.parameter
            matrix.add_(
                weights[name],
                destination(name),
                lam1,
                (into, out),
                (leaving, entering) if self.exact else None,
            )
        if not self.exact:
            return
        roots = torch.where(self.is_root, 2 * lam2 * (into + out), 0.0)
        for places, sums, step in (
            (self.incoming, leaving, self.skeleton.parent),
            (self.outgoing, entering, self.skeleton.child),
        ):
            _add_quotients_(places, weights, destination, forest_sums(sums + roots, step))


def forest_sums(values: Tensor, step: Tensor) -> Tensor:
    """For each node of a forest the sum over itself and all nodes whose way to the root meets it.

    The transpose of the sum along the way to the root: pointer doubling, log2(depth) rounds.

    Args:
        values: (H+1,) a number per node; node 0, where all ways end, does not count.
        step: (H+1,) the next node on the way to the root.
    """
    result = values.clone()
    result[0] = 0.0
    while bool(step.any()):
        result = result.index_add(0, step, result)
        result[0] = 0.0
        step = step[step]
    return result


def _between(numbers: Tensor, start: Tensor, stop: Tensor) -> Tensor:
    return numbers[(numbers >= start) & (numbers < stop)] - start


def _add_quotients_(
    places: Places, weights: Mapping[str, Tensor], destination: Destination, sums: Tensor
) -> None:
    """Add sum / weight at the places of skeleton weights."""
    for block in places.blocks:
        name = places.graph.edges[block.edge].parameter
        target, weight = destination(name), weights[name]
        if target is None:
            continue
        values = sums[block.rows]
        if block.index:
            index = tuple(i.to(weight.device) for i in block.index)
            target[index] += (values.to(weight.device) / weight[index]).to(target)
        else:
            target += (values[0].to(weight.device) / weight).to(target)


class _Matrix:
    """A weight tensor as a matrix: its first axis, and all others flattened."""

    def __init__(self, edge: Edge, skeleton: Tensor) -> None:
        self.edge = edge
        height = edge.shape[0] if edge.shape else 1
        self.shape = (height, edge.count // max(1, height))
        self.target = self._table(edge.target_scale)
        self.source = self._table(edge.source_scale)
        like = torch.empty(self.shape, device="meta")
        self.pieces = []
        for some in rows(like):
            ends = torch.tensor([some.start, some.stop]) * self.shape[1]
            self.pieces.append(Piece(some, _between(skeleton, *ends)))

    def _table(self, scales: Tensor) -> Tensor:
        """The scales at one end, (rows or 1, columns or 1)."""
        if scales.numel() == 1 or not bool(scales.any()):
            return scales.reshape(-1)[:1].view(1, 1)
        if len(scales) == scales.numel():
            return scales.reshape(-1, 1)
        return scales.expand(len(scales), *self.edge.shape[1:]).reshape(len(scales), -1)

    def add_(
        self,
        weight: Tensor,
        destination: Tensor | None,
        lam1: float,
        logs: tuple[Tensor, Tensor],
        sums: tuple[Tensor, Tensor] | None,
    ) -> None:
        """Add λ1 w (I O)² off the skeleton, and λ1 v² to the sums by source and by target."""
        if (destination is None and sums is None) or not self.pieces:
            return
        w = weight.detach().reshape(self.shape)
        result = None if destination is None else destination.reshape(self.shape)
        found = None
        if self._is_moderate(logs, w.dtype):
            found = self._pass(w, result, lam1, logs, sums is not None)
            if found is not None and not all(bool(x.isfinite().all()) for x in found.by_end()):
                found = self._pass(w.double(), None, lam1, logs, True)
        else:
            wide = None if result is None else torch.zeros_like(result, dtype=torch.float64)
            found = self._pass(w.double(), wide, lam1, logs, sums is not None)
            if result is not None and wide is not None:
                result += torch.where(w == 0, 0.0, wide).to(result)
        if destination is not None and result is not None and _is_copy(result, destination):
            destination.copy_(result.view(destination.shape))  # its memory has another order
        if sums is not None and found is not None:
            ends = (self.source, self.target)
            for total, scales, part in zip(sums, ends, found.by_end(), strict=True):
                total.index_add_(0, scales.reshape(-1), lam1 * part.reshape(-1).to(total))

    def _pass(
        self,
        w: Tensor,
        result: Tensor | None,
        lam1: float,
        logs: tuple[Tensor, Tensor],
        summed: bool,
    ) -> SquareSums | None:
        """One pass over the weights: add to the result, and collect the sums if they are wanted."""
        source, target = self._squares(*logs, w)
        found = self._sums(source, target) if summed else None
        factors = [self._vectorized(side) for side in (target, source)]
        memory = w.new_empty(max(piece.rows for piece in self.pieces) * self.shape[1])
        for piece in self.pieces:
            part = w[piece.some]
            scratch = memory[: part.numel()].view(part.shape)
            if result is not None:
                torch.mul(*(piece.of(side).expand(part.shape) for side in factors), out=scratch)
                factor = piece.off_skeleton(scratch)
                result[piece.some].addcmul_(part, factor, value=lam1)
            if found is not None and any(found.wanted):  # while the rows are in the cache
                found.add_(piece, piece.off_skeleton(torch.square(part, out=scratch)))
        return found

    def _is_moderate(self, logs: tuple[Tensor, Tensor], dtype: torch.dtype) -> bool:
        """Whether all (I O)² are far from the ends of a dtype's range."""
        if dtype == torch.float64:
            return True
        into, out = (
            2 * log[scale] for log, scale in zip(logs, (self.source, self.target), strict=True)
        )
        ends = (into.amax() + out.amax(), -into.amin() - out.amin())
        return float(torch.stack(ends).max()) < math.log(torch.finfo(dtype).max) / 2

    def _sums(self, source: Tensor, target: Tensor) -> SquareSums:
        """Where the sums are collected."""
        wanted = self.edge.from_free, self.edge.into_free
        if len(source) == 1 and target.shape[1] == 1:
            return OuterSums(source, target, wanted, self.shape, swapped=False)
        if len(target) == 1 and source.shape[1] == 1:
            return OuterSums(source, target, wanted, self.shape, swapped=True)
        return SquareSums(source, target, wanted)

    def _vectorized(self, factor: Tensor) -> Tensor:
        """A factor that is one number as a row: torch is slow if both factors stand still."""
        return factor.expand(1, self.shape[1]).contiguous() if factor.numel() == 1 else factor

    def _squares(self, into: Tensor, out: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
        """I² by source and O² by target, times numbers that keep both near 1."""
        source, target = 2 * into[self.source], 2 * out[self.target]
        shift = (_middle(source) - _middle(target)) / 2
        return (source - shift).exp().to(like), (target + shift).exp().to(like)


def _is_copy(tensor: Tensor, original: Tensor) -> bool:
    return tensor.data_ptr() != original.data_ptr()


def _middle(logs: Tensor) -> Tensor:
    return (logs.amax() + logs.amin()) / 2
