"""The grid of a landscape: values of t on each axis, and the points between them."""

from __future__ import annotations

import torch
from torch import Tensor

Grid = int | tuple[int, int] | Tensor | tuple[Tensor, ...]


def grid_points(axes: tuple[Tensor, ...]) -> Tensor:
    """(P, K) all points of the grid, the last axis fastest."""
    return torch.cartesian_prod(*axes).view(-1, len(axes))


def grid_axes(grid: Grid, dims: int, start: float) -> tuple[Tensor, ...]:
    """The values of t on each axis, float64; numbers of points are spread from ``start`` over 2."""
    given: tuple[int | Tensor, ...]
    if isinstance(grid, int):
        given = (grid,) * dims
    else:
        given = (grid,) if isinstance(grid, Tensor) else tuple(grid)
    if len(given) != dims:
        raise ValueError(f"the grid has {len(given)} axes, but there are {dims} directions")
    axes = []
    for axis in given:
        if isinstance(axis, int):
            if axis < 2:
                raise ValueError(f"a grid needs 2 points per axis, not {axis}")
            axis = torch.linspace(start, start + 2, axis, dtype=torch.float64)
        axes.append(axis.detach().to("cpu", torch.float64))
    return tuple(axes)
