r"""All paths of a small network, one by one: the slow truth that the fast code is checked against.

A path runs along the edges of the graph from a pinned unit (an input, the constant) to a pinned
unit (an output). Its value is the product of its weights. A hidden unit that is pinned (because it
is returned and read on, meets something that is not homogeneous, or is part of a pinned stream)
ends paths and begins others, because a rescaling cannot move what goes into it to what goes out.
:func:`~pathspace.path_norm` goes on through such units where it can: from inputs to outputs.

For a piecewise linear network without such units the output is
:math:`\sum_p v_p \, a_p(x) \, x_{i_0(p)}`, with :math:`a_p(x)` the product of the slopes of the
activations along the path. The number of paths grows exponentially with depth, so everything here
refuses above a limit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call
from torch.overrides import TorchFunctionMode

from pathspace.errors import PathspaceError
from pathspace.network import Network
from pathspace.tracing.guards import unchanged
from pathspace.tracing.table import TABLE
from pathspace.weightgraph import WeightGraph, Weights

Path = tuple[int, ...]  # numbers of the weights, see WeightGraph.name

LIMIT = 100_000


def count_paths(network: Network) -> int:
    """The number of paths, without listing them."""
    edges, joins = _adjacency(network)
    return _counts(network, edges, joins)


def paths(network: Network, *, limit: int = LIMIT) -> list[Path]:
    """All paths, as tuples of weight numbers (:meth:`WeightGraph.name` names them).

    From pinned unit to pinned unit, so that their values have m − H degrees of freedom. Where a
    hidden unit is pinned (its layer is returned and read on, for example) a path ends and others
    begin, unlike those that :func:`~pathspace.path_norm` sums over.

    Raises:
        PathspaceError: if there are more than ``limit``, or if the graph of units is not known
            exactly (a weight used twice, different units combined by a pooling window).

    Example:
        >>> import torch, pathspace as ps
        >>> model = torch.nn.Sequential(
        ...     torch.nn.Linear(2, 3, bias=False),
        ...     torch.nn.ReLU(),
        ...     torch.nn.Linear(3, 2, bias=False),
        ... )
        >>> len(ps.paths(ps.trace(model, torch.ones(1, 2))))
        12
    """
    if network.coarse is not None:
        raise PathspaceError(f"paths cannot be listed one by one: {network.coarse}")
    edges, joins = _adjacency(network)
    total = _counts(network, edges, joins)
    if total > limit:
        raise PathspaceError(
            f"the network has {total:.3g} paths; enumeration stops at limit={limit:,}"
        )
    pinned = (network.scale == 0).tolist()
    found: list[Path] = []

    def walk(unit: int, trail: Path) -> None:
        if pinned[unit]:
            found.append(trail)
            return
        for number, target in edges.get(unit, ()):
            walk(target, (*trail, number))
        for target in joins.get(unit, ()):
            walk(target, trail)

    for unit in sorted(edges):
        if pinned[unit]:
            for number, target in edges[unit]:
                walk(target, (number,))
    return found


def path_values(
    network: Network, state: Mapping[str, Tensor] | None = None, *, limit: int = LIMIT
) -> Tensor:
    """The value of every path, in the order of :func:`paths`."""
    graph = WeightGraph(network)
    weights = graph.finite_weights(network.state() if state is None else state)
    flat = torch.cat([weights[edge.parameter].detach().reshape(-1) for edge in graph.edges])
    return torch.stack([flat[list(path)].prod() for path in paths(network, limit=limit)])


def structure_matrix(network: Network, *, limit: int = LIMIT) -> Tensor:
    """The (m, number of paths) matrix A: entry 1 where a path runs along a weight.

    Its rank is m − H: the paths have m − H degrees of freedom. Weights that no path runs along,
    such as the slopes of PReLU, have a row of zeros and do not count in m there.

    Reference: Meng et al. 2019, section 3.2 and Theorem 3.4.
    """
    graph = WeightGraph(network)
    listed = paths(network, limit=limit)
    matrix = torch.zeros(graph.m, len(listed), dtype=torch.float64)
    for column, path in enumerate(listed):
        matrix[list(path), column] = 1.0
    return matrix


def structure_rank(network: Network, *, limit: int = LIMIT) -> int:
    """The rank of the structure matrix: m − H (weights that paths run along less free scales)."""
    return int(torch.linalg.matrix_rank(structure_matrix(network, limit=limit)))


def path_activations(
    network: Network,
    x: Any,
    state: Mapping[str, Tensor] | None = None,
    *,
    limit: int = LIMIT,
) -> Tensor:
    r"""The activation status :math:`a_p(x)` of every path, for every sample: (paths, batch).

    For a fully connected ReLU network it is 1 where all units along the path are active and 0
    elsewhere. With weights shared over space it is the number of active routes of the path.

    It follows from the basis-path values and the *signs* of the free skeleton weights alone: pass
    ``state=basis.weights(values, free=signs)``.

    Reference: Meng et al. 2019, Eq. (2), Lemma 10.1 and Eq. (30)-(31).
    """
    ones = tuple(torch.ones_like(t) for t in _arguments(x))
    return _contributions(network, _arguments(x), ones, state, limit).flatten(2).sum(2)


def output_from_paths(
    network: Network,
    x: Any,
    state: Mapping[str, Tensor] | None = None,
    *,
    limit: int = LIMIT,
) -> Tensor:
    r"""The network's output, computed as :math:`\sum_p v_p\, a_p(x)\, x_{i_0(p)}` (eval mode).

    Reference: Meng et al. 2019, Eq. (1)-(2).
    """
    parts = _contributions(network, _arguments(x), _arguments(x), state, limit)
    values = path_values(network, state, limit=limit).to(parts)
    if not bool(values.isfinite().all()):
        raise PathspaceError(
            f"the values of paths leave the range of {values.dtype}; use a dtype with a larger "
            "range, or balance the network first"
        )
    return torch.tensordot(values, parts, dims=1)


# Helpers ---------------------------------------------------------------------------------------


def _adjacency(network: Network) -> tuple[dict[int, list[tuple[int, int]]], dict[int, list[int]]]:
    """Outgoing weights (number, target) and outgoing sums of every unit."""
    graph = WeightGraph(network)
    edges: dict[int, list[tuple[int, int]]] = {}
    for k, edge in enumerate(graph.edges):
        if edge.is_fixed:  # slopes of PReLU and the like: no path runs along them
            continue
        sources = edge.source.expand(edge.shape).reshape(-1).tolist()
        targets = edge.target.expand(edge.shape).reshape(-1).tolist()
        for place, (source, target) in enumerate(zip(sources, targets, strict=True)):
            edges.setdefault(source, []).append((int(graph.start[k]) + place, target))
    joins: dict[int, list[int]] = {}
    for totals, parts in network.joins:
        for total, part in zip(totals.tolist(), parts.tolist(), strict=True):
            joins.setdefault(part, []).append(total)
    return edges, joins


def _counts(
    network: Network,
    edges: dict[int, list[tuple[int, int]]],
    joins: dict[int, list[int]],
) -> int:
    pinned = (network.scale == 0).tolist()
    onward = [0] * len(pinned)
    for unit in range(len(pinned) - 1, -1, -1):  # units are numbered in the order of computation
        if pinned[unit]:
            onward[unit] = 1
        else:
            onward[unit] = sum(onward[target] for _, target in edges.get(unit, ()))
            onward[unit] += sum(onward[target] for target in joins.get(unit, ()))
    return sum(onward[target] for unit, out in edges.items() if pinned[unit] for _, target in out)


def _arguments(x: Any) -> tuple[Tensor, ...]:
    return tuple(x) if isinstance(x, tuple | list) else (x,)


def _contributions(
    network: Network,
    gates: tuple[Tensor, ...],
    inputs: tuple[Tensor, ...],
    given: Mapping[str, Tensor] | None,
    limit: int,
) -> Tensor:
    """What every path adds to the output on ``inputs``, per unit of its value.

    The activations are frozen as they are on ``gates``; the network is then a polynomial in its
    weights. With t times the indicator of a path's L weights in place of the weights, the
    coefficient of t^L is what this path alone adds: an L-th difference at t = 0, 1, ..., L.
    """
    bad = [s for s in network.spaces if set(s.reasons) - {"input", "output"}]
    if bad:
        raise PathspaceError(
            f"the output is no sum over paths: units of `{bad[0].name}` are pinned "
            f"({bad[0].reasons[0]}); "
            + ('trace with streams="shared"' if network.streams == "pinned" else "")
        )
    graph = WeightGraph(network)
    for space in network.spaces:
        ends = torch.arange(space.start, space.start + space.size)[network.scale[space.units] == 0]
        if "output" in space.reasons and "input" not in space.reasons and _are_read(graph, ends):
            raise PathspaceError(
                f"the output is no sum over paths: units of `{space.name}` are returned and read "
                "on, so paths end there; trace a model that returns only what is read last"
            )
    state = {name: t.detach() for name, t in (given or network.state()).items()}
    graph.finite_weights(state)
    listed = paths(network, limit=limit)
    record = _Gates(None)
    with unchanged(network.model, training=False):
        with record:
            functional_call(network.model, state, gates)
        parts = []
        for path in listed:
            one = _indicator(graph, state, path)
            degree = len(path)
            total: Any = 0.0
            for t in range(degree + 1):
                scaled = graph.state({name: t * w for name, w in one.items()}, state)
                with _Gates(record.slopes):
                    value = functional_call(network.model, scaled, inputs)
                sign = (-1) ** (degree - t) * math.comb(degree, t)
                total = total + sign * value
            parts.append(total / math.factorial(degree))
    found = torch.stack(parts)
    if not bool(found.isfinite().all()):
        raise PathspaceError(
            f"what paths add to the output leaves the range of {found.dtype}: are all inputs "
            "finite? If so, use a dtype with a larger range"
        )
    return found


def _are_read(graph: WeightGraph, units: Tensor) -> bool:
    """Whether weights or sums lead on from any of these units."""
    parts = [edge.source for edge in graph.edges] + [part for _, part in graph.network.joins]
    return any(bool(torch.isin(units, part).any()) for part in parts)


def _indicator(graph: WeightGraph, state: Mapping[str, Tensor], path: Path) -> Weights:
    weights = {name: torch.zeros_like(w) for name, w in graph.weights(state).items()}
    places = graph.places(torch.tensor(path))
    places.put_(weights, torch.ones(len(path)))
    return weights


class _Gates(TorchFunctionMode):
    """Records the slope of every activation, or replays recorded slopes as a linear map."""

    def __init__(self, slopes: list[Any] | None) -> None:
        super().__init__()
        self.recording = slopes is None
        self.slopes: list[Any] = [] if slopes is None else slopes
        self.next = 0

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        known = TABLE.get(func)
        name = known.name if known else ""
        if name in ("relu", "leaky_relu", "prelu", "threshold", "clamp", "clamp_min"):
            return self._elementwise(
                func, args, {**kwargs, "inplace": False} if "inplace" in kwargs else kwargs
            )
        if name.startswith(("max_pool", "adaptive_max_pool")):
            return self._pool(name, args, kwargs)
        if name in ("maximum", "minimum", "max", "min", "amax", "amin", "abs", "where", "norm"):
            raise PathspaceError(f"`{name}` is not frozen; paths are listed for ReLU and pooling")
        return func(*args, **kwargs)

    def _slope(self, compute: Callable[[], Any]) -> Any:
        if self.recording:
            self.slopes.append(compute())
            return self.slopes[-1]
        self.next += 1
        return self.slopes[self.next - 1]

    def _elementwise(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Any) -> Tensor:
        x: Tensor = args[0] if args else kwargs["input"]

        def slope() -> Tensor:
            y = func(x.clone(), *args[1:], **{k: v for k, v in kwargs.items() if k != "input"})
            return torch.where(x == 0, 0.0, y / x)

        return x * self._slope(slope)

    def _pool(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        x: Tensor = args[0] if args else kwargs["input"]
        options = {k: v for k, v in kwargs.items() if k not in ("input", "return_indices")}
        given = args[1 : 2 if name.startswith("adaptive") else 6]  # without "return_indices"
        pool = getattr(F, name.removesuffix("_with_indices"))
        places = self._slope(lambda: pool(x, *given, **options, return_indices=True)[1])
        spatial = places.dim() - 2
        flat = x.flatten(-spatial).gather(-1, places.flatten(-spatial))
        values = flat.view(places.shape)
        return (values, places) if name.endswith("_with_indices") else values
