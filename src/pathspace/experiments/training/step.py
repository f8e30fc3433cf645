"""One step of training, apart from everything around it."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from pathspace.experiments.training.losses import Loss
from pathspace.penalties import Penalty

Mixed = Literal["off", "bfloat16", "float16"]


class Step:
    """Loss, gradient and update on one batch.

    Nothing here waits for the device or knows which one it is, so the same step runs under
    ``DistributedDataParallel``.

    Args:
        model: called with the inputs.
        optimizer: of the model's parameters.
        loss: of outputs and targets, the mean over the batch.
        penalties: their gradients are added to those of the loss.
        mixed: compute the forward pass in a shorter type, with scaled gradients for float16.
        device: type of the device, such as ``cpu``.

    Example:
        >>> model = nn.Linear(2, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> step = Step(model, optimizer, torch.nn.functional.mse_loss)
        >>> inputs, targets = torch.ones(4, 2), torch.ones(4, 1)
        >>> first, second = step((inputs,), targets), step((inputs,), targets)
        >>> bool(second < first)
        True
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        loss: Loss,
        *,
        penalties: Sequence[Penalty] = (),
        mixed: Mixed = "off",
        device: str = "cpu",
    ) -> None:
        self.model, self.optimizer, self.loss = model, optimizer, loss
        self.penalties = penalties
        self.precision: contextlib.AbstractContextManager[object] = contextlib.nullcontext()
        if mixed != "off":
            self.precision = torch.autocast(device, dtype=getattr(torch, mixed))
        self.scaler = torch.amp.GradScaler(device) if mixed == "float16" else None

    def __call__(self, inputs: Sequence[Tensor], targets: Tensor, weight: float = 1.0) -> Tensor:
        """Take one step.

        Args:
            inputs: of the model.
            targets: of the loss.
            weight: of the loss, where gradients are the mean over shares of different lengths.

        Returns:
            The loss before it, without penalties, as a scalar on the device.
        """
        self.optimizer.zero_grad()
        with self.precision:
            loss = self.loss(self.model(*inputs), targets)
        weighted = loss if weight == 1.0 else loss * weight
        if self.scaler is None:
            weighted.backward()
            self._add_penalties()
            self.optimizer.step()
        else:
            self.scaler.scale(weighted).backward()
            if self.penalties:
                self.scaler.unscale_(self.optimizer)
                self._add_penalties()
            self.scaler.step(self.optimizer)
            self.scaler.update()
        return loss.detach()

    def _add_penalties(self) -> None:
        for penalty in self.penalties:
            penalty.add_to_gradients_()
