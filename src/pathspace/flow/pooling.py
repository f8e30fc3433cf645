"""What pooling and resampling do to a sum over paths."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pathspace.flow.combining import Combining
from pathspace.flow.runs import Window
from pathspace.flow.values import Flow


class Pooling(Combining):
    """Rules of operations on windows; how entries of a window are combined, subclasses may say."""

    def windows(self, x: Tensor, spatial: int, kernel: Any, stride: Any, padding: Any,
                dilation: Any, ceil: bool) -> Tensor:  # fmt: skip
        """How all entries of a window are combined: an average without the division."""
        kernel, padding, dilation = (per_axis(v, spatial) for v in (kernel, padding, dilation))
        stride = per_axis(stride if stride else kernel, spatial)
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
        if any(gap > 1 for gap in dilation):  # a convolution with ones
            ones = x.new_ones(channels, 1, *kernel)
            convolve = getattr(F, f"conv{spatial}d")
            pooled: Tensor = convolve(padded, ones, None, stride, 0, dilation, channels)
        elif spatial == 1:
            flat = F.avg_pool2d(
                padded[..., None, :], (1, *kernel), (1, *stride), divisor_override=1
            )
            pooled = flat[..., 0, :]
        else:
            average = getattr(F, f"avg_pool{spatial}d")
            pooled = average(padded, kernel, stride, divisor_override=1)
        crop: tuple[Any, ...] = (..., *(slice(0, n) for n in size))
        return pooled[crop]

    def matrix(self, x: Tensor, weight: Tensor) -> Tensor:
        """Compute x Wᵀ along the last axis."""
        return F.linear(x, weight)

    # Rules -------------------------------------------------------------------------------------

    def max_pool(self, x: Flow, kernel: Any = None, stride: Any = None, padding: Any = 0,
                 dilation: Any = 1, ceil_mode: bool = False, return_indices: bool = False,
                 **kw: Any) -> Any:  # fmt: skip
        spatial = _spatial(self.node.operation)
        kernel = kw.get("kernel_size", kernel)
        result = x.through(
            windows(spatial, kernel, stride or kernel, padding, dilation),
            lambda t: self.windows(t, spatial, kernel, stride, padding, dilation, ceil_mode),
        )
        if not return_indices and not self.node.operation.endswith("indices"):
            return result
        return [result, replace(result, tensor=torch.zeros_like(result.tensor), data=False)]

    def avg_pool(self, x: Flow, kernel: Any = None, stride: Any = None, padding: Any = 0,
                 ceil_mode: bool = False, *args: Any, **kw: Any) -> Flow:  # fmt: skip
        """Each entry of a window has the weight 1/divisor, which may differ between windows."""
        spatial = _spatial(self.node.operation)
        kernel = kw.get("kernel_size", kernel)
        window = (spatial, kernel, stride, padding, 1, ceil_mode)
        options = {k: v for k, v in self.node.kwargs.items() if k != "input"}

        def pooled(t: Tensor) -> Tensor:
            like = t.new_ones(1, 1, *t.shape[-spatial:])
            mean = self.node.function(like, *self.node.args[1:], **options)
            divisor = Pooling.windows(self, like, *window) / mean
            weight = (divisor**-self.power).reshape(mean.shape[-spatial:])
            return self.windows(t, *window) * weight

        return x.through(windows(spatial, kernel, stride or kernel, padding, 1), pooled)

    def adaptive_pool(self, x: Flow, output_size: Any, *args: Any, **kwargs: Any) -> Any:
        """Windows of unequal size: one axis after the other."""
        spatial = _spatial(self.node.operation)
        sizes = per_axis(output_size, spatial)
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
        given = dict(zip(["size", "scale_factor", "mode", "align_corners"], args, strict=False))
        given |= kwargs
        result, axes = x.tensor, x.tensor.dim() - 2
        for axis, length in enumerate(x.tensor.shape[2:]):
            shape, other = [1] * axes, [2] * axes  # torch's antialias misreads axes of length 1
            shape[axis] = other[axis] = length
            eye = torch.eye(length, dtype=self.dtype).view(length, 1, *shape)
            eye = eye.expand(length, 1, *other).contiguous()
            alone = dict(given)
            for key in ("size", "scale_factor"):  # a factor need not be the ratio of the lengths
                if given.get(key) is not None:
                    numbers = [2 if key == "size" else 1] * axes
                    numbers[axis] = per_axis(given[key], axes)[axis]
                    alone[key] = numbers
            matrix = F.interpolate(eye, **alone).movedim(axis + 2, 1).flatten(2)[..., 0]
            result = self.matrix(result.movedim(axis + 2, -1), self.raised(matrix).T)
            result = result.movedim(-1, axis + 2)
        return Flow(result, x.log, x.data)


def per_axis(value: Any, length: int) -> tuple[Any, ...]:
    """One number for every axis."""
    if isinstance(value, tuple | list):
        return tuple(value) if len(value) == length else tuple(value) * length
    return (value,) * length


def windows(spatial: int, kernel: Any, stride: Any, padding: Any, dilation: Any) -> list[Window]:
    """The windows along each axis, from the arguments of a pool or a convolution."""
    options = (per_axis(value, spatial) for value in (kernel, stride, padding, dilation))
    return [
        Window(gap * (size - 1) + 1, step, before)
        for size, step, before, gap in zip(*options, strict=True)
    ]


def _spatial(operation: str) -> int:
    return int(next(character for character in operation if character.isdigit()))
