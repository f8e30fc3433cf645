"""Images in the shape that a model takes: preprocessing that one need not spell out."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pathspace.experiments.data import (
    DataError,
    Dataset,
    Step,
    downsample,
    flatten,
    parse_steps,
    unit_interval,
)


def fit_data(dataset: Dataset, shape: Sequence[int], steps: str | None = None) -> Dataset:
    """Bring a data set's inputs to the shape of a model's input.

    Without ``steps``, pixels are scaled to [0, 1], images that are larger than the model's are
    shrunk, and they become vectors if the model takes vectors.

    Args:
        dataset: images as they come from the file.
        shape: of one input of the model, without the batch axis.
        steps: the preprocessing to use instead, as :func:`pathspace.experiments.data.parse_steps`
            reads it.

    Raises:
        DataError: the shapes cannot be brought together; the message names both.

    Example:
        >>> from pathspace.experiments import data
        >>> fit_data(data.load("digits"), (16,)).steps
        ('unit_interval', 'downsample:4', 'flatten')
        >>> fit_data(data.load("digits"), (3, 32, 32))
        Traceback (most recent call last):
        pathspace.experiments.data.errors.DataError: digits has images of shape 1×8×8, but ...
    """
    wanted = tuple(shape)
    chosen = _steps(dataset.shape, wanted) if steps is None else parse_steps(steps)
    fitted = None if chosen is None else dataset.apply(*chosen)
    if fitted is None or fitted.shape != wanted:
        after = (
            "" if steps is None or fitted is None else f" and {_text(fitted.shape)} after {steps}"
        )
        raise DataError(
            f"{dataset.name} has images of shape {_text(dataset.shape)}{after}, but the model "
            f"takes {_text(wanted)}; name steps that lead there, such as --preprocess "
            "unit_interval,downsample:7,flatten, or a model of another input size"
        )
    return fitted


def _steps(given: tuple[int, ...], wanted: tuple[int, ...]) -> tuple[Step, ...] | None:
    """The steps from one shape to the other, if there is a way."""
    if len(given) != 3 or len(wanted) not in (1, 3):
        return None
    channels, *size = given
    as_vectors = (flatten(),) if len(wanted) == 1 else ()
    if math.prod(given) == math.prod(wanted) and (as_vectors or given == wanted):
        return (unit_interval(), *as_vectors)
    side = wanted[-1] if len(wanted) == 3 else math.isqrt(wanted[0] // channels)
    fits = wanted == (channels, side, side) or wanted == (channels * side**2,)
    if not fits or not 1 <= side <= min(size):
        return None
    return (unit_interval(), downsample(side), *as_vectors)


def _text(shape: Sequence[int]) -> str:
    return "×".join(map(str, shape)) or "no axes"
