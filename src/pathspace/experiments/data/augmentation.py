"""Random changes of training images, for a whole batch at once."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Generator, Tensor
from torch.nn import functional

from pathspace.experiments.data.errors import DataError


def crop_and_flip(padding: int = 4) -> Callable[[Tensor, Generator], Tensor]:
    """Pad with zeros, cut out the original size at a random place, mirror every other image.

    Each image has its own place and its own coin. All crops are views of the padded batch, and one
    indexing operation picks the one of each image. Zero is black for raw images and the mean colour
    for standardised ones, as is usual for CIFAR.

    Args:
        padding: pixels on each side.

    Returns:
        A function of (batch, generator), see :meth:`Split.batches`.

    Example:
        >>> images = torch.ones(2, 3, 32, 32)
        >>> crop_and_flip()(images, torch.Generator().manual_seed(0)).shape
        torch.Size([2, 3, 32, 32])
    """
    if padding < 0:
        raise DataError(f"crop_and_flip: {padding} pixels of padding, but it cannot be negative")

    def augment(batch: Tensor, generator: Generator) -> Tensor:
        if batch.dim() != 4:
            raise DataError(
                f"crop_and_flip works on images, not on a batch of shape {tuple(batch.shape)}"
            )
        count, _, height, width = batch.shape
        device = generator.device
        places = torch.randint(2 * padding + 1, (2, count), generator=generator, device=device)
        mirrored = torch.randint(2, (count, 1, 1, 1), generator=generator, device=device)
        top, left = places.to(batch.device)
        padded = functional.pad(batch, (padding,) * 4)
        crops = padded.unfold(2, height, 1).unfold(3, width, 1)  # (N, C, top, left, H, W)
        images = crops[torch.arange(count, device=batch.device), :, top, left]
        return torch.where(mirrored.to(batch.device, torch.bool), images.flip(-1), images)

    return augment
