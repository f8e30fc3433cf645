"""Operations with weights: they write new units, and every weight is an edge to one of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pathspace.tracing.graph import Graph
from pathspace.tracing.rules.combining import add
from pathspace.tracing.rules.other import opaque, unknown
from pathspace.tracing.table import Rule, operation
from pathspace.tracing.values import Value
from pathspace.units import PINNED


def _contract(
    graph: Graph, weight: Value, weight_axes: str, x: Value, x_axes: str, out_axes: str
) -> Value:
    """A product of a parameter and values, summed over the axes that are not in ``out_axes``.

    Axes are letters, as in ``einsum``. A unit is written for each place of the parameter's axes
    that are kept; an entry of the parameter runs from the unit at its place in the values.
    """
    sizes = dict(zip(x_axes, x.shape, strict=True))
    for axis, size in zip(weight_axes, weight.shape, strict=True):
        known = sizes.setdefault(axis, size)
        if axis in out_axes and 1 in (size, known):  # broadcast
            sizes[axis] = max(size, known)
        elif size != known:
            raise RuntimeError(
                f"an input of shape {tuple(x.shape)} and a weight of shape {tuple(weight.shape)} "
                "do not fit"
            )
    alone = [place for place, axis in enumerate(weight_axes) if weight.shape[place] != sizes[axis]]
    if alone:  # one weight for all places along an axis
        weight = weight.moved(lambda t: t.squeeze(alone))
        weight_axes = "".join(a for place, a in enumerate(weight_axes) if place not in alone)
    x = x.moved(lambda t: t.expand([sizes[axis] for axis in x_axes]))
    shape = [sizes[axis] for axis in out_axes]
    if not weight.is_weight:
        return _fixed_map(graph, [(weight, weight_axes), (x, x_axes)], out_axes, shape)
    read = [place for place, axis in enumerate(x_axes) if axis in weight_axes]
    source = _arrange(graph.constant_over(graph.units(x), read), x_axes, weight_axes)
    written = [axis for axis in weight_axes if axis in out_axes]
    units = graph.emit(graph.layer(weight), math.prod(sizes[axis] for axis in written))
    target = units.view([sizes[axis] if axis in written else 1 for axis in weight_axes])
    graph.connect(weight, target, source)
    return x.with_units(_arrange(target, weight_axes, out_axes).expand(shape))


def _arrange(units: Tensor, axes: str, wanted: str) -> Tensor:
    """Bring named axes into another order; drop those of size 1 that are not wanted."""
    kept = [axes.index(axis) for axis in wanted if axis in axes]
    dropped = [place for place in range(len(axes)) if place not in kept]
    units = units.permute(*kept, *dropped).reshape([units.shape[place] for place in kept])
    for place, axis in enumerate(wanted):
        if axis not in axes:
            units = units.unsqueeze(place)
    return units


def _fixed_map(
    graph: Graph, factors: Sequence[tuple[Value, str]], out_axes: str, shape: Sequence[int]
) -> Value:
    """A product without a parameter: what is summed over gets one scale."""
    scaled = [factor for factor in factors if not graph.is_pinned(graph.units(factor[0]))]
    if len(scaled) > 1:
        for value, _ in factors:
            graph.pin(graph.units(value), f"multiplied by another activation in {graph.where()}")
    value, axes = scaled[0] if len(scaled) == 1 else factors[0]
    kept = [place for place, axis in enumerate(axes) if axis in out_axes]
    units = _arrange(graph.constant_over(graph.units(value), kept), axes, out_axes)
    return value.with_units(units.expand(shape))


_LEAD = "abcdefghijklm"


@operation("linear")
def linear(graph: Graph, input: Value, weight: Value, bias: Value | None = None) -> Value:
    """The affine map y = x Wᵀ + b."""
    lead = _LEAD[: input.ndim - 1]
    axes, out = ("z", lead) if weight.ndim == 1 else ("yz", lead + "y")
    result = _contract(graph, weight, axes, input, lead + "z", out)
    return result if bias is None else add(graph, result, bias)


@operation("matmul mm bmm mv dot vdot")
def matmul(graph: Graph, input: Value, other: Value) -> Any:
    """A matrix product, of which one factor may be a parameter."""
    if input.is_weight and other.is_weight:
        return unknown(graph, input, other)
    rank = max(input.ndim, other.ndim, 2)
    batch = _LEAD[: rank - 2]
    row, column = "x"[: input.ndim - 1], "y"[: other.ndim - 1]
    left = batch[rank - input.ndim :] + row + "z" if row else "z"
    right = batch[rank - other.ndim :] + "z" + column if column else "z"
    if input.is_weight:
        return _contract(graph, input, left, other, right, batch + row + column)
    return _contract(graph, other, right, input, left, batch + row + column)


@operation("rmatmul")
def reversed_matmul(graph: Graph, input: Value, other: Value) -> Any:
    """The reversed operator."""
    return matmul(graph, other, input)


@operation("addmm addmv baddbmm")
def addmm(graph: Graph, input: Value, mat1: Value, mat2: Value, **kwargs: Any) -> Any:
    """The sum input + mat1 @ mat2."""
    if any(factor != 1 for factor in kwargs.values()):
        return unknown(graph, input, mat1, mat2)
    return add(graph, matmul(graph, mat1, mat2), input)


@operation("einsum")
def einsum(graph: Graph, equation: str, *operands: Any) -> Any:
    """Two operands, at most one of them a parameter; no ellipsis and no repeated letters."""
    if len(operands) == 1 and isinstance(operands[0], tuple | list):
        operands = tuple(operands[0])
    inputs, arrow, out = equation.replace(" ", "").partition("->")
    axes = inputs.split(",")
    plain = arrow and "." not in equation and all(len(set(a)) == len(a) for a in axes)
    if len(operands) != 2 or not plain or all(value.is_weight for value in operands):
        return opaque(graph, equation, *operands)
    w = 0 if operands[0].is_weight else 1
    return _contract(graph, operands[w], axes[w], operands[1 - w], axes[1 - w], out)


def _convolution(spatial: int, transposed: bool) -> Rule:
    extra = ["output_padding", "groups", "dilation"] if transposed else ["dilation", "groups"]

    def convolution(
        graph: Graph,
        input: Value,
        weight: Value,
        bias: Value | None = None,
        stride: Any = 1,
        padding: Any = 0,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        given = {"stride": stride, "padding": padding, "groups": 1}
        given |= dict(zip(extra, args, strict=False)) | kwargs
        groups = given["groups"]
        units = graph.units(input)
        channel = units.dim() - spatial - 1
        reads, writes = weight.shape[1] * groups, weight.shape[0]
        if transposed:
            reads, writes = weight.shape[0], weight.shape[1] * groups
        if units.shape[channel] != reads:
            raise RuntimeError(f"expected {reads} input channels, got {units.shape[channel]}")
        source = graph.constant_over(units, [channel]).reshape(-1).expand(reads)
        if weight.is_weight:
            out = graph.emit(graph.layer(weight), writes)
            first, second = (source, out) if transposed else (out, source)
            # The weight is (first, second within the group, *kernel).
            second = second.view(groups, -1)
            second = second if groups == 1 else second.repeat_interleave(len(first) // groups, 0)
            ends = [_kernel(first[:, None], spatial), _kernel(second, spatial)]
            graph.connect(weight, *(reversed(ends) if transposed else ends))
        elif graph.is_pinned(graph.units(weight)):
            one = graph.windows(source.view(groups, -1), lambda x: x.amax(1, keepdim=True))
            out = one.expand(groups, writes // groups).reshape(-1)
        else:
            return opaque(graph, input, weight)
        sizes = _sizes(input.shape[channel + 1 :], weight.shape[2:], transposed, given)
        shape = [*input.shape[:channel], writes, *sizes]
        result = input.with_units(_kernel(out, spatial).expand(shape))
        if bias is not None and bias.is_weight:
            graph.connect(bias, out, PINNED)
        elif bias is not None:
            return add(graph, result, bias.moved(lambda units: _kernel(units, spatial)))
        return result

    return convolution


def _kernel(units: Tensor, spatial: int) -> Tensor:
    """Append axes of size 1 for the kernel (or for space)."""
    return units[(..., *(None,) * spatial)]


def _sizes(
    lengths: Sequence[int], kernel: Sequence[int], transposed: bool, given: dict[str, Any]
) -> list[int]:
    """The spatial size of the result of a convolution."""

    def per_axis(name: str, default: int) -> Sequence[int]:
        value = given.get(name, default)
        value = [value] if isinstance(value, int) else list(value)
        return value if len(value) == len(kernel) else value * len(kernel)

    if given["padding"] == "same":
        return list(lengths)
    paddings = [0] * len(kernel) if given["padding"] == "valid" else per_axis("padding", 0)
    sizes = []
    for axis, length in enumerate(lengths):
        extent = per_axis("dilation", 1)[axis] * (kernel[axis] - 1) + 1
        step, edge = per_axis("stride", 1)[axis], paddings[axis]
        if transposed:
            more = per_axis("output_padding", 0)[axis]
            sizes.append((length - 1) * step - 2 * edge + extent + more)
        else:
            sizes.append((length + 2 * edge - extent) // step + 1)
    if min(sizes) < 1:
        raise RuntimeError(f"the kernel {tuple(kernel)} is larger than its padded input")
    return sizes


for _n in (1, 2, 3):
    operation(f"conv{_n}d")(_convolution(_n, False))
    operation(f"conv_transpose{_n}d")(_convolution(_n, True))


@operation("embedding")
def embedding(
    graph: Graph,
    input: Value,
    weight: Value,
    padding_idx: Any = None,
    max_norm: Any = None,
    *args: Any,
    **kwargs: Any,
) -> Value:
    """Rows of a table: the columns are units, written from one-hot inputs."""
    if max_norm is not None:
        graph.refuse("max_norm rewrites the embedding in the forward pass; set max_norm=None")
    graph.pin(graph.units(input), f"index in {graph.where()}")
    if not weight.is_weight:
        graph.pin(graph.units(weight), f"indexed in {graph.where()}")
        units = torch.tensor(PINNED).expand(weight.shape[-1])
    else:
        units = graph.emit(graph.layer(weight), weight.shape[-1])
        graph.connect(weight, units[None], PINNED)
    return weight.with_units(units.expand(*input.shape, len(units)))


@operation("embedding_bag")
def embedding_bag(
    graph: Graph,
    input: Value,
    weight: Value,
    offsets: Value | None = None,
    max_norm: Any = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Value | None = None,
    include_last_offset: bool = False,
    padding_idx: Any = None,
) -> Value:
    """Sums, means or maxima of rows of a table."""
    if per_sample_weights is not None:
        return graph.refuse("per_sample_weights are not followed; multiply the embeddings instead")
    rows = embedding(graph, input, weight, None, max_norm)
    bags = input.shape[:1]
    if input.ndim == 1:
        bags = torch.Size([offsets.shape[0] - include_last_offset if offsets is not None else 1])
    units = graph.units(rows).reshape(-1, rows.shape[-1])[0]
    return rows.with_units(units.expand(*bags, len(units)))
