"""What all pictures of landscapes share: heights, their common scale, and labels with units."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pathspace.errors import PathspaceError

if TYPE_CHECKING:
    from pathspace.losslandscape import Landscape

MODEL = "#d55e00"  # on blue and yellow, Okabe and Ito's vermilion is seen by all
SPACES = {"paths": "basis-path space", "weights": "weight space"}
LOSSES = {
    "cross_entropy": "cross entropy (nats)",
    "CrossEntropyLoss()": "cross entropy (nats)",
    "nll_loss": "negative log likelihood (nats)",
    "NLLLoss()": "negative log likelihood (nats)",
    "mse_loss": "mean squared error",
    "MSELoss()": "mean squared error",
}


def height_limits(landscapes: Sequence[Landscape], log: bool) -> tuple[float, float]:
    """One scale for all landscapes: their least and greatest loss, or its logarithms."""
    low = min(landscape.range[0] for landscape in landscapes)
    high = max(landscape.range[1] for landscape in landscapes)
    if log and low <= 0:
        raise PathspaceError(
            f"the least loss is {low:.3g}, and only positive losses have a logarithm; use log=False"
        )
    low, high = height_of(low, log), height_of(high, log)
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def height_of(loss: float, log: bool) -> float:
    """A loss, or its logarithm."""
    return math.log10(loss) if log and loss > 0 else loss


def heights_of(landscape: Landscape, log: bool) -> Tensor:
    """The losses, or their logarithms; NaN where they are not finite."""
    finite = torch.where(landscape.losses.isfinite(), landscape.losses, torch.nan)
    return finite.log10() if log else finite


def axis_labels(landscape: Landscape) -> list[str]:
    """What t is, and its unit, for each axis."""
    return [f"$t_{k + 1}$ ({label})" for k, label in enumerate(landscape.labels)]


def loss_label(landscape: Landscape, log: bool) -> str:
    """The loss and its unit."""
    label = LOSSES.get(landscape.loss, landscape.loss)
    return f"log$_{{10}}$ of {label}" if log else label


def title_of(landscape: Landscape) -> str:
    """The model, the space, and the loss of the model."""
    return f"{landscape.name}\nin {SPACES[landscape.space]}, loss {landscape.center:.3g}"
