r"""Linear maps and convolutions with :math:`|w|^p` in place of the weight w.

The powers are written into a scratch buffer and made anew for the backward pass. There the
derivative with respect to :math:`|w|^p` is either turned into one with respect to w, as autograd
wants it, or handed over as it is (it tells more where w = 0): for a linear map of one sample in two
factors, without their product being written down.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pathspace import native
from pathspace.flow.powers import Scratch, power, rows, scalars, slope_of_power
from pathspace.flow.products import Products
from pathspace.flow.raising import Factors, Raising, Slope
from pathspace.flow.unfolding import Windows

LARGE = 2**20  # scalars of a kernel that is read in pieces
WRITTEN = 2**18  # the same if slopes are written into memory that is there already, or into none
PRODUCT = 4  # pieces at a time for a product of matrices, which reorders its factors each time


@dataclass
class Ahead:
    """What will come back to a linear map, known but for a factor before the map is applied.

    A path sum is linear in what leaves a layer that all paths go through, so the derivative by
    that does not depend on its value. With it a large weight is read once instead of twice.

    Attributes:
        gradient: (out,) the derivative by the result, times an unknown positive number.
        to_x: (in,) that by the argument, times the same number; found with the result.
    """

    gradient: Tensor
    to_x: Tensor | None = None

    def scaled(self, gradient: Tensor) -> Tensor | None:
        """The derivative by the argument, given the true one by the result."""
        if self.to_x is None or torch.is_grad_enabled():
            return None
        factor = gradient.sum() / self.gradient.sum()
        return (self.to_x * factor).view(*gradient.shape[:-1], -1)


@dataclass(frozen=True)
class Linear:
    """x ↦ x Wᵀ along the last axis, with :math:`|w|^p`.

    Attributes:
        p: the exponent.
        scratch: where powers are written.
        sink: takes the derivative with respect to :math:`|w|^p`, if autograd does not.
        ahead: what will come back, if that is known.
        room: memory for the derivative with respect to :math:`|w|^p`, in the shape of w.
        raising: what power of that derivative the sink takes, if not the derivative itself.
    """

    p: float
    scratch: Scratch
    sink: Callable[[Slope], None] | None = None
    ahead: Ahead | None = None
    room: Tensor | None = None
    raising: Raising | None = None

    def __call__(self, x: Tensor, weight: Tensor, token: Tensor | None = None) -> Tensor:
        """Apply it; ``token`` is a tensor that requires a gradient, so that the sink is served."""
        if not torch.is_grad_enabled():
            return self.forward(x, weight)
        is_transformed = torch._C._functorch.peek_interpreter_stack() is not None
        result: Tensor = (_Layer if is_transformed else _Direct).apply(x, weight, token, self)
        return result

    def forward(self, x: Tensor, weight: Tensor) -> Tensor:
        """The product, some rows of the weight at a time."""
        if self.is_small(weight):
            return F.linear(x, self.raised(weight))
        flat = x.reshape(-1, x.shape[-1])
        result = flat.new_empty(len(flat), len(weight))
        if len(flat) == 1:
            self.times_vector(weight, flat[0], result[0])
        else:
            for some in rows(weight, self.scratch.dtype, PRODUCT):
                result[:, some] = flat @ self.raised(weight[some]).T
        return result.view(*x.shape[:-1], len(weight))

    def times_vector(self, weight: Tensor, x: Tensor, result: Tensor) -> None:
        """The product with one sample; what comes back on the same way, if that is known."""
        ahead = self.ahead
        back = None if ahead is None else torch.zeros_like(x)
        across = None if ahead is None or back is None else (ahead.gradient, back)
        if self.sum_natively(weight, (x, result), across):
            if ahead is not None:
                ahead.to_x = back
            return
        for some in rows(weight, self.scratch.dtype):
            part = self.raised(weight[some])
            torch.mv(part, x, out=result[some])
            if ahead is not None and back is not None:
                back.addmv_(part.T, ahead.gradient[some])
        if ahead is not None:
            ahead.to_x = back

    def backward(
        self, gradient: Tensor, x: Tensor, weight: Tensor, wanted: tuple[bool, bool]
    ) -> tuple[Tensor | None, Slope]:
        """The derivatives with respect to x and to the power of the weight, as far as wanted.

        The second one may have been raised.
        """
        to_x = self.ahead.scaled(gradient) if self.ahead is not None else None
        if to_x is None and wanted[0]:
            to_x = self.to_input(gradient, weight)
        if not wanted[1]:
            return to_x, Slope(())
        flat, inputs = (t.reshape(-1, t.shape[-1]) for t in (gradient, x))
        return to_x, self.slope((flat.T, inputs) if len(flat) == 1 else (flat.T @ inputs,))

    def slope(self, factors: Factors) -> Slope:
        """The derivative with respect to the power of the weight, raised if that is wanted."""
        return Slope(factors) if self.raising is None else self.raising.of(factors)

    def to_input(self, gradient: Tensor, weight: Tensor) -> Tensor:
        """The derivative with respect to x, some rows of the weight at a time."""
        if torch.is_grad_enabled() or self.is_small(weight):
            return gradient @ self.raised(weight)
        flat = gradient.reshape(-1, gradient.shape[-1])
        result = flat.new_zeros(len(flat), weight.shape[1])
        if len(flat) == 1 and self.sum_natively(weight, across=(flat[0], result[0])):
            return result.view(*gradient.shape[:-1], weight.shape[1])
        for some in rows(weight, self.scratch.dtype, 1 if len(flat) == 1 else PRODUCT):
            part = self.raised(weight[some])
            if len(flat) == 1:
                result[0].addmv_(part.T, flat[0, some])
            else:
                result.addmm_(flat[:, some], part)
        return result.view(*gradient.shape[:-1], weight.shape[1])

    def sum_natively(
        self,
        weight: Tensor,
        along: tuple[Tensor, Tensor] | None = None,
        across: tuple[Tensor, Tensor] | None = None,
    ) -> bool:
        """Write products with vectors in one pass in C, if that is possible; whether it was.

        Args:
            weight: the matrix.
            along: a row, and where the products of the matrix with it go.
            across: a column, and where its products with the matrix go.
        """
        (row, products), (column, sums) = along or (None, None), across or (None, None)
        vectors = (row, products, column, sums)
        if self.p not in native.POWERS or weight.dtype != self.scratch.dtype:
            return False
        if torch.is_grad_enabled() or not native.fits(weight, *vectors):
            return False
        job = native.Job(
            weight, power=int(self.p), row=row, column=column, along=products, across=sums
        )
        native.sums([job])
        return True

    def to_weight(self, factors: Factors, weight: Tensor) -> Tensor:
        """The derivative with respect to w from that with respect to its power."""
        if torch.is_grad_enabled():  # a second derivative may be wanted
            return math.prod(factors, start=slope_of_power(weight, self.p))
        first, *others = factors
        in_place = not others and first.dtype == weight.dtype
        result = first if in_place else torch.empty_like(weight)
        for some in rows(weight, self.scratch.dtype):
            if self.p == 2 and in_place:  # the power is the weight itself
                result[some].mul_(weight[some]).mul_(2)
                continue
            part = self.scratch.signed_power(weight[some], self.p - 1).mul_(self.p)
            for factor in others:
                part.mul_(factor if len(factor) == 1 else factor[some])
            torch.mul(part, first[some], out=result[some])
        return result

    def is_small(self, weight: Tensor) -> bool:
        """Whether a weight is raised as a whole."""
        return weight.numel() <= scalars(self.scratch.dtype)

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
        products = Products.of(windows, x, weight, self.p, self.scratch)
        if products is not None:
            return products.forward()
        columns, matrix = windows.columns(x), weight.flatten(1)
        result = x.new_empty(len(matrix), columns.shape[1])
        for some in rows(matrix, self.scratch.dtype, PRODUCT):
            torch.mm(self.raised(matrix[some]), columns, out=result[some])
        return result.view(1, len(matrix), *windows.places)

    def backward(
        self, gradient: Tensor, x: Tensor, weight: Tensor, wanted: tuple[bool, bool]
    ) -> tuple[Tensor | None, Slope]:
        """The derivatives with respect to x and to the power of the weight, as far as wanted.

        The second one may have been raised.
        """
        windows = None if torch.is_grad_enabled() else self.windows(x, weight)
        if windows is None:
            to_x, to_power, _ = torch.ops.aten.convolution_backward(
                gradient, x, self.raised(weight), None, *self.options, (*wanted, False)
            )
            return to_x, self.slope((to_power,)) if wanted[1] else Slope(())
        products = Products.of(windows, x, weight, self.p, self.scratch)
        if products is not None:
            later = products.later(gradient, self.raising) if wanted[1] else None
            if later is None:
                return products.backward(gradient, wanted, self.room, self.raising)
            return products.backward(gradient, (True, False))[0] if wanted[0] else None, later
        flat, matrix = gradient.reshape(len(weight), -1), weight.flatten(1)
        to_columns: Tensor | None = None
        for some in rows(matrix, self.scratch.dtype, PRODUCT) if wanted[0] else ():
            pair = self.raised(matrix[some]).T, flat[some]
            to_columns = torch.mm(*pair) if to_columns is None else to_columns.addmm_(*pair)
        to_x = None if to_columns is None else windows.image(to_columns)
        if not wanted[1]:
            return to_x, Slope(())
        out = None if self.room is None else self.room.view(matrix.shape)
        to_power = torch.mm(flat, windows.columns(x).T, out=out).view(weight.shape)
        return to_x, self.slope((to_power,))

    def windows(self, x: Tensor, weight: Tensor) -> Windows | None:
        """The windows of a convolution in the plane, where writing them down pays; or ``None``."""
        stride, padding, dilation, transposed, _, groups = self.options
        if transposed or groups > 1 or len(x) > 1 or weight.dim() != 4:
            return None
        found = Windows(tuple(x.shape), tuple(weight.shape[2:]), stride, padding, dilation)
        is_new = self.room is None and (self.raising is None or not self.raising.most)
        large = LARGE if is_new else WRITTEN
        return found if found.single or weight.numel() > large else None


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
        to_x, slope = layer.backward(gradient, x, weight, wanted)
        if layer.sink is not None:
            factors = tuple(factor.detach() for factor in slope.factors)
            layer.sink(replace(slope, factors=factors))
        to_weight = layer.to_weight(slope.factors, weight) if ctx.needs_input_grad[1] else None
        return to_x, to_weight, None, None


class _Direct(_Layer):
    """The same where no transform of functions is active.

    With a context of its own, torch binds the arguments anew at every call, which takes as long as
    a layer of some thousand weights does.
    """

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, x: Tensor, weight: Tensor, token: Tensor | None, layer: Linear
    ) -> Tensor:
        _Layer.setup_context(ctx, (x, weight, token, layer), x)
        return layer.forward(x, weight)

    setup_context = torch.autograd.Function.setup_context
