"""Losses of networks side by side, and their slopes by the outputs."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from pathspace.experiments.training import truncated_softmax

# of outputs (T, B, k) and targets (T, B): (T,) mean losses, and their slopes by the outputs
StackedLoss = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


def cross_entropies(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    r"""Cross-entropies and their slopes :math:`(\mathrm{softmax} - \mathrm{onehot})/B`.

    With the classes in front, so that all sums run along vectors and not along ten numbers.

    Example:
        >>> outputs, targets = torch.randn(3, 5, 4), torch.randint(4, (3, 5))
        >>> losses, slopes = cross_entropies(outputs, targets)
        >>> alone = torch.nn.functional.cross_entropy(outputs[1], targets[1])
        >>> torch.allclose(losses[1], alone)
        True
    """
    scores = outputs.movedim(-1, 0).contiguous()
    scores -= scores.amax(0)
    place, share = targets.unsqueeze(0), 1 / targets.shape[1]
    exponentials = scores.exp()
    total = exponentials.sum(0)
    losses = (total.log() - scores.gather(0, place)[0]).mean(1)
    slopes = exponentials.div_(total).mul_(share)
    slopes.scatter_add_(0, place, slopes.new_full((1,), -share).expand_as(place))
    return losses, slopes.movedim(0, -1).contiguous()


def truncated_softmaxes(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Truncated softmax losses, and their slopes by autograd."""
    with torch.enable_grad():
        outputs = outputs.detach().requires_grad_()
        each = truncated_softmax(outputs.flatten(0, 1), targets.flatten(), reduction="none")
        losses = each.view(targets.shape).mean(1)
        (slopes,) = torch.autograd.grad(losses.sum(), outputs)
    return losses.detach(), slopes


LOSSES: dict[str, StackedLoss] = {
    "cross-entropy": cross_entropies,
    "truncated-softmax": truncated_softmaxes,
}
