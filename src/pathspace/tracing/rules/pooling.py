"""Pooling and resampling: where a window holds one unit it keeps it, else the units are tied."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pathspace.tracing.graph import Graph
from pathspace.tracing.table import Rule, operation
from pathspace.tracing.values import Value
from pathspace.units import PINNED


def _pool(graph: Graph, input: Value, spatial: int, largest: Callable[[Tensor], Tensor]) -> Value:
    """Units after pooling; ``largest`` is max pooling over the same windows."""
    units = graph.units(input)
    lead = units.dim() - spatial
    probe = largest(torch.zeros(1, 1, *units.shape[lead:]))
    if not bool(probe.isfinite().all()):
        graph.refuse(
            "some of its windows hold nothing but padding, so their largest value is −∞; give it "
            "less padding or dilation"
        )
    size = probe.shape[2:]
    axes = range(lead, units.dim())
    if all(units.stride(axis) == 0 or units.shape[axis] == 1 for axis in axes):
        for axis in axes:
            units = units.narrow(axis, 0, 1)
        return input.with_units(units.expand(*units.shape[:lead], *size))

    def windows(x: Tensor) -> Tensor:
        flat = x.reshape(1, -1, *x.shape[lead:]).double()
        return largest(flat).long().view(*x.shape[:lead], *size)

    return input.with_units(graph.windows(units, windows))


def _with_indices(pooled: Value, wanted: bool) -> Any:
    place = torch.tensor(PINNED).expand(pooled.shape)
    return [pooled, pooled.with_units(place, torch.long)] if wanted else pooled


def _max_pool(spatial: int) -> Rule:
    function = getattr(F, f"max_pool{spatial}d")

    def max_pool(
        graph: Graph,
        input: Value,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        dilation: Any = 1,
        ceil_mode: bool = False,
        return_indices: bool = False,
    ) -> Any:
        window = (kernel_size, stride or None, padding, dilation, ceil_mode)
        pooled = _pool(graph, input, spatial, lambda x: function(x, *window))
        return _with_indices(pooled, return_indices or graph.operation.endswith("with_indices"))

    return max_pool


def _avg_pool(spatial: int) -> Rule:
    function = getattr(F, f"max_pool{spatial}d")

    def avg_pool(
        graph: Graph,
        input: Value,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        ceil_mode: bool = False,
        *args: Any,
        **kwargs: Any,
    ) -> Value:
        window = (kernel_size, stride or None, padding, 1, ceil_mode)
        return _pool(graph, input, spatial, lambda x: function(x, *window))

    return avg_pool


def _adaptive_pool(spatial: int) -> Rule:
    function = getattr(F, f"adaptive_max_pool{spatial}d")

    def adaptive_pool(
        graph: Graph, input: Value, output_size: Any, return_indices: bool = False
    ) -> Any:
        sizes = [output_size] * spatial if isinstance(output_size, int) else list(output_size)
        own = input.shape[-spatial:]
        wanted = [o if size is None else size for size, o in zip(sizes, own, strict=True)]
        pooled = _pool(graph, input, spatial, lambda x: function(x, wanted))
        return _with_indices(pooled, return_indices or graph.operation.endswith("with_indices"))

    return adaptive_pool


for _n in (1, 2, 3):
    operation(f"max_pool{_n}d max_pool{_n}d_with_indices")(_max_pool(_n))
    operation(f"avg_pool{_n}d")(_avg_pool(_n))
    operation(f"adaptive_avg_pool{_n}d adaptive_max_pool{_n}d adaptive_max_pool{_n}d_with_indices")(
        _adaptive_pool(_n)
    )


@operation("interpolate upsample upsample_nearest upsample_bilinear")
def interpolate(graph: Graph, input: Value, *args: Any, **kwargs: Any) -> Value:
    """Resampling per channel: copies, means of windows, or means of neighbours."""
    default = "bilinear" if graph.operation == "upsample_bilinear" else "nearest"
    mode = kwargs.get("mode", args[2] if len(args) > 2 else default)
    size = graph.function(torch.zeros(1, 1, *input.shape[2:]), *args, **kwargs).shape[2:]
    spatial = len(size)
    if mode.startswith("nearest"):
        return _pool(graph, input, spatial, lambda x: graph.function(x, *args, **kwargs))
    if mode == "area":
        largest = getattr(F, f"adaptive_max_pool{spatial}d")
        return _pool(graph, input, spatial, lambda x: largest(x, size))
    units = graph.constant_over(graph.units(input), [0, 1])
    return input.with_units(units.expand(*input.shape[:2], *size))
