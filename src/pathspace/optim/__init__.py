"""Optimizers that do not notice how a network is scaled."""

from pathspace.optim.families import (
    GSGD,
    BalancedSGD,
    GAdagrad,
    GAdam,
    PathAdagrad,
    PathAdam,
    PathSGD,
)
from pathspace.optim.optimizer import InvariantOptimizer

__all__ = [
    "GSGD",
    "BalancedSGD",
    "GAdagrad",
    "GAdam",
    "InvariantOptimizer",
    "PathAdagrad",
    "PathAdam",
    "PathSGD",
]
