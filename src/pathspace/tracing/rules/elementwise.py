"""Operations that act on each value alone and are positively homogeneous."""

from __future__ import annotations

import math
from typing import Any

import torch

from pathspace.tracing.graph import Graph
from pathspace.tracing.rules.other import cast_to, opaque, pin_all
from pathspace.tracing.table import operation
from pathspace.tracing.values import Value, promoted, values_in
from pathspace.units import PINNED, ZERO


@operation("relu leaky_relu rrelu abs absolute neg negative clone")
def keep(graph: Graph, input: Value, *args: Any, **kwargs: Any) -> Value:
    """Positively homogeneous: every value keeps its unit."""
    return input.like()


@operation("""
    detach data positive contiguous dropout dropout1d dropout2d dropout3d feature_dropout conj
    resolve_conj resolve_neg
""")
def keep_memory(graph: Graph, input: Value, *args: Any, **kwargs: Any) -> Value:
    """The same, but the result may be the very tensor that went in."""
    return input.like(alias=True)


_CASTS = {
    "float": torch.float32,
    "double": torch.float64,
    "half": torch.float16,
    "bfloat16": torch.bfloat16,
    "long": torch.int64,
    "int": torch.int32,
    "short": torch.int16,
    "char": torch.int8,
    "byte": torch.uint8,
    "bool": torch.bool,
}


@operation("to type type_as cpu cuda " + " ".join(_CASTS))
def cast(graph: Graph, input: Value, *args: Any, **kwargs: Any) -> Value:
    """Another dtype or device."""
    dtype = _CASTS.get(graph.operation, input.dtype)
    for argument in [*args, *kwargs.values()]:
        if isinstance(argument, torch.dtype):
            dtype = argument
        elif isinstance(argument, Value):
            dtype = argument.dtype
    if dtype == torch.bool:  # whether it is zero does not depend on the scale
        return Value(torch.tensor(PINNED).expand(input.shape), dtype)
    return input.like(cast_to(graph, input, dtype), alias=True)


@operation("prelu")
def prelu(graph: Graph, input: Value, weight: Value) -> Value:
    """PReLU: homogeneous in its input; its slopes carry no scale."""
    pin_all(graph, weight)
    return input.like()


@operation("threshold")
def threshold(
    graph: Graph, input: Value, threshold: float, value: float, inplace: bool = False
) -> Value:
    """Homogeneous only if it is the ReLU."""
    return input.like() if threshold == 0 and value == 0 else _bounded(graph, input)


@operation("clamp clip")
def clamp(graph: Graph, input: Value, min: Any = None, max: Any = None) -> Value:
    """Homogeneous if the bounds are 0 or infinite."""
    return _bounded(graph, input, min, max)


@operation("clamp_min clamp_max")
def clamp_one(graph: Graph, input: Value, bound: Any = None, **kwargs: Any) -> Value:
    """Homogeneous if the bound is 0 or infinite."""
    return _bounded(graph, input, bound, *kwargs.values())


@operation("hardtanh")
def hardtanh(
    graph: Graph,
    input: Value,
    min_val: float = -1.0,
    max_val: float = 1.0,
    inplace: bool = False,
) -> Value:
    """Homogeneous if the bounds are 0 or infinite."""
    return _bounded(graph, input, min_val, max_val)


def _bounded(graph: Graph, input: Value, *bounds: Any) -> Value:
    given = [bound for bound in bounds if bound is not None]
    numbers = all(isinstance(bound, int | float) for bound in given)
    if given and numbers and all(bound == 0 or math.isinf(bound) for bound in given):
        return input.like()
    pin_all(graph, (input, given))
    shapes = [value.shape for value in values_in(given)]
    shape = torch.broadcast_shapes(input.shape, *shapes)
    return input.with_units(torch.tensor(PINNED).expand(shape))


@operation("""
    gt lt ge le eq ne greater less greater_equal less_equal not_equal sign sgn isnan isinf isfinite
    signbit logical_not
""")
def compare(graph: Graph, input: Any, other: Any = 0) -> Value:
    """Comparisons with zero or with the same unit do not depend on scales; others pin."""
    x, y = graph.units(input), graph.units(other)
    find = graph.partition.find
    same = torch.equal(*torch.broadcast_tensors(find(x), find(y)))
    if not same and not bool((y == ZERO).all()) and not bool((x == ZERO).all()):
        for units in (x, y):
            graph.pin(units, f"compared with another value in {graph.where()}")
    like = values_in((input, other))[0]
    shape = torch.broadcast_shapes(x.shape, y.shape)
    dtype = like.dtype if graph.operation in ("sign", "sgn") else torch.bool
    return like.with_units(torch.tensor(PINNED).expand(shape), dtype)


@operation("where")
def where(graph: Graph, condition: Value, *choices: Any) -> Any:
    """Each value is one of the two, so they must have one scale."""
    if len(choices) != 2:
        return opaque(graph, condition, *choices)
    if graph.function is torch.Tensor.where:  # the method has its own order
        condition, choices = choices[0], (condition, choices[1])
    graph.pin(graph.units(condition), f"decides in {graph.where()}")
    units = graph.join(*(graph.units(choice) for choice in choices))
    shape = torch.broadcast_shapes(units.shape, condition.shape)
    return Value(units.expand(shape), promoted(*choices))


@operation("masked_fill")
def masked_fill(graph: Graph, input: Value, mask: Value, value: Any) -> Value:
    """Zero (and infinity) agree with every scale."""
    graph.pin(graph.units(mask), f"decides in {graph.where()}")
    infinite = isinstance(value, float) and math.isinf(value)
    return input.with_units(graph.join(graph.units(input), graph.units(0 if infinite else value)))


@operation("zeros_like ones_like full_like rand_like randn_like randint_like empty_like bernoulli")
def constant_like(graph: Graph, input: Value, *args: Any, dtype: Any = None, **_: Any) -> Value:
    """Constants of the shape of a value; zeros agree with every scale."""
    if graph.operation == "bernoulli":
        pin_all(graph, input)
    unit = ZERO if graph.operation == "zeros_like" else PINNED
    return input.with_units(torch.tensor(unit).expand(input.shape), dtype)


@operation("new_zeros new_ones new_empty new_full")
def new_constant(graph: Graph, input: Value, *size: Any, dtype: Any = None, **kwargs: Any) -> Value:
    """Constants of a given shape; zeros agree with every scale."""
    if graph.operation == "new_full":
        size = size[:1]
    shape = kwargs.get("size", size[0] if size and isinstance(size[0], tuple | list) else size)
    unit = ZERO if graph.operation == "new_zeros" else PINNED
    return input.with_units(torch.tensor(unit).expand(tuple(shape)), dtype)
