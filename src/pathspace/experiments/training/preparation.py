"""From a trial to what is trained: data, model, network, optimizer."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Generator, nn

from pathspace.errors import PathspaceError
from pathspace.experiments import models
from pathspace.experiments.loading import is_import, load_model
from pathspace.experiments.training.errors import TrialError
from pathspace.experiments.training.initialisation import parse_initialisation
from pathspace.experiments.training.loading import load_task
from pathspace.experiments.training.losses import LOSSES
from pathspace.experiments.training.optimizers import find_optimizer, make_optimizer
from pathspace.experiments.training.regularizers import (
    insert_dropout_,
    parse_penalty,
)
from pathspace.experiments.training.step import Step
from pathspace.experiments.training.task import Task
from pathspace.experiments.training.trial import Trial
from pathspace.network import Network
from pathspace.tracing import trace


def prepare_task(trial: Trial, data_dir: str | Path | None = None) -> Task:
    """The data of a trial, on its device."""
    return load_task(
        trial.model,
        trial.data,
        preprocess=trial.preprocess,
        augment=trial.augment,
        batch=trial.batch,
        negatives=trial.negatives,
        drop_last=trial.drop_last,
        evaluate_on=trial.evaluate_on,
        dtype=getattr(torch, trial.dtype),
        device=available(trial.device),
        data_dir=data_dir,
    )


def prepare_step(trial: Trial, task: Task) -> Step:
    """Model, network, penalties and optimizer of a trial, ready for its first step.

    The network is traced only if something needs it. Weights are drawn on the CPU in float32 from
    a generator with the trial's seed, so that every device and dtype starts from the same ones.
    """
    generator = torch.Generator().manual_seed(trial.seed)
    rule = parse_initialisation(trial.init or "")
    # What is drawn anew below must not take numbers from the generator before.
    model = _build(trial, task, generator if rule.draw is None else torch.Generator())
    if rule.draw is not None:
        rule.draw(model, generator)
    model.to(available(trial.device), getattr(torch, trial.dtype)).train()
    _check(trial, task, model)
    network: Network | None = None
    needed = rule.change or trial.penalties or find_optimizer(trial.optimizer).needs_network
    if needed:
        network = trace(model, task.example(), streams=trial.streams, on_unknown=trial.on_unknown)
    if rule.change is not None and network is not None:
        rule.change(network, generator)
    if trial.dropout:
        insert_dropout_(model, trial.dropout)
        if network is not None:  # dropout is homogeneous: the same graph, of the new modules
            network = trace(
                model, task.example(), streams=trial.streams, on_unknown=trial.on_unknown
            )
    assert trial.lr is not None  # filled in
    assert trial.loss is not None
    optimizer = make_optimizer(
        trial.optimizer,
        model.parameters(),
        lr=trial.lr,
        weight_decay=trial.weight_decay,
        options=trial.options,
        network=network,
    )
    penalties = [parse_penalty(text)(network) for text in trial.penalties if network is not None]
    return Step(
        model,
        optimizer,
        LOSSES[trial.loss].loss,
        penalties=penalties,
        mixed=trial.mixed,
        device=torch.device(trial.device).type,
    )


def derived_generator(seed: int, purpose: str) -> Generator:
    """A generator of its own for one purpose.

    Example:
        >>> first, second = (derived_generator(0, name) for name in ("order", "dropout"))
        >>> first.initial_seed() == second.initial_seed()
        False
    """
    digest = hashlib.sha256(f"{seed}:{purpose}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7], "little"))


@contextlib.contextmanager
def isolated(trial: Trial) -> Iterator[None]:
    """Torch's random state and determinism as the trial wants them, and restored afterwards.

    Dropout draws from the global generators, so these are seeded; whoever trains finds them as
    they were before.
    """
    device = available(trial.device)
    devices = [device] if device.type == "cuda" else []
    before = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    fill = _memory.fill_uninitialized_memory
    cudnn = torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic
    if trial.deterministic and device.type == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read by cuBLAS alone
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(derived_generator(trial.seed, "dropout").initial_seed())
        try:
            torch.use_deterministic_algorithms(trial.deterministic)
            # NaN in fresh memory finds bugs, but costs time; what is computed stays the same
            _memory.fill_uninitialized_memory = False
            torch.backends.cudnn.benchmark = not trial.deterministic
            torch.backends.cudnn.deterministic = trial.deterministic
            yield
        except RuntimeError as error:
            if "deterministic" not in str(error) or isinstance(error, PathspaceError):
                raise
            raise TrialError(
                f"{str(error).partition('.')[0]}; deterministic = false (--no-deterministic) "
                "trains without that promise"
            ) from error
        finally:
            torch.use_deterministic_algorithms(before, warn_only=warn_only)
            _memory.fill_uninitialized_memory = fill
            torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic = cudnn


def available(name: str) -> torch.device:
    """The device of that name.

    Raises:
        TrialError: it is not here.
    """
    device = torch.device(name)
    there: dict[str, Callable[[], bool]] = {
        "cpu": lambda: True,
        "cuda": lambda: (device.index or 0) < torch.cuda.device_count(),
        "mps": torch.backends.mps.is_available,
    }
    if not there[device.type]():
        raise TrialError(f"device: there is no {name} on this machine; try --device cpu")
    return device


_memory: Any = torch.utils.deterministic  # a module with a property, which types cannot say

# Helpers -----------------------------------------------------------------------------------------


def _build(trial: Trial, task: Task, generator: Generator) -> nn.Module:
    if is_import(trial.model):
        shapes = [tuple(tensor.shape) for tensor in task.example()]
        return load_model(trial.model, input_shapes=shapes).model
    builder = models.resolve(trial.model).builder
    return models.build(trial.model, generator, **task.model_options(builder))


def _check(trial: Trial, task: Task, model: nn.Module) -> None:
    """Run the model once, in eval mode, to see that data and model fit."""
    try:
        with torch.no_grad():
            outputs = model.eval()(*task.example())
    except (RuntimeError, IndexError, TypeError) as error:
        shapes = ", ".join(str(tuple(tensor.shape[1:])) for tensor in task.example())
        raise TrialError(
            f"model: {trial.model} does not take the inputs of {trial.data}, which have shape "
            f"{shapes}: {error}"
        ) from error
    finally:
        model.train()
    task.check_outputs(outputs, trial.model)
