r"""Sums over all paths by one pass through the recorded program.

With :math:`|w|^p` in place of every weight and all inputs equal to 1, a ReLU network computes at
each of its values the sum over all paths that end there of :math:`\prod |w_e|^p`: activations
become the identity, differences sums, and a maximum over a window the sum over it, since every
entry of the window is the end of a path. For p = ∞ sums become maxima. Values are carried as
(tensor, logarithm of a common factor), so that depth neither overflows nor underflows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pathspace.errors import PathspaceError
from pathspace.network import InputSpec, Network, Node, Ref, StateRef
from pathspace.tracing import trace
from pathspace.tracing.values import leaves, map_leaves
from pathspace.weightgraph import absorbed_biases


class NoPathSum(PathspaceError, NotImplementedError):
    """The network's output is no sum over paths: an operation is not homogeneous."""


@dataclass(frozen=True)
class Flow:
    """A tensor times ``exp(log)``; ``data`` tells activations from parameters and constants."""

    tensor: Tensor
    log: float = 0.0
    data: bool = False

    def at(self, log: float) -> Tensor:
        """The tensor that goes with another common factor."""
        return self.tensor if self.log == log else self.tensor * math.exp(self.log - log)

    def times(self, factor: Any) -> Flow:
        """Multiply by a number or tensor."""
        return Flow(self.tensor * factor, self.log, self.data)

    def map(self, function: Callable[[Tensor], Tensor]) -> Flow:
        """Apply a map that commutes with the common factor."""
        return Flow(function(self.tensor), self.log, self.data)


def path_flow(
    network: Network,
    weights: Mapping[str, Tensor],
    p: float,
    *,
    biases: bool = True,
    dtype: torch.dtype = torch.float64,
) -> list[Flow]:
    """The sums over all paths into every output of the network, for one exponent.

    Args:
        network: the traced network.
        weights: the state of the model, parameters and buffers by name.
        p: the exponent; ``math.inf`` for maxima.
        biases: whether paths may start at a bias.
        dtype: what to compute in.
    """
    program, outputs = _one_sample(network)
    kind = _Maxima if math.isinf(p) else _Sums
    try:
        flows = kind(network, weights, p, biases, dtype).run(program, outputs)
        if all(bool(flow.tensor.isfinite().all()) for flow in flows):
            return flows
    except _Overflow:
        pass
    return kind(network, weights, p, biases, dtype, careful=True).run(program, outputs)


def _one_sample(network: Network) -> tuple[tuple[Node, ...], Any]:
    """The program for a single sample, however many the network was traced with."""
    cached = network.__dict__.get("_one_sample")
    if cached is not None:
        return cached
    specs = [leaf for leaf in leaves(network.inputs) if isinstance(leaf, InputSpec)]
    single = network
    if any(spec.shape[:1] != (1,) for spec in specs):
        device = next((p.device for p in network.model.parameters()), torch.device("cpu"))

        def example(leaf: Any) -> Any:
            if not isinstance(leaf, InputSpec):
                return leaf
            shape = (1, *leaf.shape[1:]) if leaf.shape else ()
            return torch.zeros(shape, dtype=leaf.dtype, device=device)

        args, kwargs = (map_leaves(example, part) for part in network.inputs)
        if not kwargs or not args:
            single = trace(network.model, kwargs or args, streams=network.streams)
    network.__dict__["_one_sample"] = (single.program, (single.inputs, single.outputs))
    return network.__dict__["_one_sample"]


class _Overflow(Exception):
    """A value between two checks left the range of its dtype."""


class _Sums:
    """Evaluates a program with :math:`|w|^p` in place of w."""

    def __init__(
        self,
        network: Network,
        weights: Mapping[str, Tensor],
        p: float,
        biases: bool,
        dtype: torch.dtype,
        careful: bool = False,
    ) -> None:
        self.careful = careful
        self.network, self.weights, self.p, self.biases = network, weights, p, biases
        self.dtype = dtype
        self.power = 1.0 if math.isinf(p) else p
        self.results: dict[Ref, Any] = {}
        self.powers: dict[str, Flow] = {}
        self.node = Node("", torch.relu, (), {}, "", False)
        self.inputs: list[InputSpec] = []
        self.largest = torch.finfo(dtype).max ** (1 / 8)
        self.buffer: Tensor | None = None
        self.absorbed = absorbed_biases(network)
        self.nothing = Flow(torch.zeros((), dtype=dtype))
        self.autograd = torch.is_grad_enabled() and any(w.requires_grad for w in weights.values())

    def run(self, program: Sequence[Node], outputs: Any) -> list[Flow]:
        """Evaluate all operations and return the flows of the outputs."""
        specs, refs = outputs
        self.inputs = [leaf for leaf in leaves(specs) if isinstance(leaf, InputSpec)]
        last: dict[int, int] = {}
        for place, node in enumerate(program):
            for ref in _refs((node.args, node.kwargs)):
                last[ref.node] = place
        for ref in _refs(refs):
            last[ref.node] = len(program)
        for place, node in enumerate(program):
            self.node = node
            args, kwargs = self.arguments(node)
            rule = getattr(self, _RULES.get(node.operation, "refuse"))
            result = rule(*args, **kwargs)
            if isinstance(result, Flow):
                self.results[Ref(place)] = self.normalized(result)
            else:
                for item, part in enumerate(result):
                    self.results[Ref(place, item)] = part
            for ref in _refs((node.args, node.kwargs)):
                if last[ref.node] == place:
                    self.results.pop(ref, None)  # not needed any more
        return [self.lift(ref) for ref in _refs(refs)]

    def arguments(self, node: Node) -> tuple[Any, Any]:
        """The flows behind a node's arguments.

        The weight of a linear map or convolution is needed for this node only; without autograd
        its power is written into one buffer for all, which saves most of the memory traffic.
        """
        args = list(node.args)
        weight = args[1] if len(args) > 1 and node.operation in _READING else None
        if isinstance(weight, StateRef) and not self.autograd:
            args[1] = Flow(self.buffered(self.weights[weight.name]))
        return map_leaves(self.lift, tuple(args)), map_leaves(self.lift, node.kwargs)

    def buffered(self, tensor: Tensor) -> Tensor:
        """:math:`|w|^p` in the common buffer."""
        if self.buffer is None or len(self.buffer) < tensor.numel():
            largest = max(w.numel() for w in self.weights.values())
            self.buffer = torch.empty(largest, dtype=self.dtype, device=tensor.device)
        power = self.buffer[: tensor.numel()].view(tensor.shape)
        if tensor.dtype != self.dtype:
            tensor = power.copy_(tensor)
        if self.power == 2:
            return torch.square(tensor, out=power)
        torch.abs(tensor, out=power)
        if self.power == 1:
            return power
        if self.power in (1.5, 2.5):
            root = power.sqrt()
            return (power if self.power == 1.5 else power.square_()).mul_(root)
        return power.pow_(int(self.power) if self.power == int(self.power) else self.power)

    def lift(self, leaf: Any) -> Any:
        """The flow behind a reference; numbers and other arguments as they are."""
        if isinstance(leaf, Ref):
            return self.results[leaf]
        if isinstance(leaf, StateRef):
            return self.entry(leaf.name)
        if isinstance(leaf, Tensor):
            return Flow(leaf.to(self.dtype).abs() ** self.power)
        return leaf

    def entry(self, name: str) -> Flow:
        """An input (all ones), or a parameter or buffer raised to the p-th power of its size."""
        if name.startswith("input "):
            spec = self.inputs[int(name.removeprefix("input "))]
            device = next(iter(self.weights.values())).device if self.weights else None
            return Flow(torch.ones(spec.shape, dtype=self.dtype, device=device), 0.0, True)
        if name in self.absorbed.values():
            return self.nothing  # part of the batch norm behind it
        if name not in self.powers:
            self.powers[name] = Flow(self.raised(self.weights[name]))
        return self.powers[name]

    def raised(self, tensor: Tensor) -> Tensor:
        """:math:`|w|^p`, without the general power where it is not needed."""
        tensor = tensor.to(self.dtype)
        if self.power == 2:
            return tensor.square()
        tensor = tensor.abs()
        if self.power == 1:
            return tensor
        if self.power in (1.5, 2.5):
            return tensor ** int(self.power) * tensor.sqrt()
        return tensor ** (int(self.power) if self.power == int(self.power) else self.power)

    def normalized(self, flow: Flow) -> Flow:
        """Move a factor into the logarithm when the tensor leaves the middle of its range."""
        if not flow.data or not flow.tensor.numel() or self.node.operation not in _GROWING:
            return flow
        values = flow.tensor.detach()
        if not self.careful and self.is_moderate(float(values.reshape(-1)[values.numel() // 2])):
            return flow  # one entry tells; should another overflow, we come back more careful
        top = float(values.amax())
        if top == 0 or self.is_moderate(top):
            return flow
        if not math.isfinite(top):
            if not self.careful:
                raise _Overflow
            raise PathspaceError(
                f"{self.where()} leaves the range of {self.dtype}: are all weights finite?"
            )
        return Flow(flow.tensor / top, flow.log + math.log(top), True)

    def is_moderate(self, value: float) -> bool:
        """Whether a value is far from overflow and underflow."""
        return 1 / self.largest < value < self.largest

    def where(self) -> str:
        """The operation and its module."""
        return f"`{self.node.module or type(self.network.model).__name__}` ({self.node.operation})"

    def refuse(self, *args: Any, **kwargs: Any) -> Any:
        """Refuse an operation that no path sum goes through."""
        raise NoPathSum(
            f"{self.where()} is not positively homogeneous (or not linear between activations), "
            "so the network's output is no sum over paths; measure the part of the model before "
            "or behind it"
        )

    # Combining ---------------------------------------------------------------------------------

    def plus(self, a: Tensor, b: Tensor) -> Tensor:
        """How two paths' sums are combined."""
        return a + b

    def total(self, x: Tensor, dims: Sequence[int], keepdim: bool) -> Tensor:
        """How all entries along axes are combined."""
        return x.sum(list(dims), keepdim=keepdim) if dims else x

    def windows(self, x: Tensor, spatial: int, kernel: Any, stride: Any, padding: Any,
                dilation: Any, ceil: bool) -> Tensor:  # fmt: skip
        """How all entries of a window are combined: a convolution with ones."""
        kernel, padding, dilation = (_tuple(v, spatial) for v in (kernel, padding, dilation))
        stride = _tuple(stride if stride else kernel, spatial)
        size = getattr(F, f"max_pool{spatial}d")(
            x.new_zeros(1, 1, *x.shape[-spatial:]), kernel, stride, padding, dilation, ceil
        ).shape[2:]
        channels = x.shape[-spatial - 1]
        pads: list[int] = []
        for axis in range(spatial - 1, -1, -1):
            reach = (size[axis] - 1) * stride[axis] + dilation[axis] * (kernel[axis] - 1) + 1
            length = x.shape[axis - spatial]
            pads += [padding[axis], max(reach - length - padding[axis], 0)]
        padded = F.pad(x, pads)
        ones = x.new_ones(channels, 1, *kernel)
        convolve = getattr(F, f"conv{spatial}d")
        pooled: Tensor = convolve(padded, ones, None, stride, 0, dilation, channels)
        crop: tuple[Any, ...] = (..., *(slice(0, n) for n in size))
        return pooled[crop]

    def aligned(self, *flows: Flow) -> tuple[list[Tensor], float]:
        """Tensors of several flows with one common factor."""
        log = max((f.log for f in flows if f.data), default=0.0)
        return [f.at(log) for f in flows], log

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

    def max_pool(self, x: Flow, kernel: Any = None, stride: Any = None, padding: Any = 0,
                 dilation: Any = 1, ceil_mode: bool = False, return_indices: bool = False,
                 **kw: Any) -> Any:  # fmt: skip
        spatial = _spatial(self.node.operation)
        kernel = kw.get("kernel_size", kernel)
        result = x.map(
            lambda t: self.windows(t, spatial, kernel, stride, padding, dilation, ceil_mode)
        )
        if not return_indices and not self.node.operation.endswith("indices"):
            return result
        return [result, Flow(torch.zeros_like(result.tensor))]

    def avg_pool(self, x: Flow, kernel: Any = None, stride: Any = None, padding: Any = 0,
                 ceil_mode: bool = False, *args: Any, **kw: Any) -> Flow:  # fmt: skip
        """Each entry of a window has the weight 1/divisor, which may differ between windows."""
        spatial = _spatial(self.node.operation)
        kernel = kw.get("kernel_size", kernel)
        window = (spatial, kernel, stride, padding, 1, ceil_mode)
        like = x.tensor.new_ones(1, 1, *x.tensor.shape[-spatial:])
        given = self.node.args[1:], self.node.kwargs
        options = {k: v for k, v in given[1].items() if k != "input"}
        mean = self.node.function(like, *given[0], **options)
        divisor = _Sums.windows(self, like, *window) / mean
        sums = x.map(lambda t: self.windows(t, *window))
        return sums.times((divisor**-self.power).reshape(mean.shape[-spatial:]))

    def adaptive_pool(self, x: Flow, output_size: Any, *args: Any, **kwargs: Any) -> Any:
        """Windows of unequal size: one axis after the other."""
        spatial = _spatial(self.node.operation)
        sizes = _tuple(output_size, spatial)
        average = "avg" in self.node.operation
        result = x.tensor
        for axis, size in enumerate(sizes):
            dim = axis - spatial
            length = result.shape[dim]
            size = length if size is None else size
            pieces = []
            for i in range(size):
                start, end = (i * length) // size, -(-((i + 1) * length) // size)
                piece = self.total(result.narrow(dim, start, end - start), [dim], True)
                pieces.append(piece * (end - start) ** -self.power if average else piece)
            result = torch.cat(pieces, dim)
        flow = Flow(result, x.log, x.data)
        indices = kwargs.get("return_indices", args[0] if args else False)
        return [flow, Flow(torch.zeros_like(result))] if indices else flow

    def interpolate(self, x: Flow, *args: Any, **kwargs: Any) -> Flow:
        """Resampling is one matrix per axis; it is found by resampling unit vectors."""
        mode = kwargs.get("mode", args[2] if len(args) > 2 else "nearest")
        if mode.startswith("nearest"):
            return x.map(lambda t: self.node.function(t, *args, **kwargs))
        like = x.tensor.new_zeros(1, 1, *x.tensor.shape[2:])
        size = self.node.function(like, *args, **kwargs).shape[2:]
        result = x.tensor
        for axis, length in enumerate(x.tensor.shape[2:]):
            shape = [1] * len(size)
            shape[axis] = length
            eye = torch.eye(length, dtype=self.dtype).view(length, 1, *shape)
            target = [1] * len(size)
            target[axis] = size[axis]
            options = {k: v for k, v in kwargs.items() if k in ("mode", "align_corners")}
            matrix = F.interpolate(eye, size=target, **options).reshape(length, size[axis])
            result = self.matrix(result.movedim(axis + 2, -1), self.raised(matrix).T)
            result = result.movedim(-1, axis + 2)
        return Flow(result, x.log, x.data)

    # Weights -----------------------------------------------------------------------------------

    def matrix(self, x: Tensor, weight: Tensor) -> Tensor:
        """Compute x Wᵀ along the last axis."""
        return F.linear(x, weight)

    def with_bias(self, x: Flow, bias: Flow | None, axes: int) -> Flow:
        if bias is None or not self.biases or bias is self.nothing:
            return x
        shifted = bias.map(lambda b: b[(..., *(None,) * axes)])
        return self.add(x, shifted)

    def linear(self, x: Flow, weight: Flow, bias: Flow | None = None) -> Flow:
        if weight.data:
            return self.refuse()
        product = Flow(self.matrix(x.tensor, weight.tensor), x.log + weight.log, x.data)
        return self.with_bias(product, bias, 0)

    def conv(self, x: Flow, weight: Flow, bias: Flow | None = None, *args: Any, **kw: Any) -> Flow:
        if weight.data:
            return self.refuse()
        result = self.node.function(x.tensor, weight.tensor, None, *args, **kw)
        spatial = weight.tensor.dim() - 2
        return self.with_bias(Flow(result, x.log + weight.log, x.data), bias, spatial)

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
        gain = (variance + given.get("eps", 1e-5)).rsqrt()
        gain = gain if weight is None else gain * weight
        shift = -mean * gain if bias is None else bias - mean * gain
        return self.affine(x, self.raised(gain), self.raised(shift))

    def affine(self, x: Flow, gain: Tensor, shift: Tensor) -> Flow:
        """Gain and shift along axis 1, in one pass over the values."""
        shift = shift * math.exp(-x.log) if self.biases else torch.zeros_like(shift)
        zero, one = torch.zeros_like(shift), torch.ones_like(shift)
        return x.map(lambda t: F.batch_norm(t, zero, one, gain, shift, False, 0.0, 0.0))


class _Maxima(_Sums):
    """The same for p = ∞: the largest path in place of the sum."""

    def plus(self, a: Tensor, b: Tensor) -> Tensor:
        return torch.maximum(a, b)

    def total(self, x: Tensor, dims: Sequence[int], keepdim: bool) -> Tensor:
        return x.amax(list(dims), keepdim=keepdim) if dims else x

    def windows(self, x: Tensor, spatial: int, kernel: Any, stride: Any, padding: Any,
                dilation: Any, ceil: bool) -> Tensor:  # fmt: skip
        function = getattr(F, f"max_pool{spatial}d")
        pooled: Tensor = function(x, kernel, stride or None, padding, dilation, ceil)
        return pooled

    def matrix(self, x: Tensor, weight: Tensor) -> Tensor:
        return _largest_products(x, weight)

    def affine(self, x: Flow, gain: Tensor, shift: Tensor) -> Flow:
        axes = x.tensor.dim() - 2
        scaled = x.times(gain[(..., *(None,) * axes)])
        return self.with_bias(scaled, Flow(shift), axes)

    def conv(self, x: Flow, weight: Flow, bias: Flow | None = None, *args: Any, **kw: Any) -> Flow:
        """The largest product over channels and kernel places: maxima over shifted inputs."""
        if weight.data:
            return self.refuse()
        if "transpose" in self.node.operation:
            raise NoPathSum(f"{self.where()}: p = inf is not available for transposed convolutions")
        spatial = weight.tensor.dim() - 2
        given = dict(zip(["stride", "padding", "dilation", "groups"], args, strict=False)) | kw
        stride = _tuple(given.get("stride", 1), spatial)
        dilation = _tuple(given.get("dilation", 1), spatial)
        groups = given.get("groups", 1)
        padding = given.get("padding", 0)
        shape = self.node.function(
            x.tensor[:1, :1].new_zeros(1, groups, *x.tensor.shape[-spatial:]),
            weight.tensor.new_zeros(groups, 1, *weight.tensor.shape[2:]),
            None, stride, padding, dilation, groups,
        ).shape[2:]  # fmt: skip
        kernel = weight.tensor.shape[2:]
        padded = F.pad(x.tensor, _conv_padding(padding, kernel, dilation))
        batch, channels = padded.shape[:2]
        grouped = weight.tensor.view(groups, -1, channels // groups, *kernel)
        best: Tensor | None = None
        for place in torch.cartesian_prod(*map(torch.arange, kernel)).view(-1, spatial).tolist():
            window = padded
            for axis, (k, step, gap, size) in enumerate(
                zip(place, stride, dilation, shape, strict=True)
            ):
                taps = slice(k * gap, k * gap + (size - 1) * step + 1, step)
                crop: tuple[Any, ...] = (..., taps, *(slice(None),) * (spatial - 1 - axis))
                window = window[crop]
            columns = window.reshape(batch, groups, channels // groups, -1).transpose(2, 3)
            weights = grouped[(..., *place)]
            products = torch.stack(
                [_largest_products(columns[:, g], weights[g]) for g in range(groups)], 1
            )
            best = products if best is None else torch.maximum(best, products)
        assert best is not None
        result = best.transpose(2, 3).reshape(batch, -1, *shape)
        return self.with_bias(Flow(result, x.log + weight.log, x.data), bias, spatial)

    def matmul(self, a: Flow, b: Flow) -> Flow:
        if (a.data and b.data) or b.tensor.dim() > 2 or self.node.operation == "rmatmul":
            return self.refuse()
        right = b.tensor[:, None] if b.tensor.dim() == 1 else b.tensor
        product = _largest_products(a.tensor, right.T)
        product = product.squeeze(-1) if b.tensor.dim() == 1 else product
        return Flow(product, a.log + b.log, a.data or b.data)

    def einsum(self, equation: str, *operands: Any) -> Flow:
        raise NoPathSum(f"{self.where()}: p = inf is not available for einsum; use a linear layer")


def _largest_products(x: Tensor, weight: Tensor, entries: int = 2**22) -> Tensor:
    """Find the maximum over i of x[..., i] * weight[o, i], in blocks of bounded memory."""
    rows = x.reshape(-1, x.shape[-1])
    size = max(1, entries // max(1, weight.numel()))
    blocks = [(part[:, None] * weight).amax(2) for part in rows.split(size)]
    return torch.cat(blocks).view(*x.shape[:-1], len(weight))


def _conv_padding(padding: Any, kernel: Sequence[int], dilation: Sequence[int]) -> list[int]:
    amounts: list[int] = []
    for axis in range(len(kernel) - 1, -1, -1):
        if padding == "same":
            total = dilation[axis] * (kernel[axis] - 1)
            amounts += [total // 2, total - total // 2]
        else:
            edge = 0 if padding == "valid" else _tuple(padding, len(kernel))[axis]
            amounts += [edge, edge]
    return amounts


def _tuple(value: Any, length: int) -> tuple[Any, ...]:
    if isinstance(value, tuple | list):
        return tuple(value) if len(value) == length else tuple(value) * length
    return (value,) * length


def _spatial(operation: str) -> int:
    return int(next(character for character in operation if character.isdigit()))


def _refs(tree: Any) -> list[Ref]:
    return [leaf for leaf in leaves(tree) if isinstance(leaf, Ref)]


_READING = frozenset("linear conv1d conv2d conv3d".split())

# After these a value may have become much larger or smaller.
_GROWING = frozenset(
    """
    linear conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d matmul mm bmm mv
    einsum addmm mul multiply div divide batch_norm sum mean embedding
    """.split()
)

_RULES: dict[str, str] = {}
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
    _RULES |= dict.fromkeys(_names.split(), _rule)
