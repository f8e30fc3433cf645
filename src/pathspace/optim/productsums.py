"""Sums of products of weights and gradients, which the slopes of roots are made of."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pathspace.optim.lists import Group, add_products_, is_on
from pathspace.optim.sheets import SIZE
from pathspace.optim.stepping import Kernels


def sum_products(
    weight: Tensor, gradient: Tensor, parts: Sequence[Tensor], group: Group, kernels: Kernels
) -> None:
    r"""Sum :math:`\delta_e w_e` over what leaves or enters each unit, without a large temporary.

    Each part gets the sums over the axes along which it is 1.
    """
    sign, decay = -1.0 if group["maximize"] else 1.0, group["weight_decay"]
    rows = len(weight)
    if any(part.shape != weight.shape for part in parts):
        rows, decay = max(1, SIZE // max(weight.shape[1], 1)), float(decay)
    alone = parts[0] if len(parts) == 1 else None
    is_column = alone is not None and alone.shape == (len(weight), 1) != weight.shape
    if kernels.row_sums and alone is not None and is_column and not is_on(decay):
        alone.copy_(kernels.row_sums(weight, gradient)).mul_(sign)
        return
    by_column = alone is not None and alone.shape[0] == 1 < len(weight)
    total: Tensor | None = None  # of the blocks so far, for sums over all rows
    for start in range(0, len(weight), rows):
        w, g = weight[start : start + rows], gradient[start : start + rows]
        if by_column and total is not None:
            products = total[: len(w)].addcmul_(w, g, value=sign)
        else:
            whole = alone is not None and alone.shape == weight.shape
            products = torch.mul(w, g, out=alone if whole else None)
            products = products.neg_() if sign < 0 else products
        if is_on(decay):
            add_products_([products], [w], [w], decay)
        if by_column:
            total = products if total is None else total
            continue
        for part in parts:
            if part.shape[0] > 1 or len(weight) == 1:
                own = part[start : start + rows]
                if part.shape[1] == 1 < weight.shape[1]:
                    torch.sum(products, 1, keepdim=True, out=own)
                elif own.data_ptr() != products.data_ptr():
                    own.copy_(products)
            elif total is None:
                total = products.clone()
            else:
                total[: len(w)].add_(products)
    if total is not None:
        for part in parts:
            if part.shape[0] == 1:
                torch.sum(total, [d for d in (0, 1) if part.shape[d] == 1], keepdim=True, out=part)
