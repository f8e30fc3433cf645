"""The sum over paths: what layers with weights do to it, and the table of all operations."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from pathspace.flow.batchnorms import BatchNorms, folded
from pathspace.flow.layers import Convolution, Linear
from pathspace.flow.pooling import Pooling, per_axis, windows
from pathspace.flow.runs import Window
from pathspace.flow.values import Flow, NoPathSum, capped_exp
from pathspace.network import StateRef


class Sums(Pooling):
    """Evaluates a program with :math:`|w|^p` in place of w."""

    RULES: ClassVar[dict[str, str]] = {}
    WITH_RUNS = frozenset(
        """
        same leaky_relu rrelu prelu bounded add rsub mul div cat max_pool avg_pool conv batch_norm
        """.split()
    )
    LAYERS = frozenset(
        ["linear", *(f"conv{kind}{n}d" for n in (1, 2, 3) for kind in ("", "_transpose"))]
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.folded_norms: dict[int, tuple[Tensor, Tensor]] | None = None
        self.standard: dict[int, tuple[Tensor, Tensor]] = {}  # mean and variance, by channels

    def with_bias(self, x: Flow, bias: Flow | None, axes: int) -> Flow:
        if bias is None or not self.biases or bias is self.nothing:
            return x
        shifted = bias.map(lambda b: b[(..., *(None,) * axes)])
        return self.add(x, shifted)

    def linear(self, x: Flow, weight: Flow | StateRef, bias: Flow | None = None) -> Flow:
        if isinstance(weight, StateRef) and self.weights[weight.name].dim() != 2:
            weight = self.entry(weight.name)
        if isinstance(weight, StateRef):
            name = weight
            product = x.map(lambda tensor: self.layer(Linear, tensor, name))
            return self.with_bias(product, bias, 0)
        if weight.data:
            return self.refuse()
        product = Flow(self.matrix(x.tensor, weight.tensor), x.log + weight.log, x.data)
        return self.with_bias(product, bias, 0)

    def conv(
        self,
        x: Flow,
        weight: Flow | StateRef,
        bias: Flow | None = None,
        *args: Any,
        **kw: Any,
    ) -> Flow:
        shape = weight.tensor.shape if isinstance(weight, Flow) else self.weights[weight.name].shape
        how = self.program.keep(
            self.place, lambda: Geometry.of(self.node.operation, shape, args, kw)
        )
        if isinstance(weight, Flow) and weight.data:
            return self.refuse()

        def convolved(tensor: Tensor) -> Tensor:
            tensor = F.pad(tensor, how.uneven) if how.uneven else tensor
            batch = tensor if tensor.dim() == len(shape) else tensor[None]
            if isinstance(weight, Flow):
                result = torch.convolution(batch, weight.tensor, None, *how.options)
            else:
                result = self.layer(Convolution, batch, weight, how.options)
            return result if batch is tensor else result[0]

        if how.windows is None:
            result = x.whole().map(convolved)
        else:
            result = x.through(how.windows, convolved)
        return self.with_bias(result, bias, len(shape) - 2)

    def matmul(self, a: Flow, b: Flow) -> Flow:
        if a.data and b.data:
            return self.refuse()
        if self.node.operation == "rmatmul":
            a, b = b, a
        return Flow(torch.matmul(a.tensor, b.tensor), a.log + b.log, a.data or b.data)

    def addmm(self, bias: Flow, a: Flow, b: Flow, **kwargs: Any) -> Flow:
        return self.add(self.matmul(a, b), bias)

    def einsum(self, equation: str, *operands: Any) -> Flow:
        flows = operands[0] if isinstance(operands[0], tuple | list) else operands
        if sum(flow.data for flow in flows) > 1:
            return self.refuse()
        product = torch.einsum(equation, *(flow.tensor for flow in flows))
        return Flow(product, sum(flow.log for flow in flows), any(flow.data for flow in flows))

    def embedding(self, x: Flow, weight: Flow, *args: Any, **kwargs: Any) -> Flow:
        """Every row is reached from an input of its own."""
        rows = self.total(weight.tensor, [0], False)
        shape = x.tensor.shape
        if self.node.operation == "embedding_bag" and x.tensor.dim() == 2:
            shape, count = shape[:1], shape[1]
            scale = count ** (1 - self.power) if kwargs.get("mode", "mean") == "mean" else count
            rows = rows * (scale if not math.isinf(self.p) else scale / count)
        return Flow(rows.expand(*shape, len(rows)), weight.log, True)

    def batch_norm(self, x: Flow, *args: Any, **kwargs: Any) -> Flow:
        if self.folded_norms is None:
            found = self.program.keep(
                BatchNorms,
                lambda: BatchNorms(
                    self.program.nodes, self.program.outputs, self.program.absorption.norms
                ),
            )
            self.folded_norms = self.fold_norms(found)
        if self.place not in self.folded_norms:
            raise NoPathSum(
                f"{self.where()} is a batch norm without running statistics; it cannot be folded"
            )
        return self.affine(x, *self.folded_norms[self.place])

    def fold_norms(self, norms: BatchNorms) -> dict[int, tuple[Tensor, Tensor]]:
        """Powers of gains and of folded biases of batch norms, by the place of their nodes."""
        if not norms.norms:
            return {}
        sizes = norms.sizes(self.weights)
        weight, bias, absorbed, mean, variance = (
            norms.row(key, fill, self.weights, self.dtype)
            for key, fill in (
                ("weight", 1.0),
                ("bias", 0.0),
                ("absorbed", 0.0),
                ("running_mean", 0.0),
                ("running_var", 1.0),
            )
        )
        assert mean is not None
        assert variance is not None
        variance = variance + norms.eps(self.weights, variance)
        gain = variance ** (-self.power / 2)
        if weight is not None:
            gain = gain * self.raised_gain(weight, norms)
        bias = folded(weight, bias, absorbed, mean, variance.rsqrt())
        shift = self.raised_shift(bias, norms)
        places = [norm.place for norm in norms.norms]
        pairs = zip(gain.split(sizes), shift.split(sizes), strict=True)
        return dict(zip(places, pairs, strict=True))

    def raised_gain(self, weight: Tensor, norms: BatchNorms) -> Tensor:
        """The power of the weights of all batch norms, in a row."""
        return self.raised(weight)

    def raised_shift(self, bias: Tensor, norms: BatchNorms) -> Tensor:
        """That of the folded biases."""
        return self.raised(bias)

    def affine(self, x: Flow, gain: Tensor, shift: Tensor) -> Flow:
        """Gain and shift along axis 1, in one pass over the values."""
        if len(shift) not in self.standard:
            self.standard[len(shift)] = shift.new_zeros(len(shift)), shift.new_ones(len(shift))
        zero, one = self.standard[len(shift)]
        if not self.biases:
            shift = zero
        elif x.log:
            x = x.with_room_for(shift)
            shift = shift * capped_exp(-x.log)
        return x.map(lambda t: F.batch_norm(t, zero, one, gain, shift, False, 0.0, 0.0))


@dataclass(frozen=True)
class Geometry:
    """What a convolution does to an image, as far as its shape and options tell.

    Attributes:
        options: as :func:`torch.convolution` takes them.
        uneven: what is padded before that, where there may be more on one side than on the other.
        windows: along each axis; ``None`` if it is transposed.
    """

    options: tuple[Any, ...]
    uneven: list[int]
    windows: list[Window] | None

    @classmethod
    def of(
        cls, operation: str, shape: Sequence[int], args: Sequence[Any], kw: Mapping[str, Any]
    ) -> Geometry:
        """That of an operation with a weight of some shape, and what comes behind its bias."""
        transposed = "transpose" in operation
        given = {**dict(zip(_OPTIONS[transposed], args, strict=False)), **kw}
        spatial = len(shape) - 2
        stride, dilation, more = (
            per_axis(given.get(key, default), spatial)
            for key, default in (("stride", 1), ("dilation", 1), ("output_padding", 0))
        )
        padding = given.get("padding", 0)
        amounts = conv_padding(padding, shape[2:], dilation)
        edges = (0,) * spatial if isinstance(padding, str) else per_axis(padding, spatial)
        options = (stride, edges, dilation, transposed, more, given.get("groups", 1))
        before = tuple(amounts[-2::-2])
        found = None if transposed else windows(spatial, shape[2:], stride, before, dilation)
        return cls(options, amounts if padding == "same" else [], found)


def conv_padding(padding: Any, kernel: Sequence[int], dilation: Sequence[int]) -> list[int]:
    """The padding of a convolution as :func:`torch.nn.functional.pad` takes it."""
    amounts: list[int] = []
    for axis in range(len(kernel) - 1, -1, -1):
        if padding == "same":
            total = dilation[axis] * (kernel[axis] - 1)
            amounts += [total // 2, total - total // 2]
        else:
            edge = 0 if padding == "valid" else per_axis(padding, len(kernel))[axis]
            amounts += [edge, edge]
    return amounts


_OPTIONS = {  # of a convolution behind its bias; by whether it is transposed
    False: ("stride", "padding", "dilation", "groups"),
    True: ("stride", "padding", "output_padding", "groups", "dilation"),
}


for _rule, _names in {
    "same": "relu abs absolute neg negative positive contiguous clone dropout dropout1d dropout2d "
    "dropout3d feature_dropout conj resolve_conj resolve_neg detach data to type type_as float "
    "double half bfloat16 cpu cuda",
    "movement": "view reshape flatten unflatten ravel permute transpose swapaxes swapdims movedim "
    "moveaxis t T mT squeeze unsqueeze expand expand_as broadcast_to narrow select flip fliplr "
    "flipud diagonal view_as reshape_as pixel_shuffle pixel_unshuffle channel_shuffle "
    "native_channel_shuffle repeat tile roll rot90 tril triu unfold",
    "rearrange": "index_select take_along_dim repeat_interleave",
    "index": "getitem",
    "assign": "setitem",
    "parts": "chunk split tensor_split unbind unsafe_chunk unsafe_split split_with_sizes hsplit "
    "vsplit",
    "leaky_relu": "leaky_relu",
    "rrelu": "rrelu",
    "prelu": "prelu",
    "bounded": "threshold clamp clip clamp_min clamp_max hardtanh",
    "add": "add sub subtract maximum minimum fmax fmin",
    "rsub": "rsub",
    "mul": "mul multiply",
    "div": "div divide true_divide",
    "reduce": "sum mean nansum nanmean amax amin max min",
    "cat": "cat concat concatenate stack hstack vstack dstack column_stack row_stack",
    "pad": "pad",
    "zeros": "zeros_like new_zeros",
    "max_pool": " ".join(f"max_pool{n}d max_pool{n}d_with_indices" for n in (1, 2, 3)),
    "avg_pool": " ".join(f"avg_pool{n}d" for n in (1, 2, 3)),
    "adaptive_pool": " ".join(f"adaptive_avg_pool{n}d adaptive_max_pool{n}d" for n in (1, 2, 3)),
    "interpolate": "interpolate upsample upsample_nearest upsample_bilinear",
    "linear": "linear",
    "conv": " ".join(f"conv{n}d conv_transpose{n}d" for n in (1, 2, 3)),
    "matmul": "matmul mm bmm mv dot rmatmul",
    "addmm": "addmm addmv baddbmm",
    "einsum": "einsum",
    "embedding": "embedding embedding_bag",
    "batch_norm": "batch_norm",
}.items():
    Sums.RULES |= dict.fromkeys(_names.split(), _rule)
