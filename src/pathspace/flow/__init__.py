r"""Sums over all paths by one pass through the recorded program.

With :math:`|w|^p` in place of every weight and all inputs equal to 1, a ReLU network computes at
each of its values the sum over all paths that end there of :math:`\prod |w_e|^p`: activations
become the identity, differences sums, and a maximum over a window the sum over it, since every
entry of the window is the end of a path. For p = ∞ sums become maxima. Values are carried as
(tensor, logarithm of a common factor), so that depth neither overflows nor underflows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from pathspace.errors import PathspaceError
from pathspace.flow.maxima import Maxima
from pathspace.flow.raising import Slope
from pathspace.flow.running import evaluate
from pathspace.flow.slopes import path_slopes
from pathspace.flow.sums import Sums
from pathspace.flow.values import Flow, NoPathSum
from pathspace.network import Network

__all__ = ["Flow", "NoPathSum", "Slope", "path_flow", "path_slopes"]


def path_flow(
    network: Network,
    weights: Mapping[str, Tensor],
    p: float,
    *,
    biases: bool = True,
    dtype: torch.dtype = torch.float64,
) -> list[Flow]:
    """The sums over all paths into every output of the network, for one exponent.

    Args:
        network: the traced network.
        weights: the state of the model, parameters and buffers by name.
        p: the exponent; ``math.inf`` for maxima.
        biases: whether paths may start at a bias.
        dtype: what to compute in.
    """
    kind = Maxima if math.isinf(p) else Sums
    found = evaluate(
        network,
        lambda careful: kind(network, weights, p, biases, dtype, careful),
        lambda _, flows: flows if all(flow.is_finite() for flow in flows) else None,
    )
    if not math.isinf(p) and not all(bool(flow.tensor.all()) for flow in found):
        _refuse_lost_powers(network, weights, p, dtype)
    return found


def _refuse_lost_powers(
    network: Network, weights: Mapping[str, Tensor], p: float, dtype: torch.dtype
) -> None:
    """Where a sum is 0: refuse if that may be because a weight is not 0, but its power is."""
    for name in (edge.parameter for edge in network.edges if edge.parameter in weights):
        values = weights[name].detach().to(dtype).abs()
        smallest = float(torch.where(values > 0, values, math.inf).min()) if values.numel() else 1.0
        if smallest**p == 0:
            raise PathspaceError(
                f"`{name}` has weights as small as {smallest:.1g}, whose powers p = {p:g} are 0 in "
                f"{dtype}, so that a path may be lost; scale it up, or take a smaller p"
            )
