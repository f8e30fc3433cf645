"""Values of a path sum: a tensor and the logarithm of a common factor."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from pathspace.errors import PathspaceError
from pathspace.flow.runs import Run, Window, whole


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
        return self.tensor if self.log == log else self.tensor * math.exp(self.log - log)

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
