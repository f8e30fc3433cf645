"""Values of a path sum: a tensor and the logarithm of a common factor."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from pathspace.errors import PathspaceError
from pathspace.flow.runs import Run, Window, whole

MOST = 709.0  # a larger logarithm is that of no float
FAR = 40.0  # logarithms that are further apart are looked at before they are added


class NoPathSum(PathspaceError, NotImplementedError):
    """The network's output is no sum over paths: an operation is not homogeneous."""


@dataclass(frozen=True)
class Flow:
    """A tensor times ``exp(log)``.

    Attributes:
        tensor: the values; equal ones in a run are there once.
        log: the logarithm of a common factor.
        data: whether these are activations, not parameters or constants.
        runs: the runs along the last axes of the tensor; none if it is empty.
    """

    tensor: Tensor
    log: float = 0.0
    data: bool = False
    runs: tuple[Run, ...] = ()

    def at(self, log: float) -> Tensor:
        """The tensor that goes with another common factor."""
        return self.tensor if self.log == log else self.tensor * capped_exp(self.log - log)

    def with_room_for(self, constant: Tensor) -> Flow:
        """The same, such that a constant can be added: see :func:`common_log`."""
        log = common_log([replace(self, data=True), Flow(constant)])
        return self if log == self.log else replace(self, tensor=self.at(log), log=log)

    def times(self, factor: Any) -> Flow:
        """Multiply by a number or tensor."""
        return replace(self, tensor=self.tensor * factor)

    def map(self, function: Callable[[Tensor], Tensor]) -> Flow:
        """Apply a map that commutes with the common factor, and leaves runs alone."""
        return replace(self, tensor=function(self.tensor))

    def whole(self) -> Flow:
        """The same with all values written down."""
        return replace(self, tensor=whole(self.tensor, self.runs), runs=()) if self.runs else self

    def through(self, windows: Sequence[Window], function: Callable[[Tensor], Tensor]) -> Flow:
        """Apply a map that computes each value of the result from one window along the last axes.

        Args:
            windows: those along each of these axes.
            function: the map; it also takes an image from whose runs some rows are left out.
        """
        tensor, results = self.tensor, []
        runs = (*(Run(),) * (len(windows) - len(self.runs)), *self.runs)
        for dim, (run, window) in enumerate(zip(runs, windows, strict=True), -len(windows)):
            count, result = run.through(window)
            tensor = run.spread(tensor, dim, count)
            results.append(result)
        return replace(self, tensor=function(tensor), runs=tuple(results))

    def is_finite(self) -> bool:
        """Whether no entry has left the range of its dtype."""
        return bool(self.tensor.isfinite().all())


def common_log(flows: Sequence[Flow]) -> float:
    """A logarithm at which flows can be added: the largest of activations.

    More if a constant would be far larger than 1 there, as behind many layers of tiny weights.
    """
    log = max((f.log for f in flows if f.data), default=0.0)
    for flow in flows:
        if not flow.data and flow.log - log > FAR and flow.tensor.numel():
            top = float(flow.tensor.detach().abs().amax())
            log = max(log, flow.log + math.log(top)) if 0 < top < math.inf else log
    return log


def exp(log: float) -> float:
    """:math:`e^x`; infinite where Python would raise an error."""
    return math.exp(log) if log < MOST else math.inf


def capped_exp(log: float) -> float:
    """:math:`e^x`, finite; for factors of flows, which are zero where it is not right."""
    return math.exp(min(log, MOST))
