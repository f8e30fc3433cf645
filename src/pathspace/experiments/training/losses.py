"""Losses by name, each the mean over the batch."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

Loss = Callable[[Tensor, Tensor], Tensor]  # outputs and targets to a scalar
Kind = Literal["classification", "ranking"]

KNEE = -11.0  # where the truncated softmax leaves the exponential
WIDTH = 2.0  # and how much further down it reaches zero


def truncated_softmax(
    scores: Tensor, targets: Tensor, reduction: Literal["mean", "none"] = "mean"
) -> Tensor:
    r"""Cross-entropy that is exactly zero once every margin exceeds 13.

    .. math::

        \hat\ell(s, c) = \ln \sum_i f(s_i - s_c), \qquad
        f(x) = \begin{cases} e^x & x \ge -11 \\ e^{-11} \max(x + 13, 0)^2 / 4 & \text{else.}
        \end{cases}

    Value and slope of f agree at −11, so the loss is differentiable, and it differs from the
    cross-entropy by no more than 0.000003 k for k classes. The largest difference is taken out of
    the sum before exponentials are computed, so that nothing overflows.

    Args:
        scores: (B, k).
        targets: (B,), classes.
        reduction: the mean over the batch, or nothing.

    Returns:
        A scalar, or (B,) losses.

    Example:
        >>> targets = torch.tensor([0])
        >>> truncated_softmax(torch.tensor([[13.0, 0.0]]), targets)
        tensor(0.)
        >>> scores = torch.tensor([[3.0, 0.0, 9.0]])
        >>> truncated_softmax(scores, targets), F.cross_entropy(scores, targets)
        (tensor(6.0026), tensor(6.0026))

    Reference:
        Neyshabur et al. 2017, footnote 2.
    """
    if scores.dtype in (torch.float16, torch.bfloat16):  # too coarse for margins of 11
        scores = scores.float()
    x = scores - scores.gather(1, targets[:, None])  # (B, k), 0 at the target
    exponential, zero = x >= KNEE, x <= KNEE - WIDTH
    # 1 where it is not used: the slope of a logarithm at 0 would make the gradient NaN.
    root = ((x - (KNEE - WIDTH)) / WIDTH).masked_fill(exponential | zero, 1.0)
    log_f = torch.where(exponential, x, (KNEE + 2 * root.log()).masked_fill(zero, -math.inf))
    losses = log_f.logsumexp(1)
    return losses.mean() if reduction == "mean" else losses


def binary_cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy of one logit per example, (B, 1) or (B,), with labels 0 and 1.

    Example:
        >>> binary_cross_entropy(torch.zeros(2, 1), torch.tensor([0.0, 1.0]))
        tensor(0.6931)
    """
    return F.binary_cross_entropy_with_logits(logits.flatten(), targets.to(logits.dtype))


@dataclass(frozen=True)
class Entry:
    """A loss, what it is for, and one line about it."""

    loss: Loss
    kind: Kind
    description: str


LOSSES: dict[str, Entry] = {
    "cross-entropy": Entry(F.cross_entropy, "classification", "softmax cross-entropy"),
    "truncated-softmax": Entry(
        truncated_softmax, "classification", "zero for margins above 13 (Neyshabur et al. 2017)"
    ),
    "binary-cross-entropy": Entry(binary_cross_entropy, "ranking", "one logit per pair"),
}
