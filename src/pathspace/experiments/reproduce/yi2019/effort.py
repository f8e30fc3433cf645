"""The flatness of a trained network, and how much effort is made to measure it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.nn.functional import cross_entropy

from pathspace.experiments.reproduce.yi2019.trained import Trained
from pathspace.flatnesses.coordinates import Space
from pathspace.flatnesses.measure import flatness
from pathspace.flatnesses.result import Flatness, Kind
from pathspace.flatnesses.trace import Method

KINDS: tuple[Kind, ...] = ("ball", "trace", "expected")
SPACES: dict[Space, str] = {"paths": "PSI", "weights": "weight"}


@dataclass(frozen=True)
class Effort:
    """How flatness is measured.

    Attributes:
        images: training images that it is measured on.
        epsilon: radius of the ball of basis-path values.
        sigma: standard deviation of the perturbations of the expected flatness, of these values.
        restarts: of the search in the ball.
        steps: gradients of each.
        probes: Hessian-vector products for the trace, at most.
        pairs: perturbations u and −u for the expected flatness, at most.
        method: of the trace.
        weight_epsilon: radius of the ball of weights.
        weight_sigma: standard deviation of perturbations of weights.
    """

    images: int
    epsilon: float
    sigma: float
    restarts: int = 2
    steps: int = 12
    probes: int = 30
    pairs: int = 16
    method: Method = "auto"
    weight_epsilon: float = 0.05
    weight_sigma: float = 0.01

    def options(self, kind: Kind, space: Space) -> dict[str, Any]:
        """Of :func:`pathspace.flatness`."""
        paths = space == "paths"
        if kind == "ball":
            epsilon = self.epsilon if paths else self.weight_epsilon
            return {"epsilon": epsilon, "restarts": self.restarts, "steps": self.steps}
        if kind == "trace":
            return {"max_probes": self.probes, "method": self.method}
        sigma = self.sigma if paths else self.weight_sigma
        return {"sigma": sigma, "max_pairs": self.pairs}


def flatness_of(
    one: Trained,
    effort: Effort,
    space: Space,
    kind: Kind,
    state: Mapping[str, Tensor] | None = None,
    **options: Any,
) -> Flatness:
    """A flatness of a trained network, with some effort.

    Args:
        one: the network and its data.
        effort: how it is measured.
        space: that of basis-path values, or of the weights.
        kind: of flatness.
        state: other weights than its own.
        options: further ones of :func:`pathspace.flatness`.
    """
    return flatness(
        one.network,
        cross_entropy,
        one.data(effort.images),
        space=space,
        kind=kind,
        state=state,
        **effort.options(kind, space),
        **options,
    )
