"""What the tracer knows of one tensor."""

from __future__ import annotations

import collections
import dataclasses
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Weight:
    """A view of a parameter: entry i of the view is entry ``positions[i]`` of the parameter.

    ``positions`` is ``None`` for the parameter as it is, and -1 where a movement put in a zero.
    """

    name: str
    positions: Tensor | None = None


class Value:
    """The units of a tensor, or the parameter that it is a view of.

    Attributes:
        units: an integer tensor of the shape of the value, the unit that each entry belongs to
            (stride 0 along axes on which it is constant); ``None`` for a view of a parameter.
        weight: the view of a parameter; ``None`` for everything else.
        ref: where the value comes from: a node of the program, an entry of the model's state, or
            a constant tensor.
        aliases: the living values that share memory with this one.
    """

    def __init__(
        self,
        units: Tensor | None,
        dtype: torch.dtype,
        *,
        weight: Weight | None = None,
        shape: Sequence[int] = (),
    ) -> None:
        self.units = units
        self.dtype = dtype
        self.weight = weight
        self.shape = torch.Size(shape) if units is None else units.shape
        self.ref: Any = None
        self.aliases: weakref.WeakSet[Value] = weakref.WeakSet((self,))

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def is_weight(self) -> bool:
        """Whether this is a parameter, or a view of one."""
        return self.units is None

    def like(self, dtype: torch.dtype | None = None, *, alias: bool = False) -> Value:
        """The same units or weight, as the result of an operation."""
        result = Value(self.units, dtype or self.dtype, weight=self.weight, shape=self.shape)
        return self._shared(result) if alias else result

    def _shared(self, result: Value) -> Value:
        """Note that a result may share memory with this value."""
        result.aliases = self.aliases
        result.aliases.add(result)
        return result

    def with_units(self, units: Tensor, dtype: torch.dtype | None = None) -> Value:
        """A value of the same dtype with other units."""
        return Value(units, dtype or self.dtype)

    def moved(self, movement: Callable[[Tensor], Tensor], *, alias: bool = True) -> Value:
        """Apply a movement of data to the units, or to the positions in a parameter."""
        return self.moved_apart(lambda whole: [movement(whole)], alias=alias)[0]

    def moved_apart(
        self, movement: Callable[[Tensor], Sequence[Tensor]], *, alias: bool = True
    ) -> list[Value]:
        """Apply a movement into several tensors."""
        if self.units is not None:
            results = [Value(part, self.dtype) for part in movement(self.units)]
            return [self._shared(result) for result in results] if alias else results
        assert self.weight is not None
        parts = [part - 1 for part in movement(self.positions() + 1)]  # a zero put in becomes -1
        name = self.weight.name
        return [Value(None, self.dtype, weight=Weight(name, p), shape=p.shape) for p in parts]

    def positions(self) -> Tensor:
        """For a view of a parameter: the place of every entry in the parameter."""
        assert self.weight is not None
        if self.weight.positions is None:
            return torch.arange(self.shape.numel()).view(self.shape)
        return self.weight.positions


def without_data(leaf: Any) -> Any:
    """In place of a value, a tensor of its shape and dtype that holds nothing."""
    if isinstance(leaf, Value):
        return torch.empty(leaf.shape, dtype=leaf.dtype, device="meta")
    return leaf


def promoted(a: Any, b: Any) -> torch.dtype:
    """The dtype of a sum or product of two operands."""
    return torch.result_type(without_data(a), without_data(b))


def values_in(tree: Any) -> list[Value]:
    """All values in nested arguments."""
    return [leaf for leaf in leaves(tree) if isinstance(leaf, Value)]


_SEQUENCES = (tuple, list)
_LEAVES = frozenset([Tensor, nn.Parameter, Value, int, float, bool, str, type(None)])  # the usual


def leaves(tree: Any) -> Iterator[Any]:
    """The leaves of nested tuples, lists and mappings."""
    if isinstance(tree, _SEQUENCES):
        for branch in tree:
            yield from leaves(branch)
    elif type(tree) not in _LEAVES and isinstance(tree, Mapping):
        for branch in tree.values():
            yield from leaves(branch)
    else:
        yield tree


def map_leaves(function: Callable[[Any], Any], tree: Any) -> Any:
    """Apply ``function`` to the leaves of nested tuples, lists, mappings and slices."""
    if type(tree) in _LEAVES:
        return function(tree)
    if isinstance(tree, _SEQUENCES):
        branches = [map_leaves(function, branch) for branch in tree]
        if hasattr(tree, "_fields"):  # a named tuple
            return type(tree)(*branches)
        return branches if isinstance(tree, list) else tuple(branches)
    if isinstance(tree, Mapping):
        return {key: map_leaves(function, branch) for key, branch in tree.items()}
    if isinstance(tree, slice):
        return slice(*(map_leaves(function, part) for part in (tree.start, tree.stop, tree.step)))
    return function(tree)


def opened(thing: Any) -> Any:
    """What an object that is no tuple, list or mapping holds: fields, attributes or elements."""
    if dataclasses.is_dataclass(thing) and not isinstance(thing, type):
        return {field.name: getattr(thing, field.name) for field in dataclasses.fields(thing)}
    if isinstance(thing, set | frozenset | collections.deque):
        return list(thing)
    closed = isinstance(thing, Tensor | nn.Module | type) or callable(thing)
    return thing if closed or not hasattr(thing, "__dict__") else dict(vars(thing))


def compact(units: Tensor) -> Tensor:
    """The same units with size 1 along the axes on which they are constant by construction."""
    for dim, (size, stride) in enumerate(zip(units.shape, units.stride(), strict=True)):
        if stride == 0 and size > 1:
            units = units.narrow(dim, 0, 1)
    return units


def constant_strides(units: Tensor) -> Tensor:
    """The same units with stride 0 along the axes on which they turn out to be constant."""
    for dim, (size, stride) in enumerate(zip(units.shape, units.stride(), strict=True)):
        if size > 1 and stride != 0:
            first = units.narrow(dim, 0, 1)
            if bool((units == first).all()):
                units = first.expand(units.shape)
    return units
