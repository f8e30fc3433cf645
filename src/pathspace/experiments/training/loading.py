"""Tasks by the name of their data; what was loaded last is kept for the next trial."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from pathspace.experiments import data as sets
from pathspace.experiments import models
from pathspace.experiments.data import Dataset, Interactions
from pathspace.experiments.fitting import fit_data
from pathspace.experiments.loading import is_import
from pathspace.experiments.training.classification import Classification
from pathspace.experiments.training.errors import TrialError
from pathspace.experiments.training.ranking import Ranking
from pathspace.experiments.training.task import Task

RANKING = ("ml-1m",)  # data sets of pairs, not of images


def load_task(
    model: str,
    name: str,
    *,
    preprocess: Sequence[str],
    augment: str | None,
    batch: int,
    negatives: int,
    drop_last: bool,
    evaluate_on: Sequence[str],
    dtype: torch.dtype,
    device: torch.device,
    data_dir: str | Path | None = None,
) -> Task:
    """The task that a data set poses to a model; what was loaded last is kept for the next trial.

    Args:
        model: by reference; a built-in one says what shape its input has.
        name: of the data set.
        preprocess: names of steps; without any, inputs are scaled to [0, 1] and fitted to the
            model's shape.
        augment: name of an augmentation.
        batch: examples per batch.
        negatives: see :class:`Ranking`.
        drop_last: leave out a last batch that is not full.
        evaluate_on: see :class:`Classification`.
        dtype: of the inputs.
        device: where the data lives.
        data_dir: the data folder.
    """
    folder = None if data_dir is None else str(data_dir)
    if name in RANKING:
        if preprocess or augment:
            raise TrialError(f"{name} has no images: leave out preprocess and augment")
        pairs = _interactions(folder, device, folder or os.environ.get(sets.VARIABLE))
        return Ranking(pairs, batch, negatives=negatives, drop_last=drop_last)
    shape = None if is_import(model) else _input_shape(model, name)
    searched = folder or os.environ.get(sets.VARIABLE)
    dataset = _dataset(name, folder, tuple(preprocess), shape, dtype, device, searched)
    return Classification(
        dataset,
        batch,
        augment=None if augment is None else sets.parse_augmentation(augment),
        drop_last=drop_last,
        evaluate_on=evaluate_on,
    )


# Loading -----------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=1)
def _dataset(
    name: str,
    folder: str | None,
    steps: tuple[str, ...],
    shape: tuple[int, ...] | None,
    dtype: torch.dtype,
    device: torch.device,
    searched: str | None,
) -> Dataset:
    """The preprocessed data set; ``searched`` is here only to tell what is kept apart."""
    dataset = sets.load(name, folder)
    if shape is not None:
        dataset = fit_data(dataset, shape, ",".join(steps) if steps else None)
    else:
        dataset = dataset.apply(*sets.parse_steps(steps or ("unit_interval",)))
    return dataset.map_inputs(lambda x: x.to(dtype), maximum=dataset.maximum).to(device)


@functools.lru_cache(maxsize=1)
def _interactions(folder: str | None, device: torch.device, searched: str | None) -> Interactions:
    pairs = sets.load_movielens(folder)
    moved: Mapping[str, Tensor] = {
        name: value.to(device) for name, value in vars(pairs).items() if isinstance(value, Tensor)
    }
    return Interactions(**moved, name=pairs.name, notes=pairs.notes)


def _input_shape(model: str, name: str) -> tuple[int, ...]:
    inputs = models.resolve(model).inputs
    if len(inputs) != 1:
        raise TrialError(f"{model} takes {len(inputs)} inputs, but {name} has images only")
    return inputs[0].shape
