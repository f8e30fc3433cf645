"""Random draws: seeded locally, and stopped when their mean is known well enough."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

Probes = Literal["rademacher", "gaussian"]


def random_probes(
    shape: tuple[int, int], like: Tensor, generator: torch.Generator, kind: Probes = "rademacher"
) -> Tensor:
    """Vectors z with mean 0 and E z zᵀ = 1, drawn on the CPU: signs, or normal numbers."""
    if kind == "gaussian":
        return torch.randn(shape, generator=generator, dtype=like.dtype).to(like.device)
    if kind != "rademacher":
        raise ValueError(f'probes must be "rademacher" or "gaussian", not {kind!r}')
    bits = torch.arange(8, dtype=torch.uint8)  # of random bytes: one draw gives eight signs
    drawn = torch.empty(shape[0], -(-shape[1] // 8), 1, dtype=torch.uint8)
    drawn.random_(0, 256, generator=generator)
    signs = ((drawn >> bits) & 1).flatten(1)[:, : shape[1]]
    return signs.to(like).mul_(2).sub_(1)


def sample_until(
    draw: Callable[[int], Tensor], *, rtol: float, least: int, most: int, block: int, offset: float
) -> tuple[Tensor, bool]:
    """Draw until the standard error of the mean is at most ``rtol`` times the size of the result.

    Args:
        draw: gives so many independent samples as a vector.
        rtol: the error aimed at, relative to ``|offset + mean|``; 0 draws ``most``.
        least: samples before the error is believed.
        most: samples after which it ends in any case.
        block: samples between two looks at the error.
        offset: what is known exactly and added to the mean.

    Returns:
        the samples, and whether the error was reached. Stopping by the error itself makes it a
        little optimistic when it is reached with few samples.
    """
    if not 2 <= least <= most:
        raise ValueError(f"need 2 <= least <= most samples, got least={least} and most={most}")
    if rtol < 0:
        raise ValueError(f"rtol must not be negative, got {rtol}")
    samples = draw(least if rtol else most)
    while True:
        reached = standard_error(samples) <= rtol * abs(offset + float(samples.mean()))
        if reached or len(samples) >= most:
            return samples, reached
        samples = torch.cat([samples, draw(min(block, most - len(samples)))])


def standard_error(samples: Tensor) -> float:
    """Standard error of the mean of independent samples."""
    return float(samples.std()) / math.sqrt(len(samples))
