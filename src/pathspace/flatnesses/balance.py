r"""Path balance: how far apart the sizes of the basis-path values are."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from pathspace.flatnesses.paths import PathCoordinates, SkeletonChoice
from pathspace.network import Network


@dataclass(frozen=True)
class PathBalance:
    """How far apart the sizes of the basis-path values are. Converts to a float, the ratio.

    Attributes:
        largest: ``sup |v|``.
        smallest: ``inf |v|``; 0 as soon as one weight (say, a bias) is 0.
        zeros: how many basis paths have the value 0.
    """

    largest: float
    smallest: float
    zeros: int

    @property
    def ratio(self) -> float:
        """The ratio ``sup |v| / inf |v|``, at least 1."""
        return self.largest / self.smallest if self.smallest else math.inf

    def __float__(self) -> float:
        return self.ratio

    def __str__(self) -> str:
        zeros = f", {self.zeros:,} values are 0" if self.zeros else ""
        return f"path balance {self.ratio:.4g} = {self.largest:.4g} / {self.smallest:.4g}{zeros}"


def path_balance(
    network: Network,
    choice: SkeletonChoice = "modulo",
    *,
    state: Mapping[str, Tensor] | None = None,
) -> PathBalance:
    r"""The ratio of the largest to the smallest basis-path value, :math:`\sup|v| / \inf|v|`.

    Invariant to rescaling. Theorem 5.1 bounds the rise of the loss in a ball by powers of it.

    Args:
        network: the traced network.
        choice: the skeleton; the paper's is ``"modulo"``.
        state: parameters and buffers to measure; by default the model's.

    Example:
        >>> import torch, pathspace as ps
        >>> model = torch.nn.Sequential(
        ...     torch.nn.Linear(1, 1, bias=False),
        ...     torch.nn.ReLU(),
        ...     torch.nn.Linear(1, 2, bias=False),
        ... )
        >>> with torch.no_grad():
        ...     _ = model[0].weight.fill_(2.0)
        ...     _ = model[2].weight.copy_(torch.tensor([[3.0], [-1.0]]))
        >>> print(path_balance(ps.trace(model, torch.ones(1, 1))))
        path balance 3 = 6 / 2

    Reference: Yi et al. 2019, section 5.
    """
    sizes = PathCoordinates(network, choice, state=state, dtype=torch.float64).point.abs()
    return PathBalance(float(sizes.max()), float(sizes.min()), int((sizes == 0).sum()))
