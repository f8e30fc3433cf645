r"""Powers :math:`|w|^p` of weights, in pieces that fit the cache.

Full-size temporaries cost more than the arithmetic, so powers of large tensors are written into a
scratch buffer that all weights share, some rows at a time, and made anew when they are needed
again.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

PIECE = 2**19  # bytes per thread: a quarter of a common second-level cache


def power(tensor: Tensor, p: float) -> Tensor:
    r""":math:`|w|^p` as a new tensor; its derivative is right at 0 too (0, for p = 1 as well)."""
    if p == 2:
        return tensor.square()
    if p == 1 or not torch.is_grad_enabled():
        return power_(tensor.abs(), p)
    result: Tensor = _Power.apply(tensor, p)
    return result


def slope_of_power(tensor: Tensor, p: float) -> Tensor:
    r"""The derivative :math:`p\,|w|^{p-1}\,\mathrm{sign}(w)`, as a new tensor; differentiable."""
    if p == 1:
        return tensor.sign()
    if p == 2:
        return 2 * tensor
    return p * power(tensor, p - 1) * tensor.sign()


class Scratch:
    """A buffer that powers are written into; what it held before is lost with the next one.

    Args:
        dtype: what to compute in.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self._memory: dict[torch.device, Tensor] = {}

    def power(self, tensor: Tensor, p: float) -> Tensor:
        r""":math:`|w|^p` in the buffer."""
        result = self.like(tensor)
        for part, source in _pieces(result, tensor):
            source = source if source.dtype == self.dtype else part.copy_(source)
            if p in (2, 4):
                power_(torch.square(source, out=part), p / 2)
            else:
                power_(torch.abs(source, out=part), p)
        return result

    def signed_power(self, tensor: Tensor, p: float) -> Tensor:
        r""":math:`|w|^p\,\mathrm{sign}(w)` in the buffer; 0 at 0."""
        result = self.like(tensor)
        for part, source in _pieces(result, tensor):
            part.copy_(source)
            if p == 0:
                part.sign_()
            elif p != 1:
                power_(part.abs_(), p).copysign_(source)
        return result

    def like(self, tensor: Tensor) -> Tensor:
        """The buffer in the shape of a tensor."""
        return self.memory(tensor.numel(), tensor.device).view(tensor.shape)

    def memory(self, size: int, device: torch.device) -> Tensor:
        """The buffer, as large as is asked for."""
        memory = self._memory.get(device)
        if memory is None or len(memory) < size:
            memory = self._memory[device] = torch.empty(size, dtype=self.dtype, device=device)
        return memory[:size]


def add_power_slopes_(
    gradient: Tensor, weight: Tensor, factors: Sequence[Tensor], scale: float, p: float
) -> None:
    r"""Add ``scale`` times :math:`|w|^{p-1}\,\mathrm{sign}(w)` times all factors to a gradient.

    Some rows at a time, so that no temporary is larger.

    Args:
        gradient: what is added to.
        weight: the weights w, of the same shape.
        factors: one or two tensors that broadcast against them.
        scale: a number.
        p: the exponent.
    """
    if not weight.dim():
        gradient, weight, factors = gradient.view(1), weight.view(1), [f.view(1) for f in factors]
    scratch, product = Scratch(factors[0].dtype), Scratch(factors[0].dtype)
    is_moderate = 1e-15 < scale < 1e15 or (scale < math.inf and gradient.dtype == torch.float64)
    for some in rows(weight):
        part = weight[some]
        base = part if p == 2 else scratch.signed_power(part, p - 1)
        factor, *others = (f if len(f) == 1 else f[some] for f in factors)
        if others:  # written down on its own, so that weight and gradient are read together
            factor = torch.mul(factor, others[0], out=product.like(part))
        if is_moderate:
            gradient[some].addcmul_(base, factor, value=scale)
        else:
            wide = base.double() * factor
            gradient[some] += torch.where(wide == 0, 0.0, wide * scale).to(gradient)


def rows(matrix: Tensor, dtype: torch.dtype | None = None, pieces: int = 1) -> Iterator[slice]:
    """Cut the rows of a tensor, so that each part fits the cache.

    Args:
        matrix: the tensor.
        dtype: what the parts are written down in; by default that of the tensor.
        pieces: how many times as much, where an operation needs that to be fast.
    """
    columns = max(1, matrix.numel() // max(1, len(matrix)))
    step = max(1, pieces * scalars(dtype or matrix.dtype) // columns)
    if matrix.device.type == "cuda":
        step = max(1, len(matrix))
    for start in range(0, len(matrix), step):
        yield slice(start, min(start + step, len(matrix)))


def scalars(dtype: torch.dtype) -> int:
    """How many scalars a piece has."""
    return PIECE * torch.get_num_threads() // dtype.itemsize


def power_(x: Tensor, p: float) -> Tensor:
    """Raise numbers that are not negative, in place, by products and roots where these suffice."""
    whole, half = int(p), p - int(p) == 0.5
    if (not half and p != whole) or whole > 4:
        return x.pow_(p)
    root = x.sqrt() if half and whole else None
    if whole == 0:
        return x.sqrt_() if half else x.fill_(1.0)
    if whole == 3:
        x.pow_(3)
    else:
        for _ in range(whole // 2):
            x.square_()
    return x if root is None else x.mul_(root)


def _pieces(result: Tensor, source: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Matching pieces of a contiguous tensor and one of the same shape."""
    size = scalars(result.dtype)
    if result.numel() <= size or not source.is_contiguous() or result.device.type != "cpu":
        yield result, source
        return
    yield from zip(result.view(-1).split(size), source.view(-1).split(size), strict=True)


class _Power(torch.autograd.Function):
    """The power with a derivative that is finite at 0."""

    generate_vmap_rule = True

    @staticmethod
    def forward(tensor: Tensor, p: float) -> Tensor:
        return power_(tensor.abs(), p)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, float], output: Tensor) -> None:
        tensor, ctx.p = inputs
        ctx.save_for_backward(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (tensor,) = ctx.saved_tensors
        return gradient * slope_of_power(tensor, ctx.p), None
