"""What operations without weights do to a sum over paths, and how sums are combined."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pathspace.flow.evaluator import Evaluator
from pathspace.flow.runs import Run, aligned, whole
from pathspace.flow.values import Flow, capped_exp, common_log
from pathspace.network import Ref, StateRef
from pathspace.tracing.values import map_leaves


class Combining(Evaluator):
    """Rules of operations without weights; how values are combined, subclasses may say."""

    def plus(self, a: Tensor, b: Tensor) -> Tensor:
        """How two paths' sums are combined."""
        return a + b

    def total(self, x: Tensor, dims: Sequence[int], keepdim: bool) -> Tensor:
        """How all entries along axes are combined."""
        return x.sum(list(dims), keepdim=keepdim) if dims else x

    def aligned(self, *flows: Flow) -> tuple[list[Tensor], float, tuple[Run, ...]]:
        """Tensors of several flows with one common factor and the same runs."""
        log = common_log(flows)
        tensors, runs = aligned([f.at(log) for f in flows], [f.runs for f in flows])
        return tensors, log, runs

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
        flows = [self._constant(side) for side in (a, b)]
        if alpha != 1:
            flows[1] = flows[1].times(abs(alpha) ** self.power)
        tensors, log, runs = self.aligned(*flows)
        kept = [t for t, f in zip(tensors, flows, strict=True) if f.data or self.biases]
        if len(kept) == 2 and any(flow.data for flow in flows):
            return Flow(self.plus(*kept), log, True, runs)
        shape = torch.broadcast_shapes(*(tensor.shape for tensor in tensors))
        if not kept:
            return Flow(tensors[0].new_zeros(shape))
        return Flow(kept[0].expand(shape), log, True, runs) if len(kept) == 1 else self.refuse()

    def rsub(self, a: Any, b: Any, alpha: Any = 1) -> Flow:
        return self.add(b, a, alpha=alpha)

    def _constant(self, x: Any) -> Flow:
        if isinstance(x, Flow):
            return x
        return Flow(torch.tensor(float(abs(x)) ** self.power, dtype=self.dtype))

    def mul(self, a: Any, b: Any) -> Flow:
        flows = [self._constant(side) for side in (a, b)]
        if all(flow.data for flow in flows):
            return self.refuse()
        data = any(flow.data for flow in flows)
        (one, other), runs = aligned([f.tensor for f in flows], [f.runs for f in flows])
        return Flow(one * other, flows[0].log + flows[1].log, data, runs)

    def div(self, a: Any, b: Any, **kwargs: Any) -> Flow:
        divisor = self._constant(b)
        return self.refuse() if divisor.data else self.mul(a, divisor.map(torch.reciprocal))

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
        tensors, log, runs = self.aligned(*flows)
        dim = kwargs.get("dim", kwargs.get("axis", args[0] if args else 0))
        if "stack" in self.node.operation or not 0 <= dim < tensors[0].dim() - len(runs):
            tensors, runs = [whole(tensor, runs) for tensor in tensors], ()
        return Flow(self.node.function(tensors, *args, **kwargs), log, True, runs)

    def pad(self, x: Flow, pad: Any, mode: str = "constant", value: Any = None) -> Flow:
        fill = 0.0
        if value and self.biases:
            constant = abs(value) ** self.power
            x = x.with_room_for(x.tensor.new_tensor(constant))
            fill = constant * capped_exp(-x.log)
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
        tensors, log, _ = self.aligned(x, value)
        result = tensors[0].clone()
        result[self._raw_index(self.node.args[1])] = tensors[1]
        return Flow(result, log, True)
