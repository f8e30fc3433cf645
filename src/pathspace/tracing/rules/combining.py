"""Operations that combine values: what is combined gets one scale."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pathspace.tracing.graph import Graph
from pathspace.tracing.rules.movement import is_constant
from pathspace.tracing.rules.other import cast_to, opaque, unknown
from pathspace.tracing.table import operation
from pathspace.tracing.values import Value, promoted, values_in
from pathspace.units import PINNED, ZERO


@operation("add sub subtract maximum minimum fmax fmin")
def add(graph: Graph, input: Any, other: Any, *, alpha: Any = 1) -> Value:
    """A sum, as far as scales go: one scale for both. A parameter that is added is a bias."""
    weights = [v for v in values_in((input, other)) if v.is_weight]
    if not weights:
        units = graph.join(graph.units(input), graph.units(other))
        return Value(units, promoted(input, other))
    if len(weights) == 2 or len(values_in((input, other))) == 1:
        return unknown(graph, input, other)
    data = other if input is weights[0] else input
    return Value(_bias(graph, weights[0], graph.units(data)), promoted(input, other))


@operation("rsub")
def reversed_subtract(graph: Graph, input: Any, other: Any, alpha: Any = 1) -> Value:
    """Other minus input."""
    return add(graph, other, input)


def _bias(graph: Graph, weight: Value, units: Tensor) -> Tensor:
    """Add a parameter to values: it becomes edges from the constant to their units."""
    shape = torch.broadcast_shapes(units.shape, weight.shape)
    units = units.expand(shape)
    if bool((graph.partition.find(units) == ZERO).any()):
        return graph.join(units, graph.units(weight).expand(shape))
    target = graph.constant_over(units, _own_axes(weight, len(shape)))
    graph.connect(weight, target.reshape(target.shape[len(shape) - weight.ndim :]), PINNED)
    return units


def _own_axes(weight: Value, rank: int) -> list[int]:
    """The axes of a broadcast result along which a parameter has entries of its own."""
    skipped = rank - weight.ndim
    return [skipped + axis for axis, size in enumerate(weight.shape) if size > 1]


@operation("mul multiply")
def multiply(graph: Graph, input: Any, other: Any) -> Any:
    """A product keeps the scale of one factor if the other carries none."""
    weights = [v for v in values_in((input, other)) if v.is_weight]
    if len(weights) == 2:
        return unknown(graph, input, other)
    if weights:
        factor = other if input is weights[0] else input
        if not isinstance(factor, Value):
            return weights[0].like()
        if is_constant(factor):  # a mask, as pruning has it
            shape = torch.broadcast_shapes(weights[0].shape, factor.shape)
            return weights[0].moved(lambda positions: positions.expand(shape))
        return _gain(graph, weights[0], factor)
    x, y = graph.units(input), graph.units(other)
    shape = torch.broadcast_shapes(x.shape, y.shape)
    for scaled, plain in ((x, y), (y, x)):
        if graph.is_pinned(plain):
            return Value(scaled.expand(shape), promoted(input, other))
    return opaque(graph, input, other)


def _gain(graph: Graph, weight: Value, x: Value) -> Value:
    """Multiply values by a parameter, element by element."""
    units = graph.units(x)
    shape = torch.broadcast_shapes(units.shape, weight.shape)
    units = units.expand(shape)
    axes = _own_axes(weight, len(shape))
    others = [axis for axis in range(len(shape)) if axis not in axes]
    roots = graph.partition.find(units)
    if others and not torch.equal(roots.amax(others), roots.amin(others)):
        graph.fix(weight)  # one gain for several scales: it cannot move without moving them all
        return x.with_units(units)
    source = graph.constant_over(units, axes)
    target = graph.emit(graph.layer(weight), weight.shape.numel()).view(weight.shape)
    graph.connect(weight, target, source.reshape(source.shape[len(shape) - weight.ndim :]))
    return x.with_units(target.expand(shape))


@operation("div divide true_divide")
def divide(graph: Graph, input: Any, other: Any, *, rounding_mode: str | None = None) -> Any:
    """Division by a constant keeps the scale; by an activation it pins."""
    if rounding_mode is None and isinstance(input, Value):
        if not isinstance(other, Value):
            return input.like(promoted(input, 1.0))
        if not input.is_weight and not other.is_weight and graph.is_pinned(graph.units(other)):
            shape = torch.broadcast_shapes(input.shape, other.shape)
            dtype = torch.promote_types(promoted(input, other), promoted(input, 1.0))
            return Value(graph.units(input).expand(shape), dtype)
    if values_in((input, other)) and all(v.is_weight for v in values_in((input, other))):
        return unknown(graph, input, other)
    return opaque(graph, input, other)


_ARGUMENTS = {"norm": ["p", "dim", "keepdim"], "std": ["dim", "unbiased", "keepdim"]}


@operation("sum mean nansum nanmean amax amin norm std")
def reduce(graph: Graph, input: Value, *args: Any, **kwargs: Any) -> Value:
    """Homogeneous reductions over axes."""
    names = _ARGUMENTS.get(graph.operation, ["dim", "keepdim"])
    if args and isinstance(args[0], bool):
        names = names[1:]  # std(unbiased)
    given = dict(zip(names, args, strict=False)) | kwargs
    if given.get("p") == 0:  # counts what is not zero
        return opaque(graph, input, *args, **kwargs)
    dim = given.get("dim", given.get("axis"))
    dtype = cast_to(graph, input, given.get("dtype"))
    counts = graph.operation in ("sum", "nansum") and not input.dtype.is_floating_point
    units = _reduced(graph, input, dim, bool(given.get("keepdim", False)))
    return input.with_units(units, dtype or (torch.int64 if counts else None))


def _reduced(graph: Graph, input: Value, dim: Any, keepdim: bool) -> Tensor:
    units = graph.units(input)
    rank = units.dim()
    if dim is None or dim == () or dim == []:
        dim = list(range(rank))
    dims = [d % rank for d in ([dim] if isinstance(dim, int) else dim)]
    shape = [1 if d in dims else size for d, size in enumerate(units.shape)]
    if dims:
        units = graph.constant_over(units, [d for d in range(rank) if d not in dims]).expand(shape)
    if keepdim:
        return units
    for d in sorted(dims, reverse=True):
        units = units.squeeze(d)
    return units


@operation("max min")
def extremum(graph: Graph, input: Value, *args: Any, **kwargs: Any) -> Any:
    """Largest value of all, along an axis (with its index), or of two tensors."""
    given = dict(zip(["dim", "keepdim"], args, strict=False)) | kwargs
    dim = given.get("dim", given.get("other"))
    if isinstance(dim, Value):
        return add(graph, input, dim)
    units = _reduced(graph, input, dim, bool(given.get("keepdim", False)))
    if dim is None:
        return input.with_units(units)
    place = torch.tensor(PINNED).expand(units.shape)
    return [input.with_units(units), input.with_units(place, torch.long)]


@operation("cumsum")
def accumulate(graph: Graph, input: Value, dim: int, **kwargs: Any) -> Value:
    """Running sums along an axis."""
    units = graph.units(input)
    kept = graph.constant_over(units, [d for d in range(units.dim()) if d != dim % units.dim()])
    dtype = cast_to(graph, input, kwargs.get("dtype"))
    return input.with_units(kept.expand(units.shape), dtype)
