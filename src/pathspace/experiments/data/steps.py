"""Preprocessing of images as named steps from one data set to another.

Compose them with :meth:`Dataset.apply`, or name them in a configuration, see :func:`parse_steps`.
Statistics come from the training split alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pathspace.experiments.data.dataset import Dataset
from pathspace.experiments.data.errors import DataError

CHUNK = 256  # images computed with at a time: little memory, and that in the cache


@dataclass(frozen=True)
class Step:
    """A transformation of data sets and its name, as :func:`parse_steps` reads it."""

    name: str
    transform: Callable[[Dataset], Dataset]

    def __call__(self, dataset: Dataset) -> Dataset:
        """The data set after the step, which is added to its ``steps``."""
        return replace(self.transform(dataset), steps=(*dataset.steps, self.name))


def unit_interval() -> Step:
    """Scale the inputs to [0, 1]: divide by the largest value they can have.

    Example:
        >>> from pathspace.experiments import data
        >>> data.load("digits").apply(unit_interval()).train.inputs.max()
        tensor(1.)
    """

    def transform(dataset: Dataset) -> Dataset:
        maximum = dataset.maximum
        if maximum is None:
            raise DataError("unit_interval cannot follow standardize: choose one of them")
        return dataset.map_inputs(lambda inputs: _floats(inputs).div_(maximum), maximum=1)

    return Step("unit_interval", transform)


def standardize() -> Step:
    """Give each channel mean 0 and standard deviation 1 over the pixels of the training split.

    Example:
        >>> from pathspace.experiments import data
        >>> inputs = data.load("digits").apply(standardize()).train.inputs
        >>> bool(inputs.mean().abs() < 1e-5), round(inputs.std().item(), 3)
        (True, 1.0)
    """

    def transform(dataset: Dataset) -> Dataset:
        _require_images(dataset, "standardize")
        mean, deviation = channel_statistics(dataset.train.inputs)
        if (deviation == 0).any():
            raise DataError(f"{dataset.name}: a channel is constant, it cannot be standardised")
        shift, scale = (x.float().view(-1, 1, 1) for x in (mean, deviation))
        return dataset.map_inputs(
            lambda inputs: _floats(inputs).sub_(shift).div_(scale), maximum=None
        )

    return Step("standardize", transform)


def downsample(side: int) -> Step:
    """Shrink images to side × side pixels, each the mean over its share of the area.

    With the overlaps of the ``side`` equal intervals with the pixels as the rows of P, and X an
    image, this is P X Pᵀ: the mean of the image is kept, and where the sizes divide, it is average
    pooling. Side 10 gives the 100 pixels of 001, Fig. 1, which does not say how they are computed.

    Example:
        >>> from pathspace.experiments import data
        >>> data.load("digits").apply(downsample(5)).shape
        (1, 5, 5)
    """
    return Step(f"downsample:{side}", lambda dataset: _resized(dataset, "downsample", side))


def average_pool(side: int) -> Step:
    """Shrink images to side × side by average pooling, where the sizes divide (003, Sec. 5.2: 7).

    Example:
        >>> from pathspace.experiments import data
        >>> data.load("digits").apply(average_pool(4)).shape
        (1, 4, 4)
    """

    def transform(dataset: Dataset) -> Dataset:
        _require_images(dataset, "average_pool")
        if side < 1 or any(size % side for size in dataset.shape[1:]):
            height, width = dataset.shape[1:]
            raise DataError(
                f"average_pool:{side} does not divide {height}×{width}; downsample:{side} can"
            )
        return _resized(dataset, "average_pool", side)

    return Step(f"average_pool:{side}", transform)


def flatten() -> Step:
    """Make each input a vector.

    Example:
        >>> from pathspace.experiments import data
        >>> data.load("digits").apply(flatten()).shape
        (64,)
    """
    return Step(
        "flatten",
        lambda dataset: dataset.map_inputs(lambda x: x.flatten(1), maximum=dataset.maximum),
    )


def channel_statistics(images: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of each channel, in float64.

    Example:
        >>> channel_statistics(torch.tensor([0, 2, 4, 6], dtype=torch.uint8).view(2, 2, 1, 1))
        (tensor([2., 4.], dtype=torch.float64), tensor([2., 2.], dtype=torch.float64))
    """
    count = images.numel() // images.shape[1]
    parts = images.flatten(2).split(CHUNK)
    mean = torch.stack([part.double().sum(2).sum(0) for part in parts]).sum(0) / count
    centre = mean[:, None]
    squares = [(part.double() - centre).square_().sum(2).sum(0) for part in parts]
    return mean, (torch.stack(squares).sum(0) / count).sqrt()


def _resized(dataset: Dataset, step: str, side: int) -> Dataset:
    _require_images(dataset, step)
    height, width = dataset.shape[1:]
    if not 1 <= side <= min(height, width):
        raise DataError(f"{step}:{side} must be from 1 to {min(height, width)}, the size there is")
    device = dataset.train.inputs.device
    rows, columns = (_shares(size, side).to(device) for size in (height, width))

    def resize(images: Tensor) -> Tensor:
        return torch.cat([rows @ part.float() @ columns.T for part in images.split(CHUNK)])

    return dataset.map_inputs(resize, maximum=dataset.maximum)


def _shares(size: int, side: int) -> Tensor:
    """The overlap of each of ``side`` equal intervals with each pixel; rows add up to one."""
    edges = torch.arange(side + 1, dtype=torch.float64) * size / side
    pixels = torch.arange(size, dtype=torch.float64)
    ends = torch.minimum(edges[1:, None], pixels + 1)
    starts = torch.maximum(edges[:-1, None], pixels)
    return ((ends - starts).clamp(min=0) * side / size).float()  # (side, size)


def _floats(inputs: Tensor) -> Tensor:
    """A copy in float32, free to be changed."""
    return inputs.to(torch.float32, copy=True)


def _require_images(dataset: Dataset, step: str) -> None:
    if len(dataset.shape) != 3:
        raise DataError(
            f"{step} works on images, but inputs have shape {dataset.shape}; put it before flatten"
        )
