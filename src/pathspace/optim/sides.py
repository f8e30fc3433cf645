"""On which side a step of a root moves the weights of its units.

Changing the value of a root changes all that goes through its units. That is done to the weights
that leave a unit or, by rescaling the unit, to those that enter it: the function is the same. The
slope along the root is a sum over the same weights. So a unit may have the side with fewer weights,
and in a batch-normalised network these are the two numbers of its norm.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from pathspace.optim.sheets import SMALL, Sheet


def entered(sheets: Sequence[Sheet], units: Tensor, allowed: Tensor) -> Tensor:
    """Which units are moved by what enters them; all others by what leaves them.

    Large leaves cost a pass over their weights each, once for both sides; reading small ones costs
    nothing. The cheapest passes are chosen one after the other, by weights read per unit settled.

    Args:
        sheets: what a step works on.
        units: (H+1,) which scales are moved at all.
        allowed: (H+1,) which of them may be moved by what enters them.

    Returns:
        (H+1,) booleans.
    """
    result = torch.zeros_like(units)
    kinds, leaving, entering, may_enter = _kinds(sheets, units, allowed)
    counts = torch.bincount(kinds[units], minlength=int(kinds.max()) + 1)
    layers = [Layer(count) for count in counts.tolist()]
    for passes, ends in ((leaving, "out"), (entering, "into")):
        for leaf, scales in passes.items():
            for kind in torch.unique(kinds[scales[units[scales]]]).tolist():
                getattr(layers[kind], ends).add(leaf)
    for kind in torch.unique(kinds[units & ~may_enter]).tolist():
        layers[kind].may_enter = False
    sizes = {leaf: sheets[leaf].weight.numel() for leaf in (*leaving, *entering)}
    costs = {leaf: size if size >= SMALL else 0 for leaf, size in sizes.items()}
    _settle(layers, costs)
    for kind, layer in enumerate(layers):
        if layer.is_entered:
            result |= units & (kinds == kind)
    return result


@dataclass
class Layer:
    """Units that the same large leaves leave and enter."""

    size: int
    out: set[int] = field(default_factory=set)
    into: set[int] = field(default_factory=set)
    may_enter: bool = True
    is_entered: bool = False
    is_settled: bool = False

    def sides(self) -> Iterable[tuple[bool, set[int]]]:
        """Whether it is the entering one, and the leaves to be read for it."""
        yield False, self.out
        if self.may_enter:
            yield True, self.into


def _kinds(
    sheets: Sequence[Sheet], units: Tensor, allowed: Tensor
) -> tuple[Tensor, dict[int, Tensor], dict[int, Tensor], Tensor]:
    """Units numbered by their large leaves, these leaves by both ends, and who may be entered."""
    generator = torch.Generator().manual_seed(0)
    marks = torch.zeros(2, len(units), dtype=torch.long)
    may_enter = units & allowed
    ends: tuple[dict[int, Tensor], dict[int, Tensor]] = {}, {}
    for place, sheet in enumerate(sheets):
        source, target = sheet.scales("source"), sheet.scales("target")
        if sheet.single:
            for row, scales in enumerate((source, target)):
                ends[row][place] = found = torch.unique(scales)
                marks[row, found] += torch.randint(2**40, (), generator=generator)
        else:  # an entry there has one factor: not for both of its ends
            source, target = torch.broadcast_tensors(source, target)
            may_enter[target[source != 0]] = False
    marks[:, ~units] = 0
    both = torch.cat([marks, may_enter[None].long()])
    kinds = torch.unique(both, dim=1, return_inverse=True)[1]
    first = torch.full((int(kinds.max()) + 1,), len(units))
    first.scatter_reduce_(0, kinds, torch.arange(len(units)), "amin")
    return first.argsort().argsort()[kinds], *ends, may_enter  # in the order of the units


def _settle(layers: list[Layer], costs: dict[int, int]) -> None:
    """Choose sides, cheapest passes first; a leaf that has been read costs nothing more."""
    read: set[int] = set()
    touched: dict[int, list[int]] = {}
    for number, layer in enumerate(layers):
        for leaf in layer.out | layer.into:
            touched.setdefault(leaf, []).append(number)

    def settled_by(number: int, leaves: set[int]) -> set[int]:
        near = {number, *(n for leaf in leaves for n in touched[leaf])}
        known = read | leaves
        return {
            n
            for n in near
            if not layers[n].is_settled and any(side <= known for _, side in layers[n].sides())
        }

    def score(number: int, entering: bool) -> float:
        leaves = layers[number].into if entering else layers[number].out
        units = sum(layers[n].size for n in settled_by(number, leaves))
        return sum(costs[leaf] for leaf in leaves - read) / max(units, 1)

    queue = [
        (score(number, entering), number, entering)
        for number, layer in enumerate(layers)
        if layer.size
        for entering, _ in layer.sides()
    ]
    heapq.heapify(queue)
    while queue:
        value, number, entering = heapq.heappop(queue)
        if layers[number].is_settled:
            continue
        now = score(number, entering)
        if now > value:
            heapq.heappush(queue, (now, number, entering))
            continue
        leaves = layers[number].into if entering else layers[number].out
        settled = settled_by(number, leaves)
        read |= leaves
        for n in settled:
            layer = layers[n]
            layer.is_settled = True
            layer.is_entered = next(side for side, known in layer.sides() if known <= read)
        for leaf in leaves:  # what else needs them has become cheaper
            for n in touched[leaf]:
                if not layers[n].is_settled:
                    for side, _ in layers[n].sides():
                        heapq.heappush(queue, (score(n, side), n, side))
