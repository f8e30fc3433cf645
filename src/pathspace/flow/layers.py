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
        result: Tensor = _Layer.apply(x, weight, token, self)  # type: ignore[no-untyped-call]
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
        result = torch.empty_like(weight)
        for some in rows(weight):
            derivative = self.scratch.slope_of_power(weight[some], self.p)
            for factor in factors:
                derivative.mul_(factor if len(factor) == 1 else factor[some])
            result[some] = derivative
        return result

    def raised(self, weight: Tensor) -> Tensor:
        """The power of a weight; where a second derivative may be wanted, a tensor of its own."""
        if torch.is_grad_enabled():
            return power(weight.to(self.scratch.dtype), self.p)
        return self.scratch.power(weight, self.p)


@dataclass(frozen=True)
class Convolution(Linear):
    """The same for a convolution.

    Attributes:
        options: stride, padding, dilation, transposed, output padding and groups, as
            :func:`torch.convolution` takes them.
    """

    options: tuple[Any, ...] = ()

    def forward(self, x: Tensor, weight: Tensor) -> Tensor:
        """The convolution."""
        return torch.convolution(x, self.raised(weight), None, *self.options)

    def backward(
        self, gradient: Tensor, x: Tensor, weight: Tensor, wanted: tuple[bool, bool]
    ) -> tuple[Tensor | None, Factors]:
        """The derivatives with respect to x and to the power of the weight, as far as wanted."""
        to_x, to_power, _ = torch.ops.aten.convolution_backward(
            gradient, x, self.raised(weight), None, *self.options, (*wanted, False)
        )
        return to_x, (to_power,) if wanted[1] else ()


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
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        (x, weight), layer = ctx.saved_tensors, ctx.layer
        wanted = ctx.needs_input_grad[0], ctx.needs_input_grad[1] or layer.sink is not None
        to_x, factors = layer.backward(gradient, x, weight, wanted)
        if layer.sink is not None:
            layer.sink(tuple(factor.detach() for factor in factors))
        to_weight = layer.to_weight(factors, weight) if ctx.needs_input_grad[1] else None
        return to_x, to_weight, None, None
