"""A training under way: where it is, what it has to remember, and how it goes on."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch.nn.modules.dropout import _DropoutNd

from pathspace.experiments.training.distributed import ALONE, Ranks
from pathspace.experiments.training.errors import TrialError
from pathspace.experiments.training.preparation import (
    derived_generator,
    prepare_step,
    prepare_task,
)
from pathspace.experiments.training.schedules import Rates, parse_schedule
from pathspace.experiments.training.task import Batch, Check, zeros
from pathspace.experiments.training.trial import Trial

Row = dict[str, Any]


class Training:
    """The state of a training, between any two steps.

    With several ranks it is the same in each, but for the loss so far, which is of the rank's own
    examples, and the random numbers that the model draws.

    Args:
        trial: what to train.
        data_dir: the data folder.
        ranks: who trains together.

    Attributes:
        epoch: number of complete epochs.
        batch: number of batches done in the epoch under way.
        iteration: number of steps taken.
        budget: number of steps to take.
    """

    def __init__(
        self, trial: Trial, data_dir: str | Path | None = None, ranks: Ranks = ALONE
    ) -> None:
        self.trial, self.ranks = trial, ranks
        if trial.batch < ranks.size:
            raise TrialError(
                f"batch: {trial.batch} examples cannot be divided among {ranks.size} ranks"
            )
        self.task = ranks.each(lambda: prepare_task(trial, data_dir))
        self.step = ranks.each(lambda: prepare_step(trial, self.task))
        self.model, self.optimizer = self.step.model, self.step.optimizer
        self.compare(0)
        self.step.model = ranks.parallel(self.model, self.task.example())
        self._seed_rank()
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
        self.rewind()
        self.set_rates("epoch")
        end = self.batch + self.budget - self.iteration
        return islice(self.task.batches(self.generator), self.batch, end)

    def rewind(self) -> None:
        """Let the generator draw the epoch under way again."""
        self.generator.set_state(self._epoch_began)

    def advance(self, batch: Batch) -> None:
        """Take one step; nothing is waited for."""
        if self.schedule.every == "iteration":
            self.set_rates("iteration")
        count = len(batch[1])
        (inputs, targets), fraction = self.ranks.share(batch)
        loss = self.step(inputs, targets, weight=fraction * self.ranks.size)
        self.loss.add_(loss, alpha=fraction * count)
        self.examples += count
        self.batch += 1
        self.iteration += 1

    def set_rates(self, every: str) -> None:
        """Set learning rate and momentum as the schedule says, if it is time."""
        if self.schedule.every != every:
            return
        self.use_rates(self.schedule.rates(self.iteration, self.epoch, self.budget))

    def use_rates(self, rates: Rates) -> None:
        """Give the optimizer these rates."""
        for group, base in zip(self.optimizer.param_groups, self._base, strict=True):
            group["lr"] = base * rates.factor
            if rates.momentum is not None:
                group["momentum"] = rates.momentum

    def is_finite(self) -> bool:
        """Whether the loss of this epoch is a number; waits for the device and all ranks."""
        return math.isfinite(self.ranks.sum(self.loss).item())

    def compare(self, step: int | None = None) -> None:
        """Make sure that all ranks have the same weights, see :meth:`Ranks.compare`."""
        self.ranks.compare(self.model.state_dict, self.iteration if step is None else step)

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
        total = self.ranks.sum(self.loss).item()
        row["loss"] = total / self.examples if self.examples else None
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
                metrics = self.task.evaluate(self.model, self.step.loss, check, self.ranks)
        finally:
            self.model.train()
        return self.row(metrics)

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader must know about the data, and about how it was trained."""
        if self.ranks.size == 1 or not any(isinstance(m, _DropoutNd) for m in self.model.modules()):
            return self.task.notes
        return (
            *self.task.notes,
            f"{self.ranks.size} ranks drew dropout masks of their own: not those of one process",
        )

    # Memory ------------------------------------------------------------------------------------

    def weights(self) -> dict[str, Any]:
        """Parameters and buffers."""
        return self.model.state_dict()

    def rest(self) -> dict[str, Any]:
        """Everything else: optimizer, random generators, position; all ranks ask together."""
        scaler = self.step.scaler
        random = _random_state(torch.device(self.trial.device))
        rest: dict[str, Any] = {
            "optimizer": self.optimizer.state_dict(),
            "scaler": None if scaler is None else scaler.state_dict(),
            "random": random,
            "epoch_began": self._epoch_began,
            "position": [self.epoch, self.batch, self.iteration, self.examples],
            "loss": self.ranks.sum(self.loss),
            "data": [self.task.per_epoch, *self.task.notes],
        }
        if self.ranks.size > 1:  # what is not the same in all
            rest["ranks"] = self.ranks.gather({"random": random, "loss": self.loss.cpu()})
        return rest

    def load(self, weights: dict[str, Any], rest: dict[str, Any]) -> None:
        """Take back what :meth:`weights` and :meth:`rest` gave, perhaps to fewer or more ranks.

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
        self._load_own(rest)
        self._epoch_began = rest["epoch_began"]
        self.generator.set_state(self._epoch_began)
        self.epoch, self.batch, self.iteration, self.examples = rest["position"]

    def _load_own(self, rest: dict[str, Any]) -> None:
        """Take back what ranks do not share; if they are others in number, the first has it all."""
        shares = rest.get("ranks", ())
        if len(shares) == self.ranks.size:
            own = shares[self.ranks.rank]
        elif self.ranks.is_first:
            own = rest
        else:
            own = {"loss": torch.zeros_like(self.loss)}
            self._seed_rank(f":{rest['position']}")
        self.loss.copy_(own["loss"])
        if "random" in own:
            _set_random_state(torch.device(self.trial.device), own["random"])

    def _seed_rank(self, position: str = "") -> None:
        """Give each rank but the first, which is as if alone, random numbers of its own."""
        if self.ranks.rank:
            purpose = f"dropout:{self.ranks.rank}{position}"
            torch.manual_seed(derived_generator(self.trial.seed, purpose).initial_seed())


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
