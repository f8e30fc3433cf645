"""The sum over paths: what every operation does to it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from pathspace.flow.layers import Convolution, Linear
from pathspace.flow.pooling import Pooling, per_axis
from pathspace.flow.values import Flow, NoPathSum
from pathspace.network import Ref, StateRef
from pathspace.tracing.values import map_leaves


class Sums(Pooling):
    """Evaluates a program with :math:`|w|^p` in place of w."""

    RULES: ClassVar[dict[str, str]] = {}
    LAYERS = frozenset(
        ["linear", *(f"conv{kind}{n}d" for n in (1, 2, 3) for kind in ("", "_transpose"))]
    )

    # Rules -------------------------------------------------------------------------------------

    def same(self, x: Flow, *args: Any, **kwargs: Any) -> Flow:
        return x

    def movement(self, x: Flow, *args: Any, **kwargs: Any) -> Flow:
        def plain(leaf: Any) -> Any:
            return leaf.tensor if isinstance(leaf, Flow) else leaf

        function = self.node.function
        if self.node.operation in ("view", "view_as"):  # what was contiguous need not be so here
            function = getattr(Tensor, self.node.operation.replace("view", "reshape"))
        elif self.node.inplace:
            function = getattr(Tensor, self.node.operation)
        args, kwargs = map_leaves(plain, args), map_leaves(plain, kwargs)
        return x.map(lambda tensor: function(tensor, *args, **kwargs))

    def index(self, x: Flow, key: Any) -> Flow:
        key = self._raw_index(self.node.args[1])
        return x.map(lambda tensor: tensor[key])

    def rearrange(self, x: Flow, *args: Any, **kwargs: Any) -> Flow:
        args = self._raw_index(self.node.args[1:])
        kwargs = self._raw_index(self.node.kwargs)
        return x.map(lambda tensor: self.node.function(tensor, *args, **kwargs))

    def _raw_index(self, tree: Any) -> Any:
        """Constant index tensors, not raised to a power."""

        def raw(leaf: Any) -> Any:
            if isinstance(leaf, Ref) or (isinstance(leaf, StateRef) and "input " in leaf.name):
                self.refuse()  # places that depend on the data
            return self.weights[leaf.name] if isinstance(leaf, StateRef) else leaf

        return map_leaves(raw, tree)

    def parts(self, x: Flow, *args: Any, **kwargs: Any) -> list[Flow]:
        split = self.node.function(x.tensor, *args, **kwargs)
        return [Flow(part, x.log, x.data) for part in split]

    def leaky_relu(self, x: Flow, slope: float = 0.01, *args: Any, **kwargs: Any) -> Flow:
        slope = kwargs.get("negative_slope", slope)
        return x if abs(slope) <= 1 else x.times(abs(slope) ** self.power)

    def rrelu(
        self, x: Flow, lower: float = 1 / 8, upper: float = 1 / 3, *_: Any, **kw: Any
    ) -> Flow:
        slope = max(1.0, abs(kw.get("lower", lower)), abs(kw.get("upper", upper)))
        return x.times(slope**self.power)

    def prelu(self, x: Flow, weight: Flow) -> Flow:
        slope = weight.tensor.clamp_min(1.0)  # |a|^p
        axes = [1, -1] + [1] * (x.tensor.dim() - 2) if x.tensor.dim() > 1 else [-1]
        return x.times(slope.view(axes))

    def bounded(self, x: Flow, *bounds: Any, **kwargs: Any) -> Flow:
        given = [b for b in (*bounds, *kwargs.values()) if b is not None and b is not False]
        plain = all(isinstance(b, int | float) and (b == 0 or math.isinf(b)) for b in given)
        return x if given and plain else self.refuse()

    def add(self, a: Any, b: Any, *, alpha: Any = 1) -> Flow:
        if isinstance(b, Flow) and alpha != 1:
            b = b.times(abs(alpha) ** self.power)
        flows = [self._constant(side) for side in (a, b)]
        shape = torch.broadcast_shapes(*(f.tensor.shape for f in flows))
        kept = [f for f in flows if f.data] if not self.biases else flows
        if not kept or not any(f.data for f in flows):
            return Flow(flows[0].tensor.new_zeros(shape), 0.0, False) if not kept else self.refuse()
        tensors, log = self.aligned(*kept)
        total = tensors[0] if len(tensors) == 1 else self.plus(tensors[0], tensors[1])
        return Flow(total.expand(shape), log, True)

    def rsub(self, a: Any, b: Any, alpha: Any = 1) -> Flow:
        return self.add(b, a)

    def _constant(self, x: Any) -> Flow:
        if isinstance(x, Flow):
            return x
        return Flow(torch.tensor(float(abs(x)) ** self.power, dtype=self.dtype))

    def mul(self, a: Any, b: Any) -> Flow:
        flows = [self._constant(side) for side in (a, b)]
        if all(flow.data for flow in flows):
            return self.refuse()
        data = any(flow.data for flow in flows)
        return Flow(flows[0].tensor * flows[1].tensor, flows[0].log + flows[1].log, data)

    def div(self, a: Any, b: Any, **kwargs: Any) -> Flow:
        divisor = self._constant(b)
        return self.refuse() if divisor.data else a.map(lambda x: x / divisor.tensor)

    def reduce(self, x: Flow, *args: Any, **kwargs: Any) -> Any:
        given = dict(zip(["dim", "keepdim"], args, strict=False)) | kwargs
        dim = given.get("dim", given.get("axis", given.get("other")))
        if isinstance(dim, Flow):
            return self.add(x, dim)
        rank = x.tensor.dim()
        dims = list(range(rank)) if dim is None or dim == () or dim == [] else dim
        dims = [d % rank for d in ([dims] if isinstance(dims, int) else dims)]
        result = x.map(lambda t: self.total(t, dims, bool(given.get("keepdim", False))))
        if self.node.operation in ("mean", "nanmean"):
            count = math.prod(x.tensor.shape[d] for d in dims)
            result = result.times(float(count) ** -self.power)
        if self.node.operation in ("max", "min") and dim is not None:
            return [result, Flow(torch.zeros_like(result.tensor))]
        return result

    def cat(self, flows: Sequence[Flow], *args: Any, **kwargs: Any) -> Flow:
        if not self.biases:
            flows = [f if f.data else f.times(0.0) for f in flows]
        tensors, log = self.aligned(*flows)
        return Flow(self.node.function(tensors, *args, **kwargs), log, True)

    def pad(self, x: Flow, pad: Any, mode: str = "constant", value: Any = None) -> Flow:
        fill = abs(value) ** self.power * math.exp(-x.log) if value and self.biases else 0.0
        extra = {"value": fill} if mode == "constant" else {}
        return x.map(lambda t: F.pad(t, pad, mode, **extra))

    def zeros(self, x: Flow, *size: Any, **kwargs: Any) -> Flow:
        shape = x.tensor.shape
        if self.node.operation == "new_zeros":
            given = size[0] if size and isinstance(size[0], tuple | list) else size
            shape = torch.Size(kwargs.get("size", given))
        return Flow(x.tensor.new_zeros(shape), 0.0, True)

    def assign(self, x: Flow, key: Any, value: Any) -> Flow:
        value = self._constant(value)
        tensors, log = self.aligned(x, value)
        result = tensors[0].clone()
        result[self._raw_index(self.node.args[1])] = tensors[1]
        return Flow(result, log, True)

    # Weights -----------------------------------------------------------------------------------

    def with_bias(self, x: Flow, bias: Flow | None, axes: int) -> Flow:
        if bias is None or not self.biases or bias is self.nothing:
            return x
        shifted = bias.map(lambda b: b[(..., *(None,) * axes)])
        return self.add(x, shifted)

    def linear(self, x: Flow, weight: Flow | StateRef, bias: Flow | None = None) -> Flow:
        if isinstance(weight, StateRef) and self.weights[weight.name].dim() != 2:
            weight = self.entry(weight.name)
        if isinstance(weight, StateRef):
            return self.with_bias(self.layer(Linear, x, weight), bias, 0)
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
        transposed = "transpose" in self.node.operation
        given = dict(zip(_OPTIONS[transposed], args, strict=False)) | kw
        if isinstance(weight, Flow):
            if weight.data:
                return self.refuse()
            result = self.node.function(x.tensor, weight.tensor, None, **given)
            spatial = weight.tensor.dim() - 2
            return self.with_bias(Flow(result, x.log + weight.log, x.data), bias, spatial)
        shape = self.weights[weight.name].shape
        spatial = len(shape) - 2
        stride, dilation, padding = (
            per_axis(given.get(key, default), spatial)
            for key, default in (("stride", 1), ("dilation", 1), ("padding", 0))
        )
        if "same" in padding:  # may be more on one side than on the other
            amounts = conv_padding("same", shape[2:], dilation)
            x = x.map(lambda tensor: F.pad(tensor, amounts))
        padding = (0,) * spatial if isinstance(padding[0], str) else padding
        more = per_axis(given.get("output_padding", 0), spatial)
        options = (stride, padding, dilation, transposed, more, given.get("groups", 1))
        if x.tensor.dim() == len(shape):
            return self.with_bias(self.layer(Convolution, x, weight, options), bias, spatial)
        one = self.layer(Convolution, x.map(lambda tensor: tensor[None]), weight, options)
        return self.with_bias(one.map(lambda tensor: tensor[0]), bias, spatial)

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
        names = ["running_mean", "running_var", "weight", "bias", "training", "momentum", "eps"]
        given = dict(zip(names, self.node.args[1:], strict=False)) | self.node.kwargs

        def raw(key: str) -> Tensor | None:
            ref = given.get(key)
            tensor = self.weights[ref.name] if isinstance(ref, StateRef) else ref
            return None if tensor is None else tensor.to(self.dtype)

        mean, variance, weight, bias = (raw(key) for key in names[:4])
        if mean is None or variance is None:
            raise NoPathSum(
                f"{self.where()} is a batch norm without running statistics; it cannot be folded"
            )
        ref = given["running_mean"]
        if isinstance(ref, StateRef) and ref.name in self.absorbed:
            mean = mean - self.weights[self.absorbed[ref.name]].to(self.dtype)
        inverse = (variance + given.get("eps", 1e-5)).rsqrt()
        gain = self.raised(inverse)
        if weight is not None:
            inverse = inverse * weight
            gain = gain * self.raised(weight, _name(given["weight"]))
        shift = -mean * inverse if bias is None else bias - mean * inverse
        return self.affine(x, gain, self.raised(shift, _name(given.get("bias"))))

    def affine(self, x: Flow, gain: Tensor, shift: Tensor) -> Flow:
        """Gain and shift along axis 1, in one pass over the values."""
        shift = shift * math.exp(-x.log) if self.biases else torch.zeros_like(shift)
        zero, one = torch.zeros_like(shift), torch.ones_like(shift)
        return x.map(lambda t: F.batch_norm(t, zero, one, gain, shift, False, 0.0, 0.0))


def _name(leaf: Any) -> str | None:
    return leaf.name if isinstance(leaf, StateRef) else None


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
