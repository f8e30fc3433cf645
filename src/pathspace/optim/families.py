"""The optimizers by name: a space times a rule."""

from __future__ import annotations

from typing import Any, ClassVar

from pathspace.network import Network
from pathspace.optim.basis import BasisSpace, Metric, Roots
from pathspace.optim.optimizer import InvariantOptimizer
from pathspace.optim.rules import Adagrad, Adam, Momentum, Rule
from pathspace.skeleton import Choice


class GSGD(InvariantOptimizer):
    rule: Rule = Momentum()

    def __init__(self, params: Any, lr: float = 1e-3, momentum: float = 0.0, dampening: float = 0.0,
        weight_decay: float = 0.0, nesterov: bool = False, *, network: Network, skeleton: Choice = "largest",
        metric: Metric = "normalized", roots: Roots = "multiplicative", maximize: bool = False) -> None:
        space = BasisSpace(network, skeleton, metric, roots)
        super().__init__(params, dict(lr=lr, momentum=momentum, dampening=dampening, nesterov=nesterov,
            weight_decay=weight_decay, maximize=maximize), network=network, space=space)
