"""Products along forests, as sign and logarithm, so that depth does not overflow.

A vector of factors by scale is a (2, H+1) tensor: its signs, and the logarithms of its sizes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pathspace.network import Edge


def scaled(edge: Edge, tensor: Tensor, at_target: Tensor, at_source: Tensor) -> Tensor:
    """``tensor`` times a factor per target scale and one per source scale.

    Factors are (2, H+1), sign and logarithm. They are multiplied one after the other, split so
    that both stay near 1 even where one alone would overflow.
    """
    source = at_source[:, edge.source_scale] if edge.from_free else None
    target = at_target[:, edge.target_scale] if edge.into_free else None
    shift = torch.zeros((), dtype=torch.float64)
    if source is not None and target is not None:
        shift = (_middle(source[1]) - _middle(target[1])) / 2
    result = tensor
    for side, sign in ((source, -1), (target, 1)):
        if side is not None:
            factor = _along((side[0] * (side[1] + sign * shift).exp()).to(tensor), edge.shape)
            fresh = result is tensor or result.requires_grad
            result = result * factor if fresh else result.mul_(factor)
    return result.clone() if result is tensor else result


def _along(factor: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Repeat a factor over the kernel axes, so that it is contiguous where the weight is."""
    if factor.dim() > 2 and factor.shape[0] == 1 and factor.shape[1] > 1:
        return factor.expand(1, *shape[1:]).contiguous()
    return factor


def _middle(logs: Tensor) -> Tensor:
    return (logs.detach().amax() + logs.detach().amin()) / 2


def log_product(weights: Tensor, step: Tensor) -> Tensor:
    """Product of weights along a forest from each node to its root, as sign and logarithm.

    Pointer doubling: log2(depth) rounds of H-sized vectors.
    """
    result = signed_log(weights)
    neutral = torch.tensor([[1.0], [0.0]], dtype=result.dtype)
    result = torch.cat([neutral, result[:, 1:]], 1)
    for jump in doublings(step):
        result = product(result, result[:, jump])
    return result


def doublings(step: Tensor) -> list[Tensor]:
    """Where 1, 2, 4, ... steps lead along a forest whose ways end at node 0, until all have ended.

    A sum along the way to the root is that many rounds of adding what stands at these nodes.
    """
    found = []
    while bool(step.any()):
        found.append(step)
        step = step[step]
    return found


def signed_log(values: Tensor) -> Tensor:
    """Signs and logarithms of the sizes of plain numbers."""
    return torch.stack([values.detach().sign(), values.abs().log()])


def product(a: Tensor, b: Tensor) -> Tensor:
    """Multiply entry by entry."""
    return torch.stack([a[0] * b[0], a[1] + b[1]])


def inverse(a: Tensor) -> Tensor:
    """Invert every entry."""
    return torch.stack([a[0], -a[1]])


def quotient(a: Tensor, b: Tensor) -> Tensor:
    """Divide entry by entry; 1 for the pinned scale 0."""
    return torch.cat([torch.tensor([[1.0], [0.0]]).to(a), product(a, inverse(b))[:, 1:]], 1)


def plain(a: Tensor) -> Tensor:
    """Back to plain numbers."""
    return a[0] * a[1].exp()
