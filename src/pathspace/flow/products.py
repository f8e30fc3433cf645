"""Convolutions of one image with powers of their weights, in C: see ``products.c``.

They are the products of matrices that :mod:`pathspace.flow.unfolding` writes down for torch. Here
weights are raised on the way, so that no power of them is written to memory, and a small image
costs little more than reading them.
"""

from __future__ import annotations

import ctypes
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from pathspace import native
from pathspace.flow.powers import Scratch
from pathspace.flow.raising import Raising, Slope
from pathspace.flow.unfolding import Windows
from pathspace.flow.values import exp

WINDOWS = 2**18  # scalars of all windows; more do not stay in a common second-level cache


class _Fields(ctypes.Structure):
    _fields_ = (
        ("weight", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("out", "channels", "height", "width")),
        *((name, ctypes.c_int64) for name in ("high", "wide", "down", "across")),
        *((name, ctypes.c_int64 * 2) for name in ("stride", "padding", "dilation")),
        ("power", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("image", "gradient", "result", "to_image")),
        *((name, ctypes.c_void_p) for name in ("to_power", "room")),
        *((name, ctypes.c_double) for name in ("exponent", "scale", "total", "largest")),
        *((name, ctypes.c_void_p) for name in ("powers", "step")),
    )


class Products:
    """The products of one convolution.

    Args:
        windows: the windows of the image.
        x: (1, in, height, width) the image.
        weight: (out, in, high, wide).
        p: the exponent of the weight.
        scratch: memory.
    """

    def __init__(
        self, windows: Windows, x: Tensor, weight: Tensor, p: float, scratch: Scratch
    ) -> None:
        self.x, self.weight, self.scratch = x.contiguous(), weight, scratch
        self.shape = (1, len(weight), *windows.places)
        self.fields = _Fields(weight=weight.data_ptr(), power=int(p), image=self.x.data_ptr())
        self.fields.out, self.fields.channels, self.fields.high, self.fields.wide = weight.shape
        self.fields.height, self.fields.width = x.shape[2:]
        self.fields.down, self.fields.across = windows.places
        for name in ("stride", "padding", "dilation"):
            setattr(self.fields, name, (ctypes.c_int64 * 2)(*getattr(windows, name)))

    @classmethod
    def of(
        cls, windows: Windows, x: Tensor, weight: Tensor, p: float, scratch: Scratch
    ) -> Products | None:
        """The same where C is there for it and faster than torch, else ``None``."""
        down, across = windows.places
        if p not in native.POWERS or weight[0].numel() * down * across > WINDOWS:
            return None
        if torch.is_grad_enabled() or not scratch.dtype == weight.dtype == x.dtype:
            return None
        return cls(windows, x, weight, p, scratch) if native.fits(weight) else None

    def forward(self) -> Tensor:
        """The convolution."""
        result = self.x.new_empty(self.shape)
        self._run(result=result)
        return result

    def backward(
        self,
        gradient: Tensor,
        wanted: tuple[bool, bool],
        room: Tensor | None = None,
        raising: Raising | None = None,
    ) -> tuple[Tensor | None, Slope]:
        """The derivatives with respect to x and to the power of the weight, as far as wanted.

        Args:
            gradient: with respect to the result.
            wanted: which of them.
            room: memory for the second one, in the shape of the weight.
            raising: what power of the second one is wanted.
        """
        to_x = torch.empty_like(self.x) if wanted[0] else None
        to_power = None
        if wanted[1]:
            to_power = torch.empty_like(self.weight) if room is None else room
        self._raise(raising)
        self._run(gradient=gradient.contiguous(), to_image=to_x, to_power=to_power)
        if to_power is None:
            return to_x, Slope(())
        if raising is None:
            return to_x, Slope((to_power,))
        return to_x, raising.done(to_power, self.fields.total, self.fields.largest)

    def later(self, gradient: Tensor, raising: Raising | None) -> Slope | None:
        """The second one, raised, to be found when it is needed, where that takes less memory.

        And if it is known before that the powers are not too large. What is raised are sums of
        products of entries of two tensors that are not negative; so they are 0, or at least the
        product of the smallest entries that are not, and at most the sum of all entries of one
        times the largest of the other.
        """
        if raising is None or not raising.most or raising.power > 0:
            return None
        if gradient.numel() + self.x.numel() > self.weight.numel():
            return None
        gradient = gradient.contiguous()
        (total, least, _), (_, smallest, largest) = map(native.extremes, (gradient, self.x))
        total *= largest * self.weight[0].numel()  # of all rows
        smallest *= least / 2  # rounded sums are smaller
        if not total < torch.finfo(self.x.dtype).max / 2 or not smallest > 0:
            return None
        largest = raising.scale * exp(raising.power * math.log(smallest))
        if not largest <= raising.most:
            return None
        later = Later(self, gradient, raising)
        return Slope((), 0.0, raising.power, largest, total, later)

    def step(self, gradient: Tensor, raising: Raising, job: ctypes.Structure) -> None:
        """Take a step of the weight, scaled by powers of the second one too."""
        self._raise(raising)
        self.fields.step = ctypes.addressof(job)
        self._run(gradient=gradient)
        self.fields.step = None

    def _raise(self, raising: Raising | None) -> None:
        if raising is not None:
            self.fields.exponent, self.fields.scale = raising.power, raising.scale

    def _run(self, **tensors: Tensor | None) -> None:
        for name in ("gradient", "result", "to_image", "to_power"):
            tensor = tensors.get(name)
            setattr(self.fields, name, None if tensor is None else tensor.data_ptr())
        job, dtype = ctypes.byref(self.fields), self.weight.dtype
        most = min(native.threads([self.weight]), torch.get_num_threads())
        size = native.function("convolution_room", dtype)(job, most)
        self.fields.room = self.scratch.memory(size, self.x.device).data_ptr()
        native.function("convolution", dtype)(job, most)


@dataclass(frozen=True)
class Later:
    """Powers of slopes that are found when they are needed.

    Attributes:
        products: their convolution.
        gradient: what comes back to it.
        raising: what power is wanted.
    """

    products: Products
    gradient: Tensor
    raising: Raising

    def write(self, room: Tensor | None = None) -> Slope:
        """Write them down, into memory of the weight's shape if that is given."""
        return self.products.backward(self.gradient, (False, True), room, self.raising)[1]

    def step(self, job: ctypes.Structure) -> None:
        """Take a step of the weight (:class:`pathspace.native.Steps`), scaled by them too."""
        self.products.step(self.gradient, self.raising, job)
