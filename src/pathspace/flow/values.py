"""Values of a path sum: a tensor and the logarithm of a common factor."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from pathspace.errors import PathspaceError


class NoPathSum(PathspaceError, NotImplementedError):
    """The network's output is no sum over paths: an operation is not homogeneous."""


@dataclass(frozen=True)
class Flow:
    """A tensor times ``exp(log)``; ``data`` tells activations from parameters and constants."""

    tensor: Tensor
    log: float = 0.0
    data: bool = False

    def at(self, log: float) -> Tensor:
        """The tensor that goes with another common factor."""
        return self.tensor if self.log == log else self.tensor * math.exp(self.log - log)

    def times(self, factor: Any) -> Flow:
        """Multiply by a number or tensor."""
        return Flow(self.tensor * factor, self.log, self.data)

    def map(self, function: Callable[[Tensor], Tensor]) -> Flow:
        """Apply a map that commutes with the common factor."""
        return Flow(function(self.tensor), self.log, self.data)

    def is_finite(self) -> bool:
        """Whether no entry has left the range of its dtype."""
        return bool(self.tensor.isfinite().all())
