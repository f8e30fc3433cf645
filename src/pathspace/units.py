"""Units and the relation "has the same scale", as a vectorised union-find.

A unit is an integer. Two are special: ``ZERO`` marks values that are identically zero (padding),
which agree with every scale, and ``PINNED`` is the class of everything whose scale must stay 1.
Tying units merges their classes; tying with ``PINNED`` pins them. All operations take tensors of
units; nothing loops over single units.
"""

from __future__ import annotations

import torch
from torch import Tensor

ZERO = 0
PINNED = 1


class Partition:
    """A growing set of units, partitioned into classes that share one scale.

    Classes are trees in ``parent``; the root of a class is its smallest member, so the class of
    ``PINNED`` always has the root ``PINNED``.

    Example:
        >>> classes = Partition()
        >>> a, b = classes.fresh(2), classes.fresh(2)
        >>> classes.tie(a, b)
        >>> (classes.find(a) == classes.find(b)).all().item()
        True
    """

    def __init__(self) -> None:
        self.parent = torch.arange(1024)
        self.size = PINNED + 1

    def fresh(self, count: int) -> Tensor:
        """``count`` new units, each a class of its own."""
        start, self.size = self.size, self.size + count
        if self.size > len(self.parent):
            grown = torch.arange(max(2 * len(self.parent), self.size))
            grown[: len(self.parent)] = self.parent
            self.parent = grown
        return torch.arange(start, self.size)

    def find(self, units: Tensor) -> Tensor:
        """The root of the class of each unit."""
        roots = self.parent[units]
        while True:
            higher = self.parent[roots]
            if torch.equal(higher, roots):
                break
            roots = higher
        self.parent[units] = roots  # path compression
        return roots

    def tie(self, a: Tensor, b: Tensor) -> None:
        """Give each unit of ``a`` the scale of the unit of ``b`` at the same (broadcast) place.

        Costs O(|a| + |b|), not the size of the broadcast: along an axis that only one of the two
        has, all its units meet the same partner, so they are tied to each other once.
        """
        dims = max(a.dim(), b.dim())
        a = a[(None,) * (dims - a.dim())]
        b = b[(None,) * (dims - b.dim())]
        for dim in range(dims):
            if a.shape[dim] != b.shape[dim]:
                a, b = self._constant(a, b, dim), self._constant(b, a, dim)
        self._tie(a.reshape(-1), b.reshape(-1))

    def pin(self, units: Tensor) -> None:
        """Pin the classes of units, none of which is ``ZERO``."""
        self.parent[self.find(units)] = PINNED

    def _constant(self, units: Tensor, other: Tensor, dim: int) -> Tensor:
        if units.shape[dim] > 1 and other.shape[dim] == 1:
            partner = other != ZERO  # without one, the units along the axis need not agree
            for axis, size in enumerate(units.shape):
                if size == 1:
                    partner = partner.any(axis, keepdim=True)
            known = units.amax(dim, keepdim=True)  # ZERO only where all are ZERO
            self._tie(
                *(
                    x.reshape(-1)
                    for x in (units, torch.where(partner, known, ZERO).expand_as(units))
                )
            )
            return known
        return units

    def _tie(self, a: Tensor, b: Tensor) -> None:
        known = (a != ZERO) & (b != ZERO)
        a, b = a[known], b[known]
        while True:
            root_a, root_b = self.find(a), self.find(b)
            differ = root_a != root_b
            if not differ.any():
                return
            low = torch.minimum(root_a, root_b)[differ]
            high = torch.maximum(root_a, root_b)[differ]
            self.parent.scatter_reduce_(0, high, low, "amin")

    def scales(self) -> tuple[Tensor, int]:
        """Number the free classes 1..H; 0 is the scale of everything pinned.

        Returns:
            the scale of every unit, and H.
        """
        units = torch.arange(self.size)
        roots = self.find(units)
        is_free_root = (roots == units) & (units > PINNED)
        number = is_free_root.long().cumsum(0)
        return torch.where(roots > PINNED, number[roots], 0), int(number[-1])
