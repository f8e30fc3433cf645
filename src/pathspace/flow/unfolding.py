"""A convolution in the plane as a product of matrices: the windows of an image, written down."""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor


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
