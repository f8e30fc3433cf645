"""The optimizers by name: a space times a rule."""

from __future__ import annotations

from pathspace.optim.basis import BasisSpace
from pathspace.optim.optimizer import InvariantOptimizer
from pathspace.optim.rules import Adagrad, Adam, Momentum
from pathspace.optim.spaces import BalancedSpace, PathSpace


class PathSGD(InvariantOptimizer, rule=Momentum, space=PathSpace):
    r"""Path-SGD: steepest descent with respect to the path norm."""


class PathAdagrad(InvariantOptimizer, rule=Adagrad, space=PathSpace):
    """AdaGrad on path-normalised gradients."""


class PathAdam(InvariantOptimizer, rule=Adam, space=PathSpace):
    """Adam on path-normalised gradients."""


class GSGD(InvariantOptimizer, rule=Momentum, space=BasisSpace):
    """G-SGD: gradient descent on basis-path values."""


class GAdagrad(InvariantOptimizer, rule=Adagrad, space=BasisSpace):
    """AdaGrad on basis-path values."""


class GAdam(InvariantOptimizer, rule=Adam, space=BasisSpace):
    """Adam on basis-path values."""


class BalancedSGD(InvariantOptimizer, rule=Momentum, space=BalancedSpace):
    """SGD in the balanced representative of the network."""
