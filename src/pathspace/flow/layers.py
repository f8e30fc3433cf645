r"""Linear maps and convolutions with :math:`|w|^p` in place of the weight w.

The powers are written into a scratch buffer and made anew for the backward pass. There the
derivative with respect to :math:`|w|^p` is either turned into one with respect to w, as autograd
wants it, or handed over as it is (it tells more where w = 0): for a linear map of one sample in two
factors, without their product being written down.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pathspace.flow.powers import SIZE, Scratch, power, rows, slope_of_power

LARGE = 4 * SIZE  # scalars of a kernel that is read in pieces
Factors = tuple[Tensor, ...]  # tensors that broadcast against a weight, to be multiplied


@dataclass(frozen=True)
class Linear:
    """x ↦ x Wᵀ along the last axis, with :math:`|w|^p`.

    Attributes:
        p: the exponent.
        scratch: where powers are written.
        sink: takes the derivative with respect to :math:`|w|^p`, if autograd does not.
    """

    p: float
    scratch: Scratch
    sink: Callable[[Factors], None] | None = None

    def __call__(self, x: Tensor, weight: Tensor, token: Tensor | None = None) -> Tensor:
        """Apply it; ``token`` is a tensor that requires a gradient, so that the sink is served."""
        result: Tensor = _Layer.apply(x, weight, token, self)
        return result

    def forward(self, x: Tensor, weight: Tensor) -> Tensor:
        """The product, some rows of the weight at a time."""
        if weight.numel() <= SIZE:
            return F.linear(x, self.raised(weight))
        flat = x.reshape(-1, x.shape[-1])
        result = flat.new_empty(len(flat), len(weight))
        for some in rows(weight):
            part = self.raised(weight[some])
            if len(flat) == 1:
                torch.mv(part, flat[0], out=result[0, some])
            else:
                result[:, some] = flat @ part.T
        return result.view(*x.shape[:-1], len(weight))

    def backward(
        self, gradient: Tensor, x: Tensor, weight: Tensor, wanted: tuple[bool, bool]
    ) -> tuple[Tensor | None, Factors]:
        """The derivatives with respect to x and to the power of the weight, as far as wanted."""
        to_x = self.to_input(gradient, weight) if wanted[0] else None
        if not wanted[1]:
            return to_x, ()
        flat, inputs = (t.reshape(-1, t.shape[-1]) for t in (gradient, x))
        return to_x, (flat.T, inputs) if len(flat) == 1 else (flat.T @ inputs,)

    def to_input(self, gradient: Tensor, weight: Tensor) -> Tensor:
        """The derivative with respect to x, some rows of the weight at a time."""
        if torch.is_grad_enabled() or weight.numel() <= SIZE:
            return gradient @ self.raised(weight)
        flat = gradient.reshape(-1, gradient.shape[-1])
        result = flat.new_zeros(len(flat), weight.shape[1])
        for some in rows(weight):
            part = self.raised(weight[some])
            if len(flat) == 1:
                result[0].addmv_(part.T, flat[0, some])
            else:
                result.addmm_(flat[:, some], part)
        return result.view(*gradient.shape[:-1], weight.shape[1])

    def to_weight(self, factors: Factors, weight: Tensor) -> Tensor:
        """The derivative with respect to w from that with respect to its power."""
        if torch.is_grad_enabled():  # a second derivative may be wanted
            return math.prod(factors, start=slope_of_power(weight, self.p))
        first, *others = factors
        in_place = not others and first.dtype == weight.dtype
        result = first if in_place else torch.empty_like(weight)
        for some in rows(weight):
            part = self.scratch.signed_power(weight[some], self.p - 1).mul_(self.p)
            for factor in others:
                part.mul_(factor if len(factor) == 1 else factor[some])
            torch.mul(part, first[some], out=result[some])
        return result

    def raised(self, weight: Tensor) -> Tensor:
        """The power of a weight; where a second derivative may be wanted, a tensor of its own."""
        if torch.is_grad_enabled():
            return power(weight.to(self.scratch.dtype), self.p)
        return self.scratch.power(weight, self.p)


@dataclass(frozen=True)
class Convolution(Linear):
    """The same for a convolution.

    For one sample in the plane the windows are written down as the columns of a matrix, so that
    rows of the weight can be read in pieces here too.

    Attributes:
        options: stride, padding, dilation, transposed, output padding and groups, as
            :func:`torch.convolution` takes them.
    """

    options: tuple[Any, ...] = ()

    def forward(self, x: Tensor, weight: Tensor) -> Tensor:
        """The convolution."""
        windows = self.windows(x, weight)
        if windows is None:
            return torch.convolution(x, self.raised(weight), None, *self.options)
        columns, matrix = windows.columns(x), weight.flatten(1)
        result = x.new_empty(len(matrix), columns.shape[1])
        for some in rows(matrix):
            torch.mm(self.raised(matrix[some]), columns, out=result[some])
        return result.view(1, len(matrix), *windows.places)

    def backward(
        self, gradient: Tensor, x: Tensor, weight: Tensor, wanted: tuple[bool, bool]
    ) -> tuple[Tensor | None, Factors]:
        """The derivatives with respect to x and to the power of the weight, as far as wanted."""
        windows = None if torch.is_grad_enabled() else self.windows(x, weight)
        if windows is None:
            to_x, to_power, _ = torch.ops.aten.convolution_backward(
                gradient, x, self.raised(weight), None, *self.options, (*wanted, False)
            )
            return to_x, (to_power,) if wanted[1] else ()
        flat, matrix = gradient.reshape(len(weight), -1), weight.flatten(1)
        to_columns = flat.new_zeros(matrix.shape[1], flat.shape[1]) if wanted[0] else None
        if to_columns is not None:
            for some in rows(matrix):
                to_columns.addmm_(self.raised(matrix[some]).T, flat[some])
        to_power = (flat @ windows.columns(x).T).view(weight.shape) if wanted[1] else None
        return (
            None if to_columns is None else windows.image(to_columns),
            () if to_power is None else (to_power,),
        )

    def windows(self, x: Tensor, weight: Tensor) -> Windows | None:
        """The windows of a convolution in the plane, where writing them down pays; or ``None``."""
        stride, padding, dilation, transposed, _, groups = self.options
        if transposed or groups > 1 or len(x) > 1 or weight.dim() != 4:
            return None
        found = Windows(tuple(x.shape), tuple(weight.shape[2:]), stride, padding, dilation)
        return found if found.single or weight.numel() > LARGE else None


@dataclass(frozen=True)
class Windows:
    """The windows of an image that a kernel sees, as the columns of a matrix."""

    shape: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]

    @property
    def places(self) -> list[int]:
        """How many there are along both axes."""
        axes = zip(
            self.shape[2:], self.kernel, self.stride, self.padding, self.dilation, strict=True
        )
        return [(n + 2 * pad - gap * (k - 1) - 1) // step + 1 for n, k, step, pad, gap in axes]

    @property
    def single(self) -> bool:
        """Whether every window is one pixel."""
        return self.kernel == (1, 1) and not any(self.padding)

    def columns(self, x: Tensor) -> Tensor:
        """(channels · kernel, places) the windows; a view of the image where that is possible."""
        if self.single:
            return x[0, :, :: self.stride[0], :: self.stride[1]].reshape(self.shape[1], -1)
        return F.unfold(x, self.kernel, self.dilation, self.padding, self.stride)[0]

    def image(self, columns: Tensor) -> Tensor:
        """The sums over all windows at every pixel: the transpose of :meth:`columns`."""
        if not self.single:
            options = self.kernel, self.dilation, self.padding, self.stride
            return F.fold(columns[None], self.shape[2:], *options)
        if self.stride == (1, 1):
            return columns.view(self.shape)
        image = columns.new_zeros(self.shape)
        image[0, :, :: self.stride[0], :: self.stride[1]] = columns.view(-1, *self.places)
        return image


class _Layer(torch.autograd.Function):
    """A layer on its weight's power, which is made anew for the backward pass."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, token: Tensor | None, layer: Linear) -> Tensor:
        return layer.forward(x, weight)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, weight, _, ctx.layer = inputs
        ctx.save_for_backward(x, weight)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        (x, weight), layer = ctx.saved_tensors, ctx.layer
        wanted = ctx.needs_input_grad[0], ctx.needs_input_grad[1] or layer.sink is not None
        to_x, factors = layer.backward(gradient, x, weight, wanted)
        if layer.sink is not None:
            layer.sink(tuple(factor.detach() for factor in factors))
        to_weight = layer.to_weight(factors, weight) if ctx.needs_input_grad[1] else None
        return to_x, to_weight, None, None
