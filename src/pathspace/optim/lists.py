"""Operations on lists of tensors, with a number or one number per row.

Hyper-parameters are numbers. Where several networks of one kind are trained side by side, each may
have its own: then they are tensors with one row per network, of shape (rows, 1).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

Tensors = tuple[Tensor, ...] | list[Tensor]
Group = dict[str, Any]


def by_row(number: Any) -> bool:
    """Whether a hyper-parameter has a number for every row."""
    return isinstance(number, Tensor) and number.dim() > 0


def is_on(number: Any) -> bool:
    """Whether a hyper-parameter is not 0, anywhere."""
    return bool((number != 0).any()) if by_row(number) else bool(number)


def settings_at(group: Group, rows: slice | Tensor, like: Tensor) -> Group:
    """The hyper-parameters of some rows, in dtype and on the device of another tensor."""
    return {
        name: _each_of(value, lambda numbers: numbers[rows].to(like))
        for name, value in group.items()
        if name != "params"
    }


def settings_of(group: Group, row: int) -> Group:
    """The hyper-parameters of one row, as numbers."""
    return {
        name: _each_of(value, lambda numbers: numbers[row].item())
        for name, value in group.items()
        if name != "params"
    }


def multiply_(tensors: Tensors, number: Any) -> None:
    """Multiply all tensors."""
    torch._foreach_mul_(tensors, _list(number, tensors))


def add_(tensors: Tensors, others: Tensors, number: Any) -> None:
    """Add a multiple of others."""
    if by_row(number):
        torch._foreach_addcmul_(tensors, others, _list(number, tensors))
    else:
        torch._foreach_add_(tensors, others, alpha=float(number))


def plus(tensors: Tensors, others: Tensors, number: Any) -> Tensors:
    """The sums with a multiple of others."""
    if by_row(number):
        return torch._foreach_addcmul(tensors, others, _list(number, tensors))
    return torch._foreach_add(tensors, others, alpha=float(number))


def add_products_(tensors: Tensors, first: Tensors, second: Tensors, number: Any) -> None:
    """Add a multiple of products."""
    if by_row(number):
        torch._foreach_addcmul_(tensors, torch._foreach_mul(first, _list(number, first)), second)
    else:
        torch._foreach_addcmul_(tensors, first, second, float(number))


def increase_(tensors: Tensors, number: Any) -> None:
    """Add a number to all tensors."""
    torch._foreach_add_(tensors, _list(number, tensors))


def approach_(tensors: Tensors, others: Tensors, number: Any) -> None:
    """Go a part of the way to others."""
    torch._foreach_lerp_(tensors, list(others), _list(number, tensors))


def _list(number: Any, tensors: Tensors) -> Any:
    """A number as it is; numbers by row once per tensor."""
    return [number] * len(tensors) if by_row(number) else number


def _each_of(value: Any, change: Callable[[Tensor], Any]) -> Any:
    """A value with its numbers by row changed."""
    if isinstance(value, tuple):
        return tuple(_each_of(item, change) for item in value)
    return change(value) if by_row(value) else value


def rows_of(values: Sequence[float]) -> float | Tensor:
    """One hyper-parameter per row; a plain number if all are the same.

    Example:
        >>> rows_of([0.1, 0.1]), rows_of([0.5, 0.25]).tolist()
        (0.1, [[0.5], [0.25]])
    """
    if all(value == values[0] for value in values):
        return values[0]
    return torch.tensor(values, dtype=torch.float64).view(-1, 1)
