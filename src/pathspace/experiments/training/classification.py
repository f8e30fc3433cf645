"""The task of telling classes apart: loss and error, on each split."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Generator, Tensor, nn

from pathspace.experiments.data import Augment, Dataset, Split
from pathspace.experiments.training.distributed import ALONE, Ranks
from pathspace.experiments.training.errors import TrialError
from pathspace.experiments.training.losses import Kind, Loss
from pathspace.experiments.training.task import (
    CHUNK,
    Batch,
    Check,
    asked,
    batches_per_epoch,
    zeros,
)


class Classification:
    """Images or vectors, each of one class: loss and error, on each split.

    Args:
        dataset: preprocessed, on the device and in the dtype of the model.
        batch: examples per batch.
        augment: see :meth:`Split.batches`.
        drop_last: leave out a last batch that is not full.
        evaluate_on: names of splits; those that are not there are left out.
    """

    kind: Kind = "classification"

    def __init__(
        self,
        dataset: Dataset,
        batch: int,
        *,
        augment: Augment | None = None,
        drop_last: bool = False,
        evaluate_on: Sequence[str] = ("train", "validation", "test"),
    ) -> None:
        self.dataset, self.batch, self.augment = dataset, batch, augment
        self.drop_last, self.notes = drop_last, dataset.notes
        self.splits = {k: split for k, split in dataset.splits.items() if k in evaluate_on}
        self.columns = tuple(f"{name}_{what}" for name in self.splits for what in ("loss", "error"))
        self.per_epoch = batches_per_epoch(len(dataset.train), batch, drop_last)

    def example(self) -> tuple[Tensor, ...]:
        """The first input."""
        return (self.dataset.train.inputs[:1],)

    def model_options(self, builder: Callable[..., Any]) -> dict[str, Any]:
        """The number of classes, where the builder asks for it."""
        return asked(builder, {"classes": self.dataset.classes})

    def check_outputs(self, outputs: Tensor, model: str) -> None:
        """One score per class."""
        if outputs.shape != (1, self.dataset.classes):
            raise TrialError(
                f"{model} gives outputs of shape {tuple(outputs.shape[1:])}, but "
                f"{self.dataset.name} has {self.dataset.classes} classes; it should give one score "
                "per class"
            )

    def batches(self, generator: Generator) -> Iterator[Batch]:
        """One epoch in random order, augmented."""
        epoch = self.dataset.train.batches(
            self.batch, generator=generator, drop_last=self.drop_last, augment=self.augment
        )
        for inputs, targets in epoch:
            yield (inputs,), targets

    @torch.no_grad()
    def evaluate(
        self, model: nn.Module, loss: Loss, check: Check, ranks: Ranks = ALONE
    ) -> dict[str, float]:
        """Mean loss and share of errors of each split, one transfer from the device per split."""
        metrics: dict[str, float] = {}
        for name, split in self.splits.items():
            mean_loss, error = self._evaluate(model, loss, split, check, ranks)
            metrics |= {f"{name}_loss": mean_loss, f"{name}_error": error}
        return metrics

    def _evaluate(
        self, model: nn.Module, loss: Loss, split: Split, check: Check, ranks: Ranks
    ) -> tuple[float, float]:
        sums = zeros(2, split.targets.device)
        for inputs, targets in split.batches(CHUNK):
            check()
            part = ranks.part(len(targets))
            inputs, targets = inputs[part], targets[part]
            if not len(targets):
                continue
            outputs = model(inputs)
            wrong = (outputs.argmax(1) != targets).sum()
            sums += torch.stack([loss(outputs, targets).to(sums) * len(targets), wrong.to(sums)])
        total, wrong_total = ranks.sum(sums).tolist()
        return total / len(split), wrong_total / len(split)
