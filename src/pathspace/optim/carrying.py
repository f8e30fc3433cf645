r"""Momentum across a change of basis.

An average of gradients is a covector: its products with the coordinates, :math:`q_e = m_e v_e`, say
how the loss would change with the logarithm of each value. When unit u gets the in-edge b in place
of a, the values of all basis paths that start through u change by :math:`v_b/v_a`, and

.. math:: q_a \leftarrow q_a + \sum_{e\text{ behind }u} q_e, \qquad
    q_b \leftarrow q_b - \sum_{e\text{ behind }u} q_e,

all other products stay. Averages of squares keep their size relative to the coordinates. Free
weights are on no side of this: their coordinates are the same before and after.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pathspace.optim.entries import Entries
from pathspace.optim.scaletables import Table, by_end
from pathspace.optim.space import Step

if TYPE_CHECKING:
    from pathspace.optim.basis import BasisSpace


@contextlib.contextmanager
def carry(space: BasisSpace, step: Step) -> Iterator[None]:
    """Carry the rule's state from the coordinates before to those after the block."""
    if step.linear:
        yield
        return
    skeleton = space.skeleton
    free = Entries(skeleton.graph, space.sheets, skeleton.outgoing)
    kept = {name: free.take(matrices) for name, matrices, _ in _buffers(space, step)}
    before = _units_of_length(space, step)
    products = {
        name: [None if m is None else m.double() * v for m, v in zip(matrices, before, strict=True)]
        for name, matrices, power in _buffers(space, step)
        if power == 1
    }
    for name, matrices in products.items():
        free.put_(matrices, torch.zeros_like(kept[name]))
    yield
    after = _units_of_length(space, step)
    parent = skeleton.parent.clone()
    for unit in (space.skeleton.incoming != skeleton.incoming).nonzero().squeeze(1).tolist():
        behind = _behind(parent, unit)
        ends = torch.stack([skeleton.incoming[unit], space.skeleton.incoming[unit]])
        entries = Entries(skeleton.graph, space.sheets, ends)
        for matrices in products.values():
            moved = _leaving(space, matrices)[behind.to(space.device)].sum()
            entries.put_(matrices, entries.take(matrices) + torch.stack([moved, -moved]))
        parent[unit] = space.skeleton.parent[unit]
    for name, matrices, power in _buffers(space, step):
        for place, matrix in enumerate(matrices):
            if matrix is None:
                continue
            if power == 1:
                new = _present(products[name][place]) / after[place]
            else:
                new = matrix * (before[place] / after[place]) ** 2
            matrix.copy_(torch.where(new.isfinite(), new, 0.0))
        free.put_(matrices, kept[name])


def _buffers(space: BasisSpace, step: Step) -> Iterator[tuple[str, list[Tensor | None], int]]:
    """The rule's state: name, matrices by sheet, and power of the gradient."""
    buffers = {b.name: b for group in step.groups for b in step.rule.buffers(group)}
    for buffer in buffers.values():
        yield buffer.name, [state.get(buffer.name) for state in step.states], buffer.power


def _units_of_length(space: BasisSpace, step: Step) -> list[Tensor]:
    """By sheet: the change of every coordinate with the logarithm of its value."""
    found = []
    entries, log_source, log_target = space._entries, space.log_source, space.log_target
    for sheet in space.sheets:
        source, target = (sheet.scales(side).to(space.device) for side in ("source", "target"))
        found.append(sheet.weight.double() * (-log_source[source] - log_target[target]).exp())
    size = len(log_source)
    values = entries.take(found)
    values[:size] = 1 / space._unit(step)
    entries.put_(found, values)
    return found


def _leaving(space: BasisSpace, matrices: list[Tensor | None]) -> Tensor:
    """The sum of products over what leaves every unit."""
    table = Table(space.sheets, by_end(space.sheets, "source"))
    for part, matrix in zip(table.parts, matrices, strict=True):
        if part is not None:
            part.zero_()
            if matrix is not None:
                dims = [d for d in (0, 1) if part.shape[d] == 1]
                part.copy_(matrix.sum(dims, keepdim=True) if dims else matrix)
    return table.sum_into(torch.zeros_like(space.log_source))


def _present(matrix: Tensor | None) -> Tensor:
    assert matrix is not None
    return matrix


def _behind(parent: Tensor, unit: int) -> Tensor:
    """The units whose in-edges lead back to a unit, itself included."""
    behind = torch.zeros(len(parent), dtype=torch.bool)
    behind[unit] = True
    walk = torch.arange(len(parent))
    while bool(walk.any()):
        walk = parent[walk]
        behind |= walk == unit
    behind[0] = False
    return behind
