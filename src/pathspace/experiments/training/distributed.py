"""The processes that train together, called ranks; all that they say to each other is said here.

Each rank draws the same joint batch, in the order and with the augmentation of a single process,
and takes its share of it. Gradients are averaged such that every *example* counts alike, so the
result is that of a single process with the joint batch, but for the order in which numbers are
added. What is drawn within the model (dropout) each rank draws for itself.

A training knows its ranks by a :class:`Ranks`; that of a process by itself says and costs nothing.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from pathspace.errors import PathspaceError
from pathspace.experiments.training.errors import RankError
from pathspace.experiments.training.jointnorm import normalise_jointly_

if TYPE_CHECKING:
    from pathspace.experiments.training.task import Batch

T = TypeVar("T")


class Ranks:
    """One process that trains by itself: every question to the others has a ready answer.

    Attributes:
        rank: number of this process, from 0.
        size: number of processes.

    Example:
        >>> batch = (torch.ones(3, 2),), torch.ones(3)
        >>> ALONE.share(batch)[1], ALONE.part(3), ALONE.largest(5), ALONE.first(lambda: "done")
        (1.0, slice(0, 3, None), (5,), 'done')
    """

    rank = 0
    size = 1

    @property
    def is_first(self) -> bool:
        """Whether this is the one that has the store and speaks to the person."""
        return self.rank == 0

    def part(self, count: int) -> slice:
        """Which of so many examples are this rank's; the parts differ by one in length at most."""
        return slice(count * self.rank // self.size, count * (self.rank + 1) // self.size)

    def share(self, batch: Batch) -> tuple[Batch, float]:
        r"""This rank's share of the joint batch, and which fraction :math:`f_r` of it that is.

        The fractions of all ranks add up to one, and the mean over the joint batch is
        :math:`\sum_r f_r\,\text{mean}_r`. A batch with fewer examples than there are ranks is not
        divided: every rank takes all of it, as no model is asked for the outputs of no inputs.
        """
        return batch, 1.0

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over all ranks, the same bits in each."""
        return tensor

    def largest(self, *numbers: int) -> tuple[int, ...]:
        """The largest that any rank says, of each of the numbers."""
        return numbers

    def gather(self, value: T) -> list[T]:
        """What each rank says."""
        return [value]

    def first(self, action: Callable[[], T]) -> T:
        """What an action gives in the first rank, in all; so are errors of this package."""
        return action()

    def each(self, action: Callable[[], T]) -> T:
        """What an action gives in this rank; an error of this package in any is raised in all."""
        return action()

    def compare(self, tensors: Callable[[], Mapping[str, Tensor]], step: int) -> None:
        """Make sure that tensors are the same, bit by bit, in all ranks.

        Each is told by a sum of its bits on its device, see ``fingerprints``, so that a few
        bytes are sent and nothing is copied from the device but these.

        Args:
            tensors: gives them by name; asked only if there are others to compare with.
            step: after which this is, for the message.

        Raises:
            RankError: names the step, the ranks and the tensors; it is raised in all ranks.
        """

    def parallel(self, model: nn.Module, example: tuple[Tensor, ...]) -> nn.Module:
        """What to call in place of the model, so that gradients come out averaged over ranks.

        Args:
            model: its batch norms take the statistics of the joint batch from now on.
            example: an input, to see which parameters take part at all.
        """
        return model


ALONE = Ranks()


class Group(Ranks):
    """One of the processes that were launched together; ``joined`` makes it."""

    def __init__(self) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.is_divided = False  # whether ranks have different examples now

    def share(self, batch: Batch) -> tuple[Batch, float]:
        """See :meth:`Ranks.share`."""
        inputs, targets = batch
        count = len(targets)
        self.is_divided = count >= self.size
        if not self.is_divided:
            return batch, 1 / self.size
        part = self.part(count)
        divided = tuple(tensor[part] for tensor in inputs), targets[part]
        return divided, (part.stop - part.start) / count

    def sum(self, tensor: Tensor) -> Tensor:
        """See :meth:`Ranks.sum`."""
        total = tensor.clone()
        dist.all_reduce(total)
        return total

    def largest(self, *numbers: int) -> tuple[int, ...]:
        """See :meth:`Ranks.largest`."""
        found = torch.tensor(numbers, dtype=torch.int64)
        dist.all_reduce(found, dist.ReduceOp.MAX)
        return tuple(found.tolist())

    def gather(self, value: T) -> list[T]:
        """See :meth:`Ranks.gather`."""
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, value)
        return found

    def first(self, action: Callable[[], T]) -> T:
        """See :meth:`Ranks.first`."""
        box: list[Any] = [None, None]
        if self.is_first:
            try:
                box[0] = action()
            except PathspaceError as error:
                box[1] = error
        self.largest(0)  # gloo sees that a rank is gone when it waits for it, not when it sends
        dist.broadcast_object_list(box)
        if box[1] is not None:
            raise box[1]
        found: T = box[0]
        return found

    def each(self, action: Callable[[], T]) -> T:
        """See :meth:`Ranks.each`."""
        result: T | None = None
        failure: PathspaceError | None = None
        try:
            result = action()
        except PathspaceError as error:
            failure = error
        failures = self.gather(failure)
        if failures[0] is not None:
            raise failures[0]
        for rank, other in enumerate(failures):
            if other is not None:
                raise RankError(f"rank {rank}: {other}") from other
        return cast(T, result)

    def compare(self, tensors: Callable[[], Mapping[str, Tensor]], step: int) -> None:
        """See :meth:`Ranks.compare`."""
        here = tensors()
        mine = fingerprints(here.values())
        found = [torch.empty_like(mine) for _ in range(self.size)]
        dist.all_gather(found, mine)
        differs = torch.stack(found) != found[0]  # (ranks, tensors)
        if not differs.any():
            return
        names = [name for name, other in zip(here, differs.any(0).tolist(), strict=True) if other]
        others = ", ".join(str(rank) for rank, other in enumerate(differs.any(1).tolist()) if other)
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        raise RankError(
            f"after step {step:,} rank {others} is not the same as rank 0 any more: it has other "
            f"values in {', '.join(names[:3])}{more}; does the model draw random numbers for its "
            "weights, or compute buffers from its own examples alone? The last checkpoint, "
            "compared before it was written, is still right"
        )

    def parallel(self, model: nn.Module, example: tuple[Tensor, ...]) -> nn.Module:
        """See :meth:`Ranks.parallel`."""
        normalise_jointly_(model, lambda: self.is_divided)
        parameters = inspect.signature(DistributedDataParallel).parameters
        # Buffers are compared, not sent: what differs is an error, not to be painted over.
        later = "forward_sync_buffers" in parameters
        options: dict[str, Any] = {"forward_sync_buffers" if later else "broadcast_buffers": False}
        return DistributedDataParallel(
            model,
            find_unused_parameters=_has_unused_parameters(model, example),
            init_sync=False,
            **options,
        )


def fingerprints(tensors: Iterable[Tensor]) -> Tensor:
    r"""One number per tensor that tells whether its bits are the same.

    With the elements read as whole numbers :math:`b_i`, it is
    :math:`\sum_i (2i + 1)\,b_i \bmod 2^{64}`. Sums of whole numbers do not depend on their order,
    and an odd factor loses nothing, so that one element that differs is always seen.

    Args:
        tensors: of any types and devices.

    Returns:
        int64, on the CPU.

    Example:
        >>> a = torch.tensor([0.0, 1.0])
        >>> b, c = torch.tensor([-0.0, 1.0]), torch.tensor([1.0, 0.0])
        >>> len(fingerprints([a, b, c]).unique())
        3
    """
    kinds = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    found = []
    for tensor in tensors:
        flat = tensor.detach().contiguous().flatten()
        flat = torch.view_as_real(flat).flatten() if flat.is_complex() else flat
        bits = flat.view(kinds[flat.element_size()]).long()
        odd = 2 * torch.arange(len(bits), device=bits.device) + 1
        found.append((bits * odd).sum())
    return torch.stack(found).cpu() if found else torch.empty(0, dtype=torch.int64)


def _has_unused_parameters(model: nn.Module, example: tuple[Tensor, ...]) -> bool:
    """Whether there are parameters that the outputs do not depend on."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    was_training = model.training
    try:
        with torch.enable_grad():
            outputs = model.eval()(*example)
        grads = torch.autograd.grad(outputs.sum(), parameters, allow_unused=True)
    finally:
        model.train(was_training)
    return any(grad is None for grad in grads)
