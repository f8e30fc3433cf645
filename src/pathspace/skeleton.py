r"""The skeleton: one in-edge and one out-edge per free unit, so that both form forests.

The in-edges form a forest rooted at pinned units (inputs, the constant), the out-edges one rooted
at pinned units (outputs). The H out-edges are the *free skeleton weights*. Every other weight names
one basis path: down the in-forest to its source, along the weight, down the out-forest.

Both forests are free of cycles by construction, also where a residual stream is one shared unit:
an in-edge is taken from the first tensor that writes a unit, an out-edge from the last that reads
it, so following them moves strictly backwards (forwards) in the order of computation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from pathspace.balancing import balance_weights
from pathspace.errors import PathspaceError
from pathspace.network import Edge, Network
from pathspace.weightgraph import WeightGraph, Weights, pick

Choice = Literal["modulo", "largest", "random"]
Side = Literal["target", "source"]
_OTHER: dict[Side, Side] = {"target": "source", "source": "target"}
WeightIndex = tuple[str, tuple[int, ...]]
_TIE = 1e-5  # sizes that differ by less, relatively, are equal: more than float32 rounds


class SkeletonError(PathspaceError, ValueError):
    """There is no skeleton: a dead unit, or a choice that does not form forests."""


@dataclass(frozen=True)
class Skeleton:
    """The in-edge and the out-edge of every free scale, as numbers of scalar weights.

    Attributes:
        graph: the weights of the network.
        incoming: (H+1,) number of the in-edge of each scale; -1 for the pinned scale 0.
        outgoing: (H+1,) number of the out-edge of each scale; -1 for the pinned scale 0.
        parent: (H+1,) the scale that the in-edge comes from.
        child: (H+1,) the scale that the out-edge leads to.
    """

    graph: WeightGraph
    incoming: Tensor
    outgoing: Tensor
    parent: Tensor
    child: Tensor

    def __str__(self) -> str:
        graph, shown = self.graph, 40
        lines = [f"skeleton with {graph.H:,} free weights among {graph.m:,}"]
        for scale in range(1, 1 + min(shown, graph.H)):
            into = graph.name(int(self.incoming[scale]))
            out = graph.name(int(self.outgoing[scale]))
            lines.append(f"  {into} → {graph.unit(scale)} → {out}")
        if shown < graph.H:
            lines.append(f"  … and {graph.H - shown:,} more")
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"<Skeleton of {self.graph.H:,} units>"

    def draw(self, ax: Any = None) -> Any:
        """Draw a small network, its skeleton in red; :func:`pathspace.plot.draw_skeleton`."""
        from pathspace.plot import draw_skeleton

        return draw_skeleton(self, ax)


def choose_skeleton(
    network: Network,
    choice: Choice | Mapping[str, Sequence[WeightIndex]] = "modulo",
    *,
    state: Mapping[str, Tensor] | None = None,
    generator: torch.Generator | None = None,
) -> Skeleton:
    """Choose and validate a skeleton.

    Args:
        network: the traced network.
        choice: ``"modulo"`` is the papers' choice: unit j of a layer gets its in-edge from unit
            j mod h of the layer before and its out-edge to unit j mod h of the layer behind, at
            the centre of a kernel. ``"largest"`` takes the weight of largest size in the balanced
            representative of the network, so that the choice does not depend on the scaling.
            ``"random"`` draws uniformly among the weights that are at least half as large, there,
            as that one: how much a measure depends on the skeleton can be seen from a few. A
            mapping ``{"incoming": [...], "outgoing": [...]}`` of one ``(parameter, index)`` per
            free scale is taken as it is. Where a chosen weight is zero, the largest takes its
            place; a unit all of whose weights on one side are zero is an error that names it.
        state: parameters and buffers to choose for; by default the model's.
        generator: of the ``"random"`` choice, on the CPU; by default one with seed 0.

    Reference: Meng et al. 2019, section 4.1 and Algorithm 2.
    """
    graph = WeightGraph(network)
    weights = {name: w.detach() for name, w in graph.finite_weights(state).items()}
    if isinstance(choice, Mapping):
        return _explicit(graph, weights, choice)
    if choice not in ("modulo", "largest", "random"):
        raise ValueError(
            f'skeleton must be "modulo", "largest", "random" or a mapping, not {choice!r}'
        )
    if choice == "random" and generator is None:
        generator = torch.Generator().manual_seed(0)
    drawn = generator if choice == "random" else None
    incoming = choose_edges(graph, weights, "target", choice, drawn)
    outgoing = choose_edges(graph, weights, "source", choice, drawn)
    return _validated(graph, weights, incoming, outgoing)


def choose_edges(
    graph: WeightGraph,
    weights: Weights,
    side: Side,
    choice: Choice,
    generator: torch.Generator | None,
) -> Tensor:
    """The in-edges (``side="target"``) or out-edges (``side="source"``) of all scales.

    An edge may be chosen only if it leads strictly closer to the roots of the forest. The order is
    that of computation; where weights used twice make that impossible, the distance from the roots.
    """
    numbers = torch.full((graph.H + 1,), -1)
    logs = None
    for order in (order_of_computation, _distance):
        rank = order(graph, side)
        if choice == "modulo":
            numbers = fill_edges(numbers, graph, weights, side, rank, None)
        for constant in (False, True):  # biases only where nothing else is left
            if bool((numbers[1:] >= 0).all()):
                return numbers
            logs = _balanced(graph, weights) if logs is None else logs
            largest = fill_edges(numbers, graph, weights, side, rank, logs, constant)
            if generator is not None:
                lots = _lots(graph, weights, largest, side, logs, generator)
                largest = fill_edges(
                    numbers, graph, lots, side, rank, torch.zeros_like(logs), constant
                )
            numbers = largest
    return numbers


def _lots(
    graph: WeightGraph,
    weights: Weights,
    largest: Tensor,
    side: Side,
    logs: Tensor,
    generator: torch.Generator,
) -> Weights:
    """Random numbers at the weights at least half as large as the largest of their unit, else 0."""
    sizes = {
        edge.parameter: weights[edge.parameter].to("cpu", torch.float64).abs()
        * edge.ratio(logs).exp()
        for edge in graph.edges
    }
    half = graph.places(largest).take(sizes, 0.0) / 2
    return {
        edge.parameter: (1 - torch.rand(edge.shape, generator=generator, dtype=torch.float64))
        * (sizes[edge.parameter] >= half[edge.scale(side)])
        for edge in graph.edges
    }


def _balanced(graph: WeightGraph, weights: Weights) -> Tensor:
    """Logarithms of the balancing scales, with the pinned scale 0 in front."""
    movable = torch.ones(graph.H + 1, dtype=torch.bool)
    movable[0] = False
    return torch.cat([torch.zeros(1).double(), balance_weights(graph.edges, weights, movable)])


def order_of_computation(graph: WeightGraph, side: Side) -> Tensor:
    """When each scale is first written (in-edges), or minus when it is last read (out-edges)."""
    rank = torch.full((graph.H + 1,), len(graph.edges))
    for k, edge in enumerate(graph.edges):
        own = edge.scale(side).reshape(-1)
        when = own.new_full((), k if side == "target" else -k).expand_as(own)
        rank.scatter_reduce_(0, own, when, "amin")
    rank[0] = -len(graph.edges)
    return rank


def _distance(graph: WeightGraph, side: Side) -> Tensor:
    """The least number of edges between each scale and a pinned one."""
    far = graph.H + 1
    rank = torch.full((graph.H + 1,), far)
    rank[0] = 0
    edges = graph.edges if side == "target" else graph.edges[::-1]  # away from the roots
    while True:
        before = rank.clone()
        for edge in edges:
            if not edge.from_constant:
                own = edge.scale(side)
                steps = (rank[edge.scale(_OTHER[side])] + 1).clamp_max(far).expand(edge.shape)
                dims = [d for d, size in enumerate(own.shape) if size == 1]
                least = steps.amin(dims, keepdim=True) if dims else steps
                rank.scatter_reduce_(0, own.reshape(-1), least.reshape(-1), "amin")
        if torch.equal(rank, before):
            return rank


def fill_edges(
    numbers: Tensor,
    graph: WeightGraph,
    weights: Weights,
    side: Side,
    rank: Tensor,
    logs: Tensor | None,
    constant: bool = False,
) -> Tensor:
    """Choose an edge for the scales that have none yet.

    Without ``logs``, edges by the modulo rule, tensor by tensor in the order of ``rank``; with it,
    those of largest size after rescaling by these logarithms.
    """
    missing = numbers < 0
    missing[0] = False
    size = torch.zeros(graph.H + 1, dtype=torch.float64)
    best = numbers.clone()
    for k, edge in enumerate(graph.edges):
        own, other = edge.scale(side), edge.scale(_OTHER[side])
        if edge.from_constant != constant or not bool(missing[own].any()):
            continue
        weight = weights[edge.parameter]
        if logs is None:
            place = _modulo(edge, side)
            found = weight.reshape(-1)[place.to(weight.device)].to("cpu", torch.float64).abs()
            index = torch.unravel_index(place, edge.shape)
            scales, far = pick(own, index), pick(other, index)
            # Earlier tensors first (later ones for out-edges), whatever the size of the weight.
            priority = len(graph.edges) + (-k if side == "target" else k)
            allowed = (found > 0) & (rank[far] < rank[scales])
            found = priority * allowed.double()
        else:
            score = weight.to("cpu", torch.float64).abs() * edge.ratio(logs).exp()
            score = score * (rank[other] < rank[own])
            found, place = _maximum(score, own.shape)
            scales = own.reshape(-1)
        here, row = torch.unique(scales, return_inverse=True)  # not all scales: O(H) per tensor
        new = size.new_zeros(len(here)).scatter_reduce(0, row, found, "amax")
        equal, larger = found >= new[row] * (1 - _TIE), found > size[scales] * (1 + _TIE)
        wins = equal & larger & missing[scales]
        first = best.new_full((len(here),), graph.m).scatter_reduce(
            0, row[wins], place[wins] + graph.start[k], "amin"
        )
        best[here] = torch.where(first < graph.m, first, best[here])
        size[here] = torch.where(missing[here], torch.maximum(size[here], new), size[here])
    return best


def _maximum(score: Tensor, shape: torch.Size) -> tuple[Tensor, Tensor]:
    """Largest entry over the axes on which ``shape`` has size 1, and its place in the tensor.

    Of entries that differ in rounding only, the first: where a unit has one weight on one side,
    balancing makes weights exactly equal, and which of them comes out larger is chance.
    """
    if not score.dim():
        return score.reshape(1), torch.zeros(1, dtype=torch.long)
    kept = [d for d in range(score.dim()) if shape[d] > 1 or score.shape[d] == 1]
    rest = [d for d in range(score.dim()) if d not in kept]
    rows = score.permute(*kept, *rest).reshape(shape.numel(), -1)
    value = rows.amax(1)
    column = (rows >= value[:, None] * (1 - _TIE)).view(torch.uint8).argmax(1)
    row = torch.arange(len(rows))
    return value, _flat(row, kept, score.shape) + _flat(column, rest, score.shape)


def _flat(number: Tensor, dims: Sequence[int], shape: Sequence[int]) -> Tensor:
    """Where in a whole tensor the entries of these numbers along some axes are, other axes 0.

    In its place one could look up an ``arange`` as large as the tensor, twice its memory.
    """
    result = torch.zeros_like(number)
    for dim in reversed(dims):
        result += number % shape[dim] * math.prod(shape[dim + 1 :])
        number = number // shape[dim]
    return result


def _modulo(edge: Edge, side: Side) -> Tensor:
    """Places chosen by the papers' rule: unit j meets unit j mod h, at the centre of the kernel.

    Units that follow each other along the weight's axes (a kernel, or the positions of a feature
    map that was flattened) count as one; the middle one of their weights is taken.
    """
    own = edge.target if side == "target" else edge.source
    other = edge.source if side == "target" else edge.target
    axes = [d for d in range(len(edge.shape)) if own.shape[d] > 1 or edge.shape[d] == 1]
    rest = [d for d in range(len(edge.shape)) if d not in axes]
    rows = _middles(own.reshape(-1))
    first = tuple(0 if d in axes else slice(None) for d in range(len(edge.shape)))
    columns = _middles(other.expand(edge.shape)[first].reshape(-1))
    column = columns[torch.arange(len(rows)) % len(columns)]
    return _flat(rows, axes, edge.shape) + _flat(column, rest, edge.shape)


def _middles(units: Tensor) -> Tensor:
    """The middle of every run of equal entries."""
    starts = torch.cat([torch.tensor([True]), units[1:] != units[:-1]]).nonzero().squeeze(1)
    ends = torch.cat([starts[1:], torch.tensor([len(units)])])
    return starts + (ends - starts) // 2


def _explicit(
    graph: WeightGraph, weights: Weights, choice: Mapping[str, Sequence[WeightIndex]]
) -> Skeleton:
    if set(choice) != {"incoming", "outgoing"}:
        raise SkeletonError('an explicit skeleton needs the keys "incoming" and "outgoing"')
    sides = []
    for key, side in (("incoming", "target"), ("outgoing", "source")):
        numbers = [graph.number(*weight) for weight in choice[key]]
        if len(numbers) != graph.H:
            raise SkeletonError(
                f"{key!r} has {len(numbers)} weights, one per free scale is {graph.H}"
            )
        chosen = torch.tensor(numbers, dtype=torch.long)
        source, target = graph.places(chosen).ends()
        own = target if side == "target" else source
        by_scale = torch.full((graph.H + 1,), -1)
        by_scale[own] = chosen
        by_scale[0] = -1
        lacking = (by_scale[1:] < 0).nonzero()
        if len(lacking):
            unit = graph.unit(int(lacking[0]) + 1)
            raise SkeletonError(f"{key!r} has no weight for unit {unit}")
        sides.append(by_scale)
    return _validated(graph, weights, sides[0], sides[1])


def _validated(
    graph: WeightGraph, weights: Weights, incoming: Tensor, outgoing: Tensor
) -> Skeleton:
    """Check that every unit has both edges, that they are not zero and form forests."""
    ends = {}
    for name, numbers, way in (("in", incoming, "incoming"), ("out", outgoing, "outgoing")):
        missing = (numbers[1:] < 0).nonzero()
        if len(missing):
            raise SkeletonError(_no_edge(graph, int(missing[0]) + 1, len(missing), way))
        places = graph.places(numbers)
        zero = (places.take(weights) == 0).nonzero()
        if len(zero):
            raise SkeletonError(
                f"the {name}-edge `{graph.name(int(numbers[zero[0]]))}` of unit "
                f"{graph.unit(int(zero[0]))} is zero, so its basis paths have no coordinates; "
                "choose another edge"
            )
        ends[name] = places.ends()
    parent, child = ends["in"][0], ends["out"][1]
    for way, step in (("incoming", parent), ("outgoing", child)):
        walk = step
        for _ in range(max(graph.H, 1).bit_length()):
            walk = walk[walk]
        if bool((walk != 0).any()):
            unit = graph.unit(int((walk != 0).nonzero()[0]))
            raise SkeletonError(f"the {way} edges form a cycle through unit {unit}")
    return Skeleton(graph, incoming, outgoing, parent, child)


def _no_edge(graph: WeightGraph, scale: int, count: int, way: str) -> str:
    side: Side = "target" if way == "incoming" else "source"
    others = f" (and {count - 1:,} more units)" if count > 1 else ""
    if not any(bool((edge.scale(side) == scale).any()) for edge in graph.edges):
        what = "is never read: no path passes through it; leave that layer out of the model"
    else:
        what = (
            f"is dead: all its {way} weights are zero, so no path through it has a value; "
            "prune the unit, or give it a weight"
        )
    return f"unit {graph.unit(scale)} {what}{others}"
