"""A training under way: where it is, what it has to remember, and how it goes on."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from pathspace.experiments.training.errors import TrialError
from pathspace.experiments.training.preparation import (
    derived_generator,
    prepare_step,
    prepare_task,
)
from pathspace.experiments.training.schedules import parse_schedule
from pathspace.experiments.training.task import Batch, Check, zeros
from pathspace.experiments.training.trial import Trial

Row = dict[str, Any]


class Training:
    """The state of a training, between any two steps.

    Attributes:
        epoch: number of complete epochs.
        batch: number of batches done in the epoch under way.
        iteration: number of steps taken.
        budget: number of steps to take.
    """

    def __init__(self, trial: Trial, data_dir: str | Path | None = None) -> None:
        self.trial = trial
        self.task = prepare_task(trial, data_dir)
        self.step = prepare_step(trial, self.task)
        self.model, self.optimizer = self.step.model, self.step.optimizer
        self.schedule = parse_schedule(trial.schedule)
        epochs = (trial.epochs or 0) * self.task.per_epoch
        self.budget = epochs if trial.iterations is None else trial.iterations
        self.epoch = self.batch = self.iteration = self.examples = 0
        self.generator = derived_generator(trial.seed, "order")
        self._epoch_began = self.generator.get_state()
        self.loss = zeros(1, torch.device(trial.device))  # sum over the epoch
        self._base = [group["lr"] for group in self.optimizer.param_groups]

    # Steps -------------------------------------------------------------------------------------

    def batches(self) -> Iterator[Batch]:
        """What is left of the epoch, and of the budget.

        The epoch is drawn again from its beginning, and what is done is skipped: order and
        augmentation are those of an uninterrupted epoch.
        """
        self.generator.set_state(self._epoch_began)
        self.set_rates("epoch")
        end = self.batch + self.budget - self.iteration
        return islice(self.task.batches(self.generator), self.batch, end)

    def advance(self, batch: Batch) -> None:
        """Take one step; nothing is waited for."""
        if self.schedule.every == "iteration":
            self.set_rates("iteration")
        inputs, targets = batch
        loss = self.step(inputs, targets)
        self.loss.add_(loss, alpha=len(targets))
        self.examples += len(targets)
        self.batch += 1
        self.iteration += 1

    def set_rates(self, every: str) -> None:
        """Set learning rate and momentum as the schedule says, if it is time."""
        if self.schedule.every != every:
            return
        rates = self.schedule.rates(self.iteration, self.epoch, self.budget)
        for group, base in zip(self.optimizer.param_groups, self._base, strict=True):
            group["lr"] = base * rates.factor
            if rates.momentum is not None:
                group["momentum"] = rates.momentum

    def is_finite(self) -> bool:
        """Whether the loss of this epoch is a number; waits for the device."""
        return math.isfinite(self.loss.item())

    @property
    def is_over(self) -> bool:
        """Whether the budget is used."""
        return self.iteration >= self.budget

    @property
    def is_epoch_complete(self) -> bool:
        """Whether all batches of the epoch are done."""
        return self.batch >= self.task.per_epoch

    def begin_epoch(self) -> None:
        """Go on to the next epoch."""
        self._epoch_began = self.generator.get_state()
        self.loss.zero_()
        self.epoch += 1
        self.batch = self.examples = 0

    # Metrics -----------------------------------------------------------------------------------

    def row(self, metrics: dict[str, float] | None = None) -> Row:
        """The position, the mean loss while training in this epoch, and further metrics.

        What is not finite is None, as JSON has no word for it.
        """
        epochs = self.epoch + self.is_epoch_complete
        row: Row = {"epoch": epochs, "iteration": self.iteration}
        row["lr"] = self.optimizer.param_groups[0]["lr"]
        row["loss"] = self.loss.item() / self.examples if self.examples else None
        row |= metrics or {}
        finite = {k: v if v is None or math.isfinite(v) else None for k, v in row.items()}
        if skipped := getattr(self.optimizer, "skipped", 0):
            finite["skipped_steps"] = skipped
        return finite

    def evaluate(self, check: Check = lambda: None) -> Row:
        """A row with all metrics of the task; the model is back in train mode afterwards."""
        self.model.eval()
        try:
            with self.step.precision:
                metrics = self.task.evaluate(self.model, self.step.loss, check)
        finally:
            self.model.train()
        return self.row(metrics)

    # Memory ------------------------------------------------------------------------------------

    def weights(self) -> dict[str, Any]:
        """Parameters and buffers."""
        return self.model.state_dict()

    def rest(self) -> dict[str, Any]:
        """Everything else: optimizer, random generators, position."""
        scaler = self.step.scaler
        return {
            "optimizer": self.optimizer.state_dict(),
            "scaler": None if scaler is None else scaler.state_dict(),
            "random": _random_state(torch.device(self.trial.device)),
            "epoch_began": self._epoch_began,
            "position": [self.epoch, self.batch, self.iteration, self.examples],
            "loss": self.loss,
            "data": [self.task.per_epoch, *self.task.notes],
        }

    def load(self, weights: dict[str, Any], rest: dict[str, Any]) -> None:
        """Take back what :meth:`weights` and :meth:`rest` gave.

        Raises:
            TrialError: the data is not what the training began with.
        """
        data = [self.task.per_epoch, *self.task.notes]
        if rest["data"] != data:
            raise TrialError(
                f"the data is not what the training began with: batches per epoch and notes were "
                f"{rest['data']}, and are {data}"
            )
        self.model.load_state_dict(weights)
        self.optimizer.load_state_dict(rest["optimizer"])
        if self.step.scaler is not None:
            self.step.scaler.load_state_dict(rest["scaler"])
        _set_random_state(torch.device(self.trial.device), rest["random"])
        self._epoch_began = rest["epoch_began"]
        self.generator.set_state(self._epoch_began)
        self.epoch, self.batch, self.iteration, self.examples = rest["position"]
        self.loss.copy_(rest["loss"])


def _random_state(device: torch.device) -> dict[str, Any]:
    """The global generators, which dropout draws from."""
    state = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    elif device.type == "mps":
        state["mps"] = torch.mps.get_rng_state()
    return state


def _set_random_state(device: torch.device, state: dict[str, Any]) -> None:
    torch.set_rng_state(state["cpu"])
    if device.type == "cuda":
        torch.cuda.set_rng_state(state["cuda"], device)
    elif device.type == "mps":
        torch.mps.set_rng_state(state["mps"])
