"""Trainings in step with each other: one stack, one optimizer, each with its own data and luck."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Generator, Tensor

from pathspace.experiments.together.losses import LOSSES
from pathspace.experiments.together.optimizers import stacked_optimizer
from pathspace.experiments.together.penalties import StackedPenalty
from pathspace.experiments.together.stack import Stack
from pathspace.experiments.together.states import Correspondence, join, split
from pathspace.experiments.training import Classification, Training
from pathspace.experiments.training.schedules import Rates
from pathspace.tracing import trace


class Fleet:
    """Trainings at the same position, as one.

    What they are is written back with :meth:`sync`: between two calls of it the trainings
    themselves stand still.

    Args:
        trainings: of one kind (see :func:`groups`), at the same position.
        generators: where the dropout of each draws from.
    """

    def __init__(self, trainings: Sequence[Training], generators: Sequence[Generator]) -> None:
        self.trainings = list(trainings)
        first = self.trainings[0]
        self.lead, self.copies = first, len(self.trainings)
        self.stack = Stack([training.model for training in trainings])
        self.stack.set_generators(generators)
        network = self.stack.network()
        single = getattr(first.optimizer, "network", None)
        if single is None:
            single = trace(first.model, first.task.example())
        self.relation = Correspondence(network, single)
        trials = [training.trial for training in trainings]
        self.optimizer = stacked_optimizer(trials, self.stack, network)
        self._base = [group["lr"] for group in self.optimizer.param_groups]
        self._rates = Rates()
        singles = [training.optimizer for training in trainings]
        join(self.optimizer, singles, self.relation, first.iteration)
        columns = zip(*(training.step.penalties for training in trainings), strict=True)
        self.penalties = [StackedPenalty(column, network, self.relation) for column in columns]
        self._losses = LOSSES[first.trial.loss or ""]
        self._doomed: dict[int, list[Tensor]] = {}
        self._gather_data()
        self.begin_epoch()

    # Data --------------------------------------------------------------------------------------

    def _gather_data(self) -> None:
        """Inputs and targets; data that several trainings have in common is there once."""
        tasks = [training.task for training in self.trainings]
        splits = [task.dataset.train for task in tasks if isinstance(task, Classification)]
        self._splits = splits
        same_inputs = all(s.inputs.data_ptr() == splits[0].inputs.data_ptr() for s in splits)
        if not same_inputs:
            same_inputs = all(torch.equal(s.inputs, splits[0].inputs) for s in splits[1:])
        self._inputs = [splits[0].inputs] if same_inputs else [s.inputs for s in splits]
        self._inputs = [inputs.flatten(1) for inputs in self._inputs]
        same_targets = all(s.targets.data_ptr() == splits[0].targets.data_ptr() for s in splits)
        self._targets = [splits[0].targets] if same_targets else [s.targets for s in splits]

    def begin_epoch(self) -> None:
        """Draw the order of the epoch of every training, as each would alone."""
        self.loss = torch.cat([training.loss for training in self.trainings])
        orders = []
        for training, split_ in zip(self.trainings, self._splits, strict=True):
            training.rewind()
            orders.append(split_.order(training.generator))
        self._order = torch.stack(orders)
        self.set_rates("epoch")

    def _batch(self) -> tuple[Tensor, Tensor]:
        size = self.lead.trial.batch
        start = self.lead.batch * size
        index = self._order[:, start : start + size].contiguous()  # looked up twice
        return _rows(self._inputs, index), _rows(self._targets, index)

    # Steps -------------------------------------------------------------------------------------

    @property
    def is_epoch_over(self) -> bool:
        """Whether the epoch, or the budget, is used up."""
        return self.lead.is_epoch_complete or self.lead.is_over

    def is_finite(self) -> bool:
        """Whether the losses of this epoch are numbers."""
        return bool(self.loss.isfinite().all())

    def advance(self) -> None:
        """Take one step with all of them."""
        self.set_rates("iteration")
        inputs, targets = self._batch()
        losses = self.stack.gradients(inputs, lambda outputs: self._losses(outputs, targets))
        for penalty in self.penalties:
            penalty.add_to_gradients_()
        if not math.isfinite(losses.sum().item()):
            self._doom(~losses.isfinite())
        self.optimizer.step()
        count = targets.shape[1]
        self.loss.add_(losses, alpha=count)
        for training in self.trainings:
            training.examples += count
            training.batch += 1
            training.iteration += 1

    @torch.no_grad()
    def _doom(self, lost: Tensor) -> None:
        """A network whose loss is no number any more ends with the epoch; until then it is 0."""
        for number in lost.nonzero().flatten().tolist():
            rows = [parameter[number] for parameter in self.stack.parameters()]
            if number not in self._doomed:
                self._doomed[number] = [row.clone() for row in rows]
            for row in rows:
                row.zero_()
            for parameter in self.stack.parameters():
                assert parameter.grad is not None
                parameter.grad[number].zero_()

    def set_rates(self, every: str) -> None:
        """Set learning rates and momentum as the schedule says, if it is time."""
        schedule = self.lead.schedule
        if schedule.every != every:
            return
        self._rates = rates = schedule.rates(self.lead.iteration, self.lead.epoch, self.lead.budget)
        for group, base in zip(self.optimizer.param_groups, self._base, strict=True):
            group["lr"] = base * rates.factor
            if rates.momentum is not None:
                group["momentum"] = rates.momentum

    # Memory ------------------------------------------------------------------------------------

    @torch.no_grad()
    def sync(self) -> None:
        """Write everything back into the trainings."""
        columns = zip(*(training.model.parameters() for training in self.trainings), strict=True)
        for parameter, column in zip(self.stack.parameters(), columns, strict=True):
            for number, single in enumerate(column):
                single.copy_(parameter[number])
        split(self.optimizer, [training.optimizer for training in self.trainings], self.relation)
        for number, kept in self._doomed.items():
            for single, value in zip(self.trainings[number].model.parameters(), kept, strict=True):
                single.copy_(value)
        for training, loss in zip(self.trainings, self.loss, strict=True):
            training.loss.copy_(loss)
            training.use_rates(self._rates)


def _rows(tables: Sequence[Tensor], index: Tensor) -> Tensor:
    """(T, B) rows of one table that all have in common, or each of its own."""
    if len(tables) == 1:
        return tables[0].index_select(0, index.reshape(-1)).view(*index.shape, *tables[0].shape[1:])
    return torch.stack(
        [table.index_select(0, row) for table, row in zip(tables, index, strict=True)]
    )
