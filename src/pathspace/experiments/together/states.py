"""Optimizers of single networks and the one of a stack: what each remembers, in the other's terms.

A trial that runs in a stack is at any time a trial of its own too: its weights and the state of its
own optimizer can be taken out of the stack and put back, so checkpoints are those of single trials.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from pathspace.network import Edge, Network
from pathspace.optim.basis import BasisSpace
from pathspace.optim.optimizer import InvariantOptimizer
from pathspace.optim.spaces import DiagonalSpace

UNITS = ("log_source", "log_target")  # one number per unit
EDGES = ("incoming", "outgoing")  # one weight per unit
COUNTS = ("rechosen", "limited")  # one number per network


class Correspondence:
    """Scales and weights of a stack of T networks, and of a single one of them.

    Attributes:
        scales: (T, H+1) the scale in the stack that each scale of a single network is.
    """

    def __init__(self, stacked: Network, single: Network) -> None:
        self.copies = stacked.copies
        ours, theirs = _by_parameter(stacked), _by_parameter(single)
        self.scales = torch.zeros(self.copies, single.H + 1, dtype=torch.long)
        for mine, other in zip(ours, theirs, strict=True):
            for side in ("target", "source"):
                union, alone = torch.broadcast_tensors(mine.scale(side), other.scale(side)[None])
                self.scales.scatter_(
                    1, alone.reshape(self.copies, -1), union.reshape(self.copies, -1)
                )
        self._starts, self._stacked_starts = _starts(theirs, single), _starts(ours, stacked)
        self._counts = torch.tensor([edge.count for edge in theirs])

    def spread(self, rows: Tensor, pinned: float = 0) -> Tensor:
        """(T, H+1) by scale of single networks, as one by scale of the stack."""
        size = int(self.scales.max()) + 1
        spread = rows.new_zeros(size).scatter(0, self.scales.reshape(-1), rows.reshape(-1))
        spread[0] = pinned
        return spread

    def join_numbers(self, numbers: Tensor) -> Tensor:
        """(T, n) numbers of weights in single networks, -1 for none, as numbers in the stack."""
        k = _last_before(numbers, self._starts)
        copy = torch.arange(self.copies)[:, None]
        found = self._stacked_starts[k] + copy * self._counts[k] + numbers - self._starts[k]
        return torch.where(numbers < 0, -1, found)

    def split_numbers(self, numbers: Tensor) -> Tensor:
        """The inverse of :meth:`join_numbers`."""
        k = _last_before(numbers, self._stacked_starts)
        copy = torch.arange(self.copies)[:, None]
        found = numbers - self._stacked_starts[k] - copy * self._counts[k] + self._starts[k]
        return torch.where(numbers < 0, -1, found)


def join(
    stacked: InvariantOptimizer,
    singles: Sequence[Optimizer],
    relation: Correspondence,
    taken: int,
) -> None:
    """Give the optimizer of a stack what those of the single networks remember.

    Args:
        stacked: the optimizer of the stack.
        singles: those of the networks.
        relation: between stack and networks.
        taken: number of steps taken so far.
    """
    columns = zip(*(_parameters(single) for single in singles), strict=True)
    for parameter, column in zip(_parameters(stacked), columns, strict=True):
        states = [single.state.get(p, {}) for single, p in zip(singles, column, strict=True)]
        for name in states[0]:
            values = [state[name] for state in states]
            stacked.state[parameter][name] = (
                values[0].clone() if name == "step" else torch.stack(values)
            )
        if states[0] and "step" not in states[0]:  # torch's SGD keeps no count
            stacked.state[parameter]["step"] = torch.tensor(float(taken))
    if ours := _with_space(singles):
        stacked.skipped = torch.tensor([int(single.skipped) for single in ours])
        held = [single.space.state_dict() for single in ours]
        stacked.space.load_state_dict(_join_space(stacked, held, relation))


def split(
    stacked: InvariantOptimizer, singles: Sequence[Optimizer], relation: Correspondence
) -> None:
    """Give the optimizers of the single networks what that of the stack remembers; see `join`."""
    columns = zip(*(_parameters(single) for single in singles), strict=True)
    for parameter, column in zip(_parameters(stacked), columns, strict=True):
        for name, value in stacked.state.get(parameter, {}).items():
            for number, (single, p) in enumerate(zip(singles, column, strict=True)):
                if name == "step" and isinstance(single, torch.optim.SGD):
                    continue
                part = value if name == "step" else value[number]
                single.state[p][name] = part.detach().clone()
    if ours := _with_space(singles):
        states = _split_space(stacked, relation)
        skipped = torch.as_tensor(stacked.skipped).expand(len(ours)).tolist()
        for single, count, state in zip(ours, skipped, states, strict=True):
            single.skipped = count
            single.space.load_state_dict(state)


def _with_space(optimizers: Sequence[Optimizer]) -> list[InvariantOptimizer]:
    """Those that remember more than torch's do: all of them, or none."""
    return [one for one in optimizers if isinstance(one, InvariantOptimizer)]


def _join_space(
    stacked: InvariantOptimizer, held: Sequence[dict[str, Any]], relation: Correspondence
) -> dict[str, Any]:
    space = stacked.space
    state: dict[str, Any] = {"taken": held[0]["taken"]} if held[0] else {}
    if isinstance(space, DiagonalSpace):
        return state | {"layout": []}
    if isinstance(space, BasisSpace):
        for name in UNITS:
            state[name] = relation.spread(torch.stack([one[name].cpu() for one in held]))
        for name in EDGES:
            rows = relation.join_numbers(torch.stack([one[name] for one in held]))
            state[name] = relation.spread(rows, -1)
        for name in COUNTS:
            state[name] = torch.tensor([int(one[name]) for one in held])
    return state


def _split_space(stacked: InvariantOptimizer, relation: Correspondence) -> list[dict[str, Any]]:
    state, copies = stacked.space.state_dict(), stacked.network.copies
    if isinstance(stacked.space, DiagonalSpace):
        return [{"taken": state["taken"], "layout": []} for _ in range(copies)]
    if not isinstance(stacked.space, BasisSpace):
        return [{} for _ in range(copies)]
    units = {name: state[name].cpu()[relation.scales] for name in UNITS}
    edges = {name: relation.split_numbers(state[name][relation.scales]) for name in EDGES}
    counts = {name: torch.as_tensor(state[name]).expand(copies) for name in COUNTS}
    return [
        {name: rows[number].clone() for name, rows in (units | edges).items()}
        | {name: int(numbers[number]) for name, numbers in counts.items()}
        | {"taken": state["taken"]}
        for number in range(copies)
    ]


def _last_before(numbers: Tensor, starts: Tensor) -> Tensor:
    """Which parameter the weights of these numbers belong to."""
    order = starts.argsort()
    return order[torch.searchsorted(starts[order], numbers.clamp_min(0), right=True) - 1]


def _parameters(optimizer: Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _by_parameter(network: Network) -> list[Edge]:
    """The edges, in the order of the model's parameters."""
    edges = {edge.parameter: edge for edge in network.edges}
    return [edges[name] for name in network.parameters() if name in edges]


def _starts(edges: Sequence[Edge], network: Network) -> Tensor:
    """The number of the first weight of each of these edges in the network's graph."""
    first, start = {}, 0
    for edge in network.edges:
        first[edge.parameter] = start
        start += edge.count
    return torch.tensor([first[edge.parameter] for edge in edges])
