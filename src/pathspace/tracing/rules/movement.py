"""Operations that move data: the same operation is applied to the units."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pathspace.network import StateRef
from pathspace.tracing.graph import Graph
from pathspace.tracing.rules.other import cast_to, data_dependent, unknown
from pathspace.tracing.table import operation
from pathspace.tracing.values import Value, compact, constant_strides, map_leaves, values_in
from pathspace.units import PINNED, ZERO


@operation("view reshape view_as reshape_as")
def reshape(graph: Graph, input: Value, *shape: Any, **kwargs: Any) -> Value:
    """Another shape, the same values in the same order."""
    size: Any = kwargs.get("shape", kwargs.get("size", kwargs.get("other", shape)))
    if isinstance(size, tuple) and len(size) == 1 and not isinstance(size[0], int):
        size = size[0]
    if isinstance(size, torch.dtype):
        graph.refuse("a view as another dtype reinterprets the bits of the values")
    size = size.shape if isinstance(size, Value) else tuple(size)
    target = torch.empty(input.shape, device="meta").view(size).shape
    return input.moved(lambda units: _reshape(units, target))


@operation("flatten unflatten ravel")
def reshape_by_axes(graph: Graph, input: Value, *args: Any, **kwargs: Any) -> Value:
    """A reshape whose target the operation itself computes."""
    target = graph.function(torch.empty(input.shape, device="meta"), *args, **kwargs).shape
    return input.moved(lambda units: _reshape(units, target))


def _reshape(units: Tensor, shape: torch.Size) -> Tensor:
    if units.dim() and len(shape) and units.shape[0] == shape[0]:
        reshaped = by_sample(units, lambda rows: rows.reshape(rows.shape[0], *shape[1:]))
    else:
        reshaped = units.reshape(shape)
    return constant_strides(reshaped)


def by_sample(units: Tensor, movement: Callable[[Tensor], Tensor]) -> Tensor:
    """Apply a movement that leaves axis 0 alone to one sample only, if all are alike."""
    samples = units.shape[0]
    if units.stride(0) == 0 and samples > 1:
        moved = movement(units[:1])
        return moved.expand(samples, *moved.shape[1:])
    return movement(units)


@operation("""
    permute transpose swapaxes swapdims movedim moveaxis t T mT H adjoint squeeze unsqueeze expand
    expand_as broadcast_to narrow select diagonal
""")
def move(graph: Graph, input: Value, *args: Any, **kwargs: Any) -> Value:
    """Pure movement; of other tensors only the shape matters."""

    def shape_only(leaf: Any) -> Any:
        return torch.empty(1).expand(leaf.shape) if isinstance(leaf, Value) else leaf

    args, kwargs = map_leaves(shape_only, args), map_leaves(shape_only, kwargs)
    function = _out_of_place(graph)
    return input.moved(lambda units: function(units, *args, **kwargs))


def _out_of_place(graph: Graph) -> Callable[..., Tensor]:
    name = getattr(graph.function, "__name__", "")
    if name.endswith("_") and not name.endswith("__"):
        method: Callable[..., Tensor] = getattr(torch.Tensor, graph.operation)
        return method
    return graph.function


@operation("""
    repeat tile roll repeat_interleave rot90 flip fliplr flipud pixel_shuffle pixel_unshuffle
    channel_shuffle native_channel_shuffle tril triu index_select take_along_dim unfold
""")
def rearrange(graph: Graph, input: Value, *args: Any, **kwargs: Any) -> Any:
    """Movement that copies; zeros that it puts in agree with every scale."""
    if not all(is_constant(value) for value in values_in((args, kwargs))):
        return unknown(graph, input, *args, **kwargs)
    args, kwargs = _constants(graph, args), _constants(graph, kwargs)
    function = _out_of_place(graph)

    def rearranged(units: Tensor) -> Tensor:
        if graph.function is F.unfold:  # only for floating point numbers
            return function(units.double(), *args, **kwargs).long()
        return function(units, *args, **kwargs)

    alias = graph.function is torch.Tensor.unfold or "shuffle" in graph.operation
    moved = input.moved(rearranged, alias=alias)
    if moved.units is not None:
        moved.units = constant_strides(moved.units)
    return moved


def is_constant(value: Value) -> bool:
    """Whether a value is a constant of the model (not computed from its input)."""
    return isinstance(value.ref, Tensor | StateRef) and not str(
        getattr(value.ref, "name", "")
    ).startswith("input ")


def _constants(graph: Graph, tree: Any) -> Any:
    """The tensors behind constant values."""

    def constant(leaf: Any) -> Any:
        if not isinstance(leaf, Value):
            return leaf
        ref = leaf.ref
        tensor: Tensor = graph.buffers[ref.name] if isinstance(ref, StateRef) else ref
        return tensor.cpu()

    return map_leaves(constant, tree)


@operation(
    "chunk split tensor_split unbind unsafe_chunk unsafe_split split_with_sizes hsplit vsplit"
)
def divide(graph: Graph, input: Value, *args: Any, **kwargs: Any) -> list[Value]:
    """Movement into several tensors."""
    return input.moved_apart(lambda whole: graph.function(whole, *args, **kwargs))


@operation("getitem")
def index(graph: Graph, input: Value, key: Any) -> Any:
    """Indexing with integers, slices, None, Ellipsis and tensors."""
    key = key if isinstance(key, tuple) else (key,)
    if not all(is_constant(value) for value in values_in(key)):
        if any(value.dtype in (torch.bool, torch.uint8) for value in values_in(key)):
            return data_dependent(graph, input, key)
        return _choose(graph, input, key)
    key = _constants(graph, key)
    copies = any(isinstance(part, Tensor | list) for part in key)
    whole_batch = bool(key) and isinstance(key[0], slice) and key[0] == slice(None)
    # Index tensors that are not side by side put their own axis in front of all others.
    if whole_batch and torch.empty(0, *input.shape[1:])[key].shape[0] == 0:
        movement = functools.partial(by_sample, movement=lambda rows: rows[key])
        return input.moved(movement, alias=not copies)
    return input.moved(lambda units: units[key], alias=not copies)


def _choose(graph: Graph, input: Value, key: tuple[Any, ...]) -> Value:
    """Indexing with integers that depend on the data: any entry along an axis may be the one."""
    for value in values_in(key):
        graph.pin(graph.units(value), f"index in {graph.where()}")
    axes = _indexed_axes(key, input.ndim)
    kept = [axis for axis in range(input.ndim) if axis not in axes]
    if input.is_weight:  # rows of a table: one unit for each place in a row
        shape = [1 if axis in axes else size for axis, size in enumerate(input.shape)]
        units = graph.emit(graph.layer(input), math.prod(shape)).view(shape)
        graph.connect(input, units, PINNED)
    else:
        units = graph.constant_over(graph.units(input), kept)

    def first(leaf: Any) -> Any:
        return torch.zeros(leaf.shape, dtype=torch.long) if isinstance(leaf, Value) else leaf

    return input.with_units(constant_strides(units.expand(input.shape)[map_leaves(first, key)]))


def _indexed_axes(key: tuple[Any, ...], rank: int) -> list[int]:
    """The axes along which tensors or lists choose entries."""
    used = sum(1 for part in key if part is not None and part is not Ellipsis)
    axis, axes = 0, []
    for part in key:
        if part is Ellipsis:
            axis += rank - used
        elif part is not None:
            if isinstance(part, Value | list):
                axes.append(axis)
            axis += 1
    return axes


@operation("setitem")
def assign(graph: Graph, input: Value, key: Any, value: Any) -> Value:
    """Writing into a part of a tensor."""
    if len(input.aliases) > 1:
        graph.refuse("values are assigned into a tensor that another tensor shares; use torch.cat")
    if not all(is_constant(part) for part in values_in(key)):
        graph.refuse("values are assigned at places that depend on the data")
    cast_to(graph, value, input.dtype)
    units = graph.units(input).clone(memory_format=torch.contiguous_format)
    units[_constants(graph, key if isinstance(key, tuple) else (key,))] = graph.units(value)
    return input.with_units(constant_strides(units))


@operation("copy fill zero")
def overwrite(graph: Graph, input: Value, source: Any = 0, *args: Any, **kwargs: Any) -> Value:
    """Every value is replaced."""
    source = kwargs.get("value", source)
    cast_to(graph, source, input.dtype)
    return input.with_units(graph.units(source).expand(input.shape))


@operation("cat concat concatenate stack hstack vstack dstack column_stack row_stack")
def concatenate(graph: Graph, tensors: Sequence[Value], *args: Any, **kwargs: Any) -> Value:
    """Tensors side by side."""
    units = [graph.units(x) for x in tensors]
    if graph.operation in ("cat", "concat", "concatenate"):
        units = [x for x in units if x.shape != (0,)]  # torch.cat passes over these
    axis = kwargs.get("dim", kwargs.get("axis", args[0] if args else 0))
    samples = {(x.shape[0], x.stride(0)) if x.dim() else None for x in units}
    alike = len(samples) == 1 and units[0].dim() > 0 and units[0].stride(0) == 0
    if alike and axis > 0:
        joined = graph.function([x[:1] for x in units], *args, **kwargs)
        joined = joined.expand(units[0].shape[0], *joined.shape[1:])
    else:
        joined = graph.function(units, *args, **kwargs)
    return values_in(tensors)[0].with_units(constant_strides(joined))


@operation("pad")
def pad(
    graph: Graph, input: Value, pad: Sequence[int], mode: str = "constant", value: Any = None
) -> Value:
    """Padding; zeros agree with every scale, and copies keep their unit."""
    if input.is_weight and not value:
        return input.moved(lambda positions: _pad(positions, pad, mode, 0))
    units = graph.units(input)
    return input.with_units(_pad(units, pad, mode, PINNED if value else ZERO, spread=not value))


def _pad(units: Tensor, pad: Sequence[int], mode: str, fill: int, spread: bool = False) -> Tensor:
    """Pad the last axes; with ``spread``, a unit that fills an axis fills its padding too."""
    shape = list(units.shape)
    units = compact(units)
    for axis in range(len(pad) // 2):
        dim, amounts = len(shape) - 1 - axis, list(pad[2 * axis : 2 * axis + 2])
        if not any(amounts):
            continue
        if units.shape[dim] > 1 or shape[dim] == 1 or not spread:
            rows = units.expand(*units.shape[:dim], shape[dim], *units.shape[dim + 1 :])
            rows = rows.movedim(dim, -1)
            flat = rows.reshape(1, -1, shape[dim])
            if mode == "constant":
                flat = F.pad(flat, amounts, value=fill)
            else:  # only for floating point numbers
                flat = F.pad(flat.double(), amounts, mode).long()
            units = flat.view(*rows.shape[:-1], -1).movedim(-1, dim)
        shape[dim] += sum(amounts)
    return units.expand(shape)
