r"""Runs of equal rows of an image, of which the tensor holds one.

All inputs of a path sum are 1, so far from the edges all rows of an image are equal, and all its
columns: what differs has come in from the padding, a little more with every kernel. Rows are left
out of a run and put back as the windows of the next operation need them; which, follows from the
shapes alone, and the sums are the same.

An axis with the run (start, extra) stands for one that is longer: its entry ``start`` is there
1 + ``extra`` times in a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Run:
    """Equal entries in a row along an axis, the first of which is stored.

    Attributes:
        start: its place.
        extra: how many more there are.
    """

    start: int = 0
    extra: int = 0

    @property
    def stop(self) -> int:
        """The place behind the last one, in the long axis."""
        return self.start + self.extra + 1

    def spread(self, tensor: Tensor, dim: int, count: int) -> Tensor:
        """The tensor with ``count`` of the equal entries."""
        if count == 1:
            return tensor
        shape = list(tensor.shape)
        shape[dim] = count
        one = tensor.narrow(dim, self.start, 1).expand(shape)
        rest = tensor.shape[dim] - self.start - 1
        before = [tensor.narrow(dim, 0, self.start)] if self.start else []
        behind = [tensor.narrow(dim, self.start + 1, rest)] if rest else []
        return torch.cat([*before, one, *behind], dim) if before or behind else one

    def through(self, window: Window) -> tuple[int, Run]:
        """How many of the entries the windows of an operation need, and the run of its result.

        As few as leave one window inside of the run, and the others as they are.
        """
        reach = -(self.start + window.padding) % window.stride + window.extent
        spare = 1 + self.extra - reach
        if spare < window.stride:  # not one window could be left out
            return 1 + self.extra, Run()
        first = -(-(self.start + window.padding) // window.stride)
        return reach + spare % window.stride, Run(first, spare // window.stride)

    def narrowed(self, to: Run) -> int:
        """How many of the entries are needed for a run inside of this one."""
        return 1 + self.extra - to.extra


@dataclass(frozen=True)
class Window:
    """The windows of a convolution or a pool along one axis.

    Attributes:
        extent: from the first entry of a window to the last.
        stride: from one window to the next.
        padding: in front of the first entry; behind the last, any.
    """

    extent: int
    stride: int
    padding: int


def whole(tensor: Tensor, runs: Sequence[Run]) -> Tensor:
    """The tensor with all entries, ``runs`` being those of its last axes."""
    for dim, run in enumerate(runs, -len(runs)):
        tensor = run.spread(tensor, dim, 1 + run.extra)
    return tensor


def common(runs: Sequence[Run]) -> Run:
    """The run that several axes of one length have in common."""
    start, stop = max(run.start for run in runs), min(run.stop for run in runs)
    return Run(start, stop - start - 1) if stop - start > 1 else Run()


def aligned(
    tensors: Sequence[Tensor], runs: Sequence[Sequence[Run]]
) -> tuple[list[Tensor], tuple[Run, ...]]:
    """Tensors that broadcast against each other, with the runs that they have in common.

    Args:
        tensors: any number of them.
        runs: those of the last axes of each tensor; there may be none.
    """
    found = list(tensors)
    rank = max(map(len, runs))
    shared = []
    for dim in range(-rank, 0):
        own = {
            k: runs[k][dim] if len(runs[k]) >= -dim else Run()
            for k, tensor in enumerate(tensors)
            if tensor.dim() >= -dim
        }
        own = {k: run for k, run in own.items() if tensors[k].shape[dim] > 1 or run.extra}
        both = common(list(own.values())) if own else Run()
        for k, run in own.items():
            found[k] = run.spread(found[k], dim, run.narrowed(both))
        shared.append(both)
    return found, tuple(shared)
