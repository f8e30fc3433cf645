"""Normalisations: batch norm divides scales out, the others pin; all may write new units."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from pathspace.network import Normalization, StateRef
from pathspace.tracing.graph import Graph
from pathspace.tracing.rules.movement import is_constant
from pathspace.tracing.rules.other import opaque, pin_all
from pathspace.tracing.table import operation
from pathspace.tracing.values import Value
from pathspace.units import PINNED


@operation("batch_norm")
def batch_norm(
    graph: Graph,
    input: Value,
    running_mean: Value | None = None,
    running_var: Value | None = None,
    weight: Value | None = None,
    bias: Value | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
    *args: Any,
) -> Any:
    """Batch norm divides the scale of its input out; weight and bias give its output a new one."""
    tensors = (running_mean, running_var, weight, bias)
    if any(value is not None and _state_name(value) is None for value in tensors[:2]):
        return opaque(graph, input, *tensors)  # statistics that rescaling could not reach
    channels = input.shape[1]
    before = graph.constant_over(graph.units(input), [1]).reshape(-1).expand(channels)
    learnt = weight is not None and weight.is_weight
    layer = graph.layer(weight) if weight is not None and learnt else graph.module or "batch_norm"
    after = graph.emit(layer, channels)
    if not learnt:
        graph.pin(after, "batch norm without a weight that could be rescaled")
    for value in (weight, bias):
        if value is not None and value.is_weight:
            graph.connect(value, after, PINNED)
        elif value is not None:
            pin_all(graph, value)
            graph.pin(after, "batch norm with a weight or bias that is no parameter")
    mean, variance = _state_name(running_mean), _state_name(running_var)
    for known in graph.normalizations:  # one layer used twice has one set of statistics
        if mean is not None and known.mean == mean:
            graph.merge(known.input, before, f"batch norm `{layer}` used more than once")
    parameters = (_state_name(weight), _state_name(bias))
    graph.normalizations.append(
        Normalization(
            layer, before, after, before, *parameters, mean, variance, eps, len(graph.program)
        )
    )
    shape = [1, channels] + [1] * (input.ndim - 2)
    return input.with_units(after.view(shape).expand(input.shape))


def _state_name(value: Value | None) -> str | None:
    """The name of a parameter or buffer."""
    stored = value is not None and is_constant(value) and isinstance(value.ref, StateRef)
    return value.ref.name if value is not None and stored else None


@operation("layer_norm")
def layer_norm(
    graph: Graph,
    input: Value,
    normalized_shape: Sequence[int],
    weight: Value | None = None,
    bias: Value | None = None,
    *args: Any,
    **kwargs: Any,
) -> Value:
    """Pins its input; its weight and bias write new units."""
    return _affine(graph, input, weight, bias, trailing=0)


@operation("rms_norm")
def rms_norm(
    graph: Graph,
    input: Value,
    normalized_shape: Sequence[int],
    weight: Value | None = None,
    *args: Any,
    **kwargs: Any,
) -> Value:
    """Pins its input; its weight writes new units."""
    return _affine(graph, input, weight, None, trailing=0)


@operation("group_norm")
def group_norm(
    graph: Graph,
    input: Value,
    num_groups: int,
    weight: Value | None = None,
    bias: Value | None = None,
    *args: Any,
    **kwargs: Any,
) -> Value:
    """Pins its input; its weight and bias write new units."""
    return _affine(graph, input, weight, bias, trailing=input.ndim - 2)


@operation("instance_norm")
def instance_norm(
    graph: Graph,
    input: Value,
    running_mean: Any = None,
    running_var: Any = None,
    weight: Value | None = None,
    bias: Value | None = None,
    *args: Any,
    **kwargs: Any,
) -> Value:
    """Pins its input; its weight and bias write new units."""
    return _affine(graph, input, weight, bias, trailing=input.ndim - 2)


def _affine(
    graph: Graph, input: Value, weight: Value | None, bias: Value | None, trailing: int
) -> Value:
    """Normalise, times weight, plus bias; ``trailing`` axes follow those of the parameters."""
    pin_all(graph, input)
    units = torch.tensor(PINNED)
    if weight is not None and weight.is_weight:
        units = graph.emit(graph.layer(weight), weight.shape.numel()).view(weight.shape)
        graph.connect(weight, units, PINNED)
    elif weight is not None:
        pin_all(graph, weight)
    if bias is not None and bias.is_weight and units.dim():
        graph.connect(bias, units, PINNED)
    elif bias is not None:
        pin_all(graph, bias)
        graph.pin(units, f"{graph.where()} has a bias that is no parameter")
    return input.with_units(units[(..., *(None,) * trailing)].expand(input.shape))
