"""Operations that pin what meets them, that depend on data, or that are in no table."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pathspace.tracing.graph import Graph
from pathspace.tracing.table import operation
from pathspace.tracing.values import Value, map_leaves, values_in, without_data
from pathspace.units import PINNED

# Not positively homogeneous, of the shape of their first argument.
_SAME_SHAPE = """
    gelu silu mish sigmoid tanh relu6 hardsigmoid hardswish elu selu celu softplus softsign
    tanhshrink softshrink hardshrink logsigmoid softmax log_softmax softmin gumbel_softmax exp exp2
    log log2 log10 log1p expm1 sqrt rsqrt square sin cos tan asin acos atan sinh cosh asinh acosh
    atanh arcsin arccos arctan erf erfc erfinv reciprocal round floor ceil trunc frac alpha_dropout
    feature_alpha_dropout local_response_norm normalize logit expit sinc nan_to_num
"""
# Not positively homogeneous, of a shape that is asked of the operation itself.
_OTHER_SHAPE = """
    pow rpow float_power fmod remainder rdiv atan2 lerp prod var var_mean std_mean logsumexp
    logaddexp cosine_similarity scaled_dot_product_attention multi_head_attention_forward lstm gru
    rnn_tanh rnn_relu lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell bilinear cdist
    pairwise_distance cross_entropy nll_loss mse_loss l1_loss smooth_l1_loss huber_loss
    binary_cross_entropy binary_cross_entropy_with_logits kl_div gaussian_nll_loss argmax argmin
    topk sort argsort median mode any all logical_and logical_or logical_xor bitwise_and bitwise_or
    bitwise_xor bitwise_not one_hot glu outer cross floor_divide count_nonzero heaviside hypot
    bucketize searchsorted cumprod log_sigmoid
"""


@operation(_SAME_SHAPE)
def same_shape(graph: Graph, input: Value, *args: Any, **kwargs: Any) -> Value:
    """Not positively homogeneous; the result has the shape of the input."""
    pin_all(graph, (input, args, kwargs))
    return input.with_units(torch.tensor(PINNED).expand(input.shape))


@operation(_OTHER_SHAPE)
def opaque(graph: Graph, *args: Any, **kwargs: Any) -> Any:
    """Not positively homogeneous (or not known to be): whatever meets it is pinned."""
    pin_all(graph, (args, kwargs))
    result = graph.function(*map_leaves(without_data, args), **map_leaves(without_data, kwargs))
    if isinstance(result, Tensor):
        return _pinned_like(result)
    if not isinstance(result, tuple | list) or not any(isinstance(x, Tensor) for x in result):
        return graph.refuse(f"it returns {type(result).__name__}, not tensors")
    return [_pinned_like(x) if isinstance(x, Tensor) else x for x in result]


def _pinned_like(tensor: Tensor) -> Value:
    return Value(torch.tensor(PINNED).expand(tensor.shape), tensor.dtype)


def pin_all(graph: Graph, tree: Any) -> None:
    """Pin everything in nested arguments."""
    for value in values_in(tree):
        if value.is_weight:
            graph.fix(value)
        else:
            reason = f"meets {graph.where()}, which is not positively homogeneous"
            graph.pin(graph.units(value), reason)


def cast_to(graph: Graph, value: Any, dtype: torch.dtype | None) -> torch.dtype | None:
    """The dtype that values are cast to; whole numbers round, so that scales are pinned."""
    floating = isinstance(value, Value) and value.dtype.is_floating_point
    if floating and dtype is not None and not dtype.is_floating_point:
        pin_all(graph, value)
    return dtype


def unknown(graph: Graph, *args: Any, **kwargs: Any) -> Any:
    """An operation in no table: refuse by name, or pin what meets it."""
    if graph.on_unknown == "pin":
        return opaque(graph, *args, **kwargs)
    values = values_in((args, kwargs))
    if all(value.is_weight for value in values):
        assert values[0].weight is not None
        graph.refuse(
            f"the parameter `{values[0].weight.name}` is transformed by `{graph.operation}` before "
            "it is used as a weight (a parametrization?); remove it first, e.g. with "
            "torch.nn.utils.parametrize.remove_parametrizations or torch.nn.utils."
            'remove_weight_norm, or pass on_unknown="pin"'
        )
    return graph.refuse(
        f"`{graph.operation}` is in no table of operations; register a rule for it (see "
        'pathspace.tracing.rules), or pass on_unknown="pin" to pin the units that meet it'
    )


@operation("""
    item tolist numpy equal allclose is_nonzero nonzero masked_select unique bincount multinomial
    __bool__ __float__ __int__ __index__ __contains__ __complex__ __array__
""")
def data_dependent(graph: Graph, *args: Any, **kwargs: Any) -> Any:
    """Values decide what is computed: no graph could be right for all inputs."""
    return graph.refuse(
        "what it computes depends on the data (control flow or shapes made from values), so one "
        "graph cannot describe the model; move the decision out of forward, or trace the part of "
        "the model that has a fixed structure"
    )
