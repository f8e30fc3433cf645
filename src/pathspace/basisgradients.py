r"""The gradient of the basis-path penalty in closed form, added in place.

With :math:`v_e = I(u)\,w_e\,O(v)` for a weight e = u→v that is not on the skeleton,

.. math:: \frac{\partial R}{\partial w_e} = \lambda_1 w_e \big(I(u)\,O(v)\big)^2 .

R depends on a skeleton weight w through the products I and O that it is part of. What depends on
:math:`\log|I(u)|` is :math:`E(u) = \lambda_1 \sum v_e^2` over the weights that leave u, and
:math:`2\lambda_2 \log|v_a|` if u has a root a; the same for :math:`\log|O(v)|` with the weights
that enter v. So :math:`w\,\partial R/\partial w` is the sum of these over all units behind w in the
forest of in-edges, and before it in the forest of out-edges.

What is summed over all weights is in :mod:`pathspace.basismatrix`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from pathspace import native
from pathspace.basis import BasisPaths
from pathspace.basismatrix import BasisMatrix, Factors, FactorTable, between
from pathspace.foldedbias import Destination
from pathspace.signedlogs import doublings
from pathspace.weightgraph import Places


class BasisPathGradient:
    """Adds the gradient of the penalty to tensors; made once for a set of basis paths.

    Args:
        basis: the basis paths.
        exact: whether skeleton weights have a gradient; if not, theirs is 0.
    """

    def __init__(self, basis: BasisPaths, exact: bool) -> None:
        graph, skeleton = basis.graph, basis.skeleton
        self.exact, self.is_root = exact, basis.is_root
        self.places = graph.places(torch.cat([skeleton.incoming, skeleton.outgoing]))
        self.jumps = doublings(skeleton.parent), doublings(skeleton.child)
        numbers = skeleton.incoming[1:], skeleton.outgoing[1:]
        self.matrices = [
            BasisMatrix(edge, *(between(n, graph.start[k], graph.start[k + 1]) for n in numbers))
            for k, edge in enumerate(graph.edges)
            if not edge.is_fixed
        ]
        self.table = FactorTable(self.matrices, len(self.is_root))

    @torch.no_grad()
    def add_(
        self, weights: Mapping[str, Tensor], destination: Destination, lam1: float, lam2: float
    ) -> None:
        """Add the gradient with respect to the weights of the graph to their destinations."""
        skeleton = self.places.take(weights)
        logs = skeleton.abs().log_().view(2, -1)
        logs[:, 0] = 0.0
        for side, jumps in zip(logs, self.jumps, strict=True):
            for jump in jumps:
                side += side.index_select(0, jump)
        sums = torch.zeros_like(logs)  # over what leaves and what enters every unit
        both = (sums[0], sums[1]) if self.exact else None
        tasks = []
        for matrix, factors in zip(self.matrices, self.table.factors(logs, lam1), strict=True):
            name = matrix.edge.parameter
            tasks.append(_Task(matrix, weights[name], destination(name), factors))
        for task in self._pass(tasks, both) if lam1 else ():
            task.matrix.add_(task.weight, task.destination, task.factors, both)
        if not self.exact:
            return
        sums += torch.where(self.is_root, 2 * lam2 * logs.sum(0), 0.0)
        found = [forest_sums(*pair) for pair in zip(sums, self.jumps, strict=True)]
        _add_at_(self.places, destination, torch.cat(found) / skeleton)

    def _pass(self, tasks: list[_Task], sums: tuple[Tensor, Tensor] | None) -> list[_Task]:
        """Do all that a pass in C can do; returns the others."""
        found = [(task, task.matrix.job(*task[1:], sums is not None)) for task in tasks]
        done = [(task, *job) for task, job in found if job is not None]
        for dtype in {job.weight.dtype for _, job, _ in done}:
            native.sums([job for _, job, _ in done if job.weight.dtype == dtype])
        if sums is not None:
            for task, job, both in done:
                task.matrix.collect_(both, job.weight, task.factors, sums)
        return [task for task, job in found if job is None]


class _Task(NamedTuple):
    matrix: BasisMatrix
    weight: Tensor
    destination: Tensor | None
    factors: Factors


def forest_sums(values: Tensor, jumps: Sequence[Tensor]) -> Tensor:
    """For each node of a forest the sum over itself and all nodes whose way to the root meets it.

    The transpose of the sum along the way to the root: log2(depth) rounds.

    Args:
        values: (H+1,) a number per node; node 0, where all ways end, does not count.
        jumps: of the forest, see :func:`~pathspace.signedlogs.doublings`.
    """
    result = values.clone()
    result[0] = 0.0
    for jump in jumps:
        result = result.index_add(0, jump, result)
        result[0] = 0.0
    return result


def _add_at_(places: Places, destination: Destination, values: Tensor) -> None:
    """Add values at the places of skeleton weights, of which one may be there twice."""
    for block in places.blocks:
        target = destination(places.graph.edges[block.edge].parameter)
        if target is None:
            continue
        added = values[block.rows].to(target)
        if block.index:
            index = tuple(i.to(target.device) for i in block.index)
            target.index_put_(index, added, accumulate=True)
        else:
            target += added.sum()
