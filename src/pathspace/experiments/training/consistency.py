"""Settings of a trial against each other: what does not fit is named."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from pathspace.experiments import data as sets
from pathspace.experiments import models
from pathspace.experiments.loading import is_import
from pathspace.experiments.training.errors import TrialError, unknown
from pathspace.experiments.training.initialisation import parse_initialisation
from pathspace.experiments.training.loading import RANKING
from pathspace.experiments.training.losses import LOSSES
from pathspace.experiments.training.optimizers import find_optimizer
from pathspace.experiments.training.regularizers import parse_penalty
from pathspace.experiments.training.schedules import parse_schedule
from pathspace.experiments.training.stopping import parse_rule

if TYPE_CHECKING:
    from pathspace.experiments.training.trial import Trial

MINIMA: dict[str, float] = {
    "lr": 0,
    "weight_decay": 0,
    "batch": 1,
    "negatives": 0,
    "epochs": 0,
    "iterations": 0,
    "evaluate_every": 1,
    "seed": 0,
}


def check(trial: Trial) -> None:
    """Refuse what can be refused before any data is read.

    Raises:
        TrialError: names the setting, and what to do.
    """
    if not is_import(trial.model):
        try:
            models.resolve(trial.model)
        except ValueError as error:
            raise TrialError(f"model: {error}") from None
    if trial.data != sets.EMBEDDED:
        sets.find_source(trial.data)
    if trial.loss not in LOSSES:
        raise unknown("loss", trial.loss, LOSSES)
    kind = "ranking" if trial.data in RANKING else "classification"
    if LOSSES[trial.loss].kind != kind:
        fitting = [name for name, entry in LOSSES.items() if entry.kind == kind]
        raise TrialError(
            f"loss: {trial.loss} is not for {trial.data}, which is a task of {kind}; take "
            f"{' or '.join(fitting)}"
        )
    if trial.augment is not None:
        sets.parse_augmentation(trial.augment)
    parse_initialisation(trial.init or "")
    for penalty in trial.penalties:
        parse_penalty(penalty)
    schedule = parse_schedule(trial.schedule)
    if schedule.sets_momentum and "momentum" not in find_optimizer(trial.optimizer).options:
        raise TrialError(
            f"schedule: {trial.schedule} sets the momentum, which {trial.optimizer} has not"
        )
    _check_numbers(trial)
    _check_rule(trial)
    _check_device(trial)


def _check_numbers(trial: Trial) -> None:
    if trial.epochs is not None and trial.iterations is not None:
        raise TrialError("epochs and iterations are both given; leave one of them out")
    for name, least in MINIMA.items():
        value = getattr(trial, name)
        if value is not None and not (value >= least and math.isfinite(value)):
            raise TrialError(f"{name} should be at least {least}, not {value}")
    if not 0 <= trial.dropout < 1:
        raise TrialError(f"dropout should be from 0 to below 1, not {trial.dropout}")
    if trial.seed >= 2**63:
        raise TrialError(f"seed should be below 2^63, not {trial.seed}")


def _check_rule(trial: Trial) -> None:
    rule = parse_rule(trial.stop)
    validating = any(step.startswith("validation_split") for step in trial.preprocess)
    for column in rule.needs:
        split = column.partition("_")[0]
        if trial.data in RANKING:
            there = split == "test"
        else:
            there = split in trial.evaluate_on and (split != "validation" or validating)
        if not there:
            remedy = (
                "; put validation_split:10000 into preprocess"
                if split == "validation" and not validating
                else f"; put {split!r} into evaluate_on"
            )
            raise TrialError(
                f"stop: {trial.stop} needs {column}, which is not evaluated"
                f"{'' if trial.data in RANKING else remedy}"
            )


def _check_device(trial: Trial) -> None:
    try:
        device = torch.device(trial.device)
    except RuntimeError as error:
        raise TrialError(f"device: {trial.device!r} is none; try cpu, cuda or mps") from error
    if device.type not in ("cpu", "cuda", "mps"):
        raise TrialError(f"device: {trial.device!r} is not supported; try cpu, cuda or mps")
    if device.type == "mps" and trial.dtype == "float64":
        raise TrialError("dtype: mps has no float64; take float32")
    if trial.mixed != "off" and trial.dtype != "float32":
        raise TrialError(f"mixed: {trial.mixed} is for dtype float32, not {trial.dtype}")
