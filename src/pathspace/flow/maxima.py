"""The largest path in place of the sum, for p = ∞."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pathspace.flow.pooling import per_axis, windows
from pathspace.flow.sums import Sums, conv_padding
from pathspace.flow.values import Flow, NoPathSum


class Maxima(Sums):
    """The same for p = ∞: the largest path in place of the sum."""

    LAYERS = frozenset()

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

    def conv(self, x: Flow, weight: Any, bias: Flow | None = None, *args: Any, **kw: Any) -> Flow:
        """The largest product over channels and kernel places: maxima over shifted inputs."""
        if weight.data:
            return self.refuse()
        if "transpose" in self.node.operation:
            raise NoPathSum(f"{self.where()}: p = inf is not available for transposed convolutions")
        spatial = weight.tensor.dim() - 2
        given = dict(zip(["stride", "padding", "dilation", "groups"], args, strict=False)) | kw
        kernel = tuple(weight.tensor.shape[2:])
        stride = per_axis(given.get("stride", 1), spatial)
        dilation = per_axis(given.get("dilation", 1), spatial)
        amounts = conv_padding(given.get("padding", 0), kernel, dilation)
        shape = windows(spatial, kernel, stride, tuple(amounts[-2::-2]), dilation)

        def convolved(tensor: Tensor) -> Tensor:
            padded = F.pad(tensor, amounts)
            return _largest_windows(padded, weight.tensor, stride, dilation, given.get("groups", 1))

        result = x.through(shape, convolved)
        return self.with_bias(replace(result, log=x.log + weight.log), bias, spatial)

    def matmul(self, a: Flow, b: Flow) -> Flow:
        if (a.data and b.data) or b.tensor.dim() > 2 or self.node.operation == "rmatmul":
            return self.refuse()
        right = b.tensor[:, None] if b.tensor.dim() == 1 else b.tensor
        product = _largest_products(a.tensor, right.T)
        product = product.squeeze(-1) if b.tensor.dim() == 1 else product
        return Flow(product, a.log + b.log, a.data or b.data)

    def einsum(self, equation: str, *operands: Any) -> Flow:
        raise NoPathSum(f"{self.where()}: p = inf is not available for einsum; use a linear layer")


def _largest_windows(
    x: Tensor, weight: Tensor, stride: Sequence[int], dilation: Sequence[int], groups: int
) -> Tensor:
    """A convolution with the largest product in place of the sum, of images padded already."""
    spatial, kernel = weight.dim() - 2, weight.shape[2:]
    batch, channels = x.shape[:2]
    axes = zip(x.shape[2:], kernel, stride, dilation, strict=True)
    shape = [(length - gap * (k - 1) - 1) // step + 1 for length, k, step, gap in axes]
    grouped = weight.view(groups, -1, channels // groups, *kernel)
    best: Tensor | None = None
    for place in torch.cartesian_prod(*map(torch.arange, kernel)).view(-1, spatial).tolist():
        window = x
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
    return best.transpose(2, 3).reshape(batch, -1, *shape)


def _largest_products(x: Tensor, weight: Tensor, entries: int = 2**18) -> Tensor:
    """Find the maximum over i of x[..., i] * weight[o, i], in blocks of bounded memory."""
    rows = x.reshape(-1, x.shape[-1])
    size = max(1, entries // max(1, weight.numel()))
    blocks = [(part[:, None] * weight).amax(2) for part in rows.split(size)]
    return torch.cat(blocks).view(*x.shape[:-1], len(weight))
