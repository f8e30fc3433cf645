"""What a measurement of flatness returns."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor

from pathspace.flatnesses.coordinates import Coordinates
from pathspace.weightgraph import Weights

Details = Mapping[str, float | int | str | bool]
Kind = Literal["ball", "trace", "expected", "adaptive"]


@dataclass(frozen=True)
class Spread:
    """One measure for several skeletons of the same network.

    Attributes:
        values: one per skeleton.
    """

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        """The mean."""
        return sum(self.values) / len(self.values)

    @property
    def deviation(self) -> float:
        """The standard deviation from skeleton to skeleton; NaN for one."""
        if len(self.values) < 2:
            return math.nan
        squares = sum((value - self.mean) ** 2 for value in self.values)
        return math.sqrt(squares / (len(self.values) - 1))

    def __str__(self) -> str:
        return (
            f"over {len(self.values)} random skeletons {self.mean:.4g} ± {self.deviation:.2g}, "
            f"from {min(self.values):.4g} to {max(self.values):.4g}"
        )


@dataclass(frozen=True, eq=False)
class Flatness:
    """A measured flatness; the larger, the sharper. Converts to a float.

    Attributes:
        kind: what was measured: ball, trace, expected or adaptive.
        space: in which coordinates.
        value: the measure.
        loss: the mean loss of the network itself, l(v).
        standard_error: of the value, from the spread of the random draws; 0 where the value is
            exact, ``None`` where it is a lower bound found by search.
        details: how it was measured, by name.
        coordinates: the space at the network's point.
        perturbation: (n,) what was added to the point to attain the value (ball and adaptive).
        spread: the same measure for random skeletons, if that was asked for.
    """

    kind: Kind
    space: str
    value: float
    loss: float
    standard_error: float | None
    details: Details
    coordinates: Coordinates = field(repr=False)
    perturbation: Tensor | None = field(default=None, repr=False)
    spread: Spread | None = None

    def __float__(self) -> float:
        return self.value

    def perturbed_state(self) -> Weights:
        """The state of the model that attains the value, to check it with."""
        if self.perturbation is None:
            raise AttributeError(f"kind={self.kind!r} is no maximum: it has no perturbation")
        return self.coordinates.state(self.coordinates.point + self.perturbation)

    def __str__(self) -> str:
        error = f" ± {self.standard_error:.2g}" if self.standard_error else ""
        details = ", ".join(
            f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"
            for name, value in self.details.items()
        )
        size = len(self.coordinates)
        text = f"{self.kind} flatness of {size:,} {self.space}: {self.value:.6g}{error}"
        text += f" (loss {self.loss:.4g}; {details})"
        return text if self.spread is None else f"{text}\n  {self.spread}"
