"""The demonstration from beginning to end."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from pathspace.experiments.demo.inspecting import (
    SPACES,
    Look,
    draw_landscapes,
    inspect_networks,
)
from pathspace.experiments.demo.settings import FULL, OPTIMIZERS, STARTS, Settings
from pathspace.experiments.demo.trainings import Trainings, train_all
from pathspace.experiments.store.environment import environment
from pathspace.flatnesses.coordinates import Space
from pathspace.losslandscape import Landscape
from pathspace.progress import progress_bar


@dataclass(frozen=True, eq=False)
class Demo:
    """Everything the demonstration found.

    Attributes:
        trainings: all trainings.
        looks: networks before and after training.
        landscapes: one function in two sets of weights, by space.
        environment: versions and machine.
    """

    trainings: Trainings
    looks: Sequence[Look]
    landscapes: Mapping[Space, Sequence[Landscape]]
    environment: Mapping[str, Any]


def run_demo(settings: Settings = FULL, *, progress: bool | None = None) -> Demo:
    """Train, compare, measure and draw.

    Runs in one thread: networks this small wait for each other longer than they compute. The
    number of threads is afterwards what it was.

    Args:
        settings: what to train.
        progress: whether to show a progress bar; by default if stderr is a terminal.

    Returns:
        what was found, for :func:`~pathspace.experiments.demo.demo_page` and the tables.
    """
    networks = len(STARTS) * (1 + len(OPTIMIZERS))
    total = settings.count + 1 + networks + len(SPACES)  # 1: the control
    with _one_thread(), progress_bar("demo", total, progress) as step:
        trainings = train_all(settings, step)
        looks = inspect_networks(trainings, step)
        return Demo(trainings, looks, draw_landscapes(trainings, step), environment())


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
