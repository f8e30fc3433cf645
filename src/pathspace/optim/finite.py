"""Gradients that are not finite: noticed before any weight changes, and named."""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pathspace.optim.sheets import SIZE

if TYPE_CHECKING:
    from pathspace.optim.space import Step


def is_finite(tensors: Sequence[Tensor | None]) -> bool:
    """Whether all numbers are finite."""
    given = [tensor for tensor in tensors if tensor is not None]
    small = [tensor.reshape(-1) for tensor in given if tensor.numel() < SIZE]
    sums = [tensor.sum().item() for tensor in given if tensor.numel() >= SIZE]
    if small:
        sums.append(torch.cat(small).sum().item())
    return math.isfinite(sum(sums))  # a sum is finite only if all its terms are


def report(step: Step, *, raises: bool, warns: bool) -> None:
    """Say which gradients are not finite: by an error, a warning, or not at all.

    Raises:
        FloatingPointError: if ``raises``.
    """
    if not (raises or warns):
        return
    names = [
        leaf.name
        for sheet in step.sheets
        for leaf in sheet.leaves
        if leaf.parameter.grad is not None and not bool(leaf.parameter.grad.isfinite().all())
    ]
    where = ", ".join(f"`{name}`" for name in names) or "the sum of all gradients"
    verb = "are" if len(names) > 1 else "is"
    message = f"{where} {verb} not finite; the step was not taken and no weight has changed"
    if raises:
        raise FloatingPointError(message)
    message += " (said once; `skipped` counts)"
    warnings.warn(message, RuntimeWarning, stacklevel=_caller())


def _caller() -> int:
    """How many frames ``warnings.warn`` is away from the code that called ``step``."""
    level, frame = 1, inspect.currentframe()
    while (frame := frame and frame.f_back) and _is_inside(frame.f_globals["__name__"]):
        level += 1
    return level


def _is_inside(module: str) -> bool:
    return module.partition(".")[0] in ("torch", __name__.partition(".")[0])
