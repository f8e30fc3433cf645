"""Trained networks as the experiments on flatness look at them: traced, with training images."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from pathspace.experiments.data import Dataset, Split
from pathspace.experiments.models import resnet
from pathspace.experiments.training import Classification, Outcome, prepare_step, prepare_task
from pathspace.network import Network
from pathspace.skeleton import Choice
from pathspace.tracing import trace

# By position, as the papers have it: the same paths in all networks, chosen before training.
SKELETON: Choice = "modulo"
CHUNK = 256  # images per pass


def thin_plainnet18() -> nn.Sequential:
    """PlainNet-18 with a quarter of the channels, for images of any size."""
    return resnet(18, residual=False, width=1 / 4)


@dataclass(frozen=True, eq=False)
class Trained:
    """A trained network and the data it was trained on.

    Attributes:
        network: traced, with the final weights, in eval mode.
        dataset: its data.
        start: parameters and buffers before training.
    """

    network: Network
    dataset: Dataset
    start: Mapping[str, torch.Tensor]

    def images(self, count: int | None = None) -> Split:
        """The first training images; all, if there are not so many."""
        split = self.dataset.train
        return split if count is None else Split(split.inputs[:count], split.targets[:count])

    def data(self, count: int | None = None) -> Any:
        """The same in passes, as measurements take them."""
        return self.images(count).loader(CHUNK)


def trained(
    outcome: Outcome, data_dir: str | Path | None, *, dtype: torch.dtype = torch.float32
) -> Trained:
    """The network that a training came to.

    Args:
        outcome: of the training.
        data_dir: the data folder.
        dtype: to compute in.
    """
    task = prepare_task(outcome.trial, data_dir)
    assert isinstance(task, Classification)  # ranking has no images
    model = prepare_step(outcome.trial, task).model
    start = {name: tensor.detach().to(dtype) for name, tensor in _tensors(model).items()}
    model.load_state_dict(dict(outcome.weights))
    model.to(dtype).eval()
    inputs = task.dataset.map_inputs(lambda x: x.to(dtype), maximum=task.dataset.maximum)
    return Trained(trace(model, inputs.train.inputs[:1]), inputs, start)


def _tensors(model: nn.Module) -> dict[str, torch.Tensor]:
    """Copies of parameters and buffers; counters stay as they are when types change."""
    return {
        name: tensor.clone()
        for name, tensor in model.state_dict().items()
        if tensor.is_floating_point()
    }
