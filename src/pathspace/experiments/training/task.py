"""What is learned from data, as the engine sees it.

A task knows how batches are made, which model fits the data, and how a model is evaluated; all
else of training is the same for every task.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch
from torch import Generator, Tensor, nn

from pathspace.experiments.training.distributed import ALONE, Ranks
from pathspace.experiments.training.errors import TrialError
from pathspace.experiments.training.losses import Kind, Loss

CHUNK = 1000  # examples evaluated at a time

Batch = tuple[tuple[Tensor, ...], Tensor]  # the arguments of the model, and the targets
Check = Callable[[], None]  # called between parts of a long evaluation; may raise


class Task(Protocol):
    """What the engine must know about data.

    Attributes:
        kind: classification or ranking.
        notes: what a reader of the results must know about the data.
        per_epoch: batches in an epoch.
        columns: names of the metrics that :meth:`evaluate` gives.
    """

    kind: Kind
    notes: tuple[str, ...]
    per_epoch: int
    columns: tuple[str, ...]

    def example(self) -> tuple[Tensor, ...]:
        """A small input for the model, as positional arguments."""

    def model_options(self, builder: Callable[..., Any]) -> dict[str, Any]:
        """What the builder of a model is to be told about the data."""

    def check_outputs(self, outputs: Tensor, model: str) -> None:
        """Refuse a model whose outputs do not fit the targets."""

    def batches(self, generator: Generator) -> Iterator[Batch]:
        """One epoch in random order."""

    def evaluate(
        self, model: nn.Module, loss: Loss, check: Check, ranks: Ranks = ALONE
    ) -> dict[str, float]:
        """The metrics of a model, which is in eval mode; each rank does its part of every chunk."""


# What tasks share ------------------------------------------------------------------------------


def zeros(size: int, device: torch.device) -> Tensor:
    """Where sums begin, in the finest type that the device has."""
    dtype = torch.float32 if device.type == "mps" else torch.float64
    return torch.zeros(size, dtype=dtype, device=device)


def asked(builder: Callable[..., Any], options: dict[str, Any]) -> dict[str, Any]:
    """The options that the builder takes."""
    taken = inspect.signature(builder).parameters
    return {name: value for name, value in options.items() if name in taken}


def batches_per_epoch(examples: int, batch: int, drop_last: bool) -> int:
    """Number of batches in an epoch; refuses if there is none."""
    count = examples // batch if drop_last else -(-examples // batch)
    if not count:
        raise TrialError(
            f"batch: {batch} is more than the {examples:,} training examples there are"
        )
    return count
