"""Where a step is taken, and what one step works on."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pathspace import native
from pathspace.errors import OutOfRange
from pathspace.native import Apart
from pathspace.network import Network
from pathspace.optim.blocks import Batch
from pathspace.optim.finite import is_finite
from pathspace.optim.lists import Group, Tensors
from pathspace.optim.rules import State
from pathspace.optim.sheets import Leaf, Sheet
from pathspace.optim.stepping import Kernels

if TYPE_CHECKING:
    from pathspace.flow.products import Later
    from pathspace.optim.optimizer import InvariantOptimizer


class Space(ABC):
    """Where steps are taken: the factors of all weights, renewed at every step.

    Attributes:
        source: by sheet, the part of :math:`s_e` that depends on the source of a weight.
        target: by sheet, the part that depends on its target, or all of it.
        back: by sheet, the parts of :math:`b_e` that depend on the source and on the target.
        apart: by place of a sheet, single weights that have factors of their own, and where these
            stand; what :meth:`finish` does otherwise, a pass in C does on its way.
        own: their :math:`b_e`, and their :math:`s_e^2` for a linear rule.
        is_native: whether steps can be taken by passes in C, where the weights allow it.
        is_wide: whether factors are so far from 1 that a step may overflow where gradients are
            finite; then the weights are looked at afterwards, and the step is undone.
    """

    source: Sequence[Tensor | None]
    target: Sequence[Tensor | None]
    back: tuple[Sequence[Tensor | None], ...] = ()
    apart: Mapping[int, tuple[Apart, Tensor]] = MappingProxyType({})
    own: tuple[Tensor, Tensor] | None = None
    is_native = True
    sheets: Sequence[Sheet] = ()
    is_wide = False

    def __init__(self, network: Network) -> None:
        self.network = network

    @abstractmethod
    def arrange(self, sheets: Sequence[Sheet], groups: Sequence[Group]) -> None:
        """Prepare for these sheets; called again when they change."""

    def is_plain(self, leaf: Leaf) -> bool:
        """Whether a leaf gets the plain rule: no weight of it meets a free scale."""
        return leaf.edge is None or not (leaf.edge.from_free or leaf.edge.into_free)

    def inspect(self, step: Step) -> bool:
        """Look at the gradients; whether they are finite."""
        if step.is_native:
            given = [gradient for gradient in step.gradients if gradient is not None]
            return math.isfinite(native.sums([native.Job(gradient) for gradient in given]))
        return is_finite(step.gradients)

    @abstractmethod
    def prepare(self, step: Step) -> None:
        """Renew the factors."""

    def penalty(self, batch: Batch) -> Sequence[Tensors]:
        """Factors: times the weights, what a regularizer of the space adds to the gradients."""
        return ()

    def parts(self, batch: Batch) -> Iterator[tuple[Batch, Later | None]]:
        """What passes in C step one after the other, and what finds factors on their way."""
        yield batch, None

    def finish(self, step: Step) -> None:  # noqa: B027 - most spaces have nothing left to do
        """What is left to do when all weights have been updated."""

    def out_of_range(self) -> OutOfRange:
        """What to say when factors overflow: a step would leave weights that are no numbers."""
        dtypes = ", ".join(sorted({str(sheet.dtype) for sheet in self.sheets}))
        return OutOfRange(
            f"the weights are scaled so differently that a step would leave the range of "
            f"{dtypes}; no weight has changed. Balance the network first (`pathspace.balance_`), "
            "or use a dtype with a larger range"
        )

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """What the space remembers between steps."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take it back."""


class Step:
    """What one step works on: sheets, their gradients, states and groups."""

    def __init__(
        self,
        optimizer: InvariantOptimizer,
        sheets: Sequence[Sheet],
        batches: Sequence[Batch],
        linear: bool,
        kernels: Kernels | None = None,
        is_fused: bool = False,
        is_native: bool = False,
    ) -> None:
        self.sheets, self.batches, self.linear = sheets, batches, linear
        self.kernels, self.is_fused, self.is_native = kernels or Kernels(), is_fused, is_native
        self.groups, self.rule = optimizer.param_groups, optimizer.rule
        self.states: list[State] = [{} for _ in sheets]
        self.weights = optimizer.weights
        self.gradients: list[Tensor | None] = [sheet.gradient() for sheet in sheets]
        self.is_complete = all(gradient is not None for gradient in self.gradients)
        self.is_weighed = False  # the gradients, by a space that does so
        self.resting: Tensor | None = None
        self._held: list[tuple[Tensor, Tensor]] = []
        self._kept: list[tuple[Tensor, Tensor]] = []
        self.space_before: dict[str, Any] | None = None

    def rest(self, copies: int) -> bool:
        """Let those of several networks rest whose gradients are not finite; if not all are such.

        Their gradients become 0, and :meth:`release` undoes what the step does to them.
        """
        bad = torch.zeros(copies, dtype=torch.bool, device=self.weights[0].device)
        for weight, gradient in zip(self.weights, self.gradients, strict=True):
            if gradient is not None and copies > 1:
                finite = gradient.sum(1).isfinite() & (weight * gradient).sum(1).isfinite()
                bad |= ~finite
        if copies == 1 or bool(bad.all()):
            return False
        self.resting = bad
        for place, gradient in enumerate(self.gradients):
            if gradient is not None:
                self.gradients[place] = gradient.masked_fill(bad[:, None], 0.0)
        return True

    def hold(self) -> None:
        """Remember weights and states of the networks that rest."""
        if self.resting is not None:
            self._held = [(matrix, matrix[self.resting]) for matrix in self._matrices()]

    def release(self) -> None:
        """Give the networks that rest what they had."""
        for matrix, rows in self._held:
            matrix[self.resting] = rows

    def keep(self, space: dict[str, Any] | None) -> None:
        """Remember all weights and states, and the state of the space, to undo the step."""
        self.space_before = space
        self._kept = [(matrix, matrix.clone()) for matrix in self._matrices()]

    def is_in_range(self) -> bool:
        """Whether all weights are numbers; nobody looks where nothing was kept."""
        return not self._kept or all(
            bool(leaf.parameter.isfinite().all()) for sheet in self.sheets for leaf in sheet.leaves
        )

    def undo(self) -> None:
        """Give all weights and states what they had."""
        for matrix, before in self._kept:
            matrix.copy_(before)
        for sheet in self.sheets:
            sheet.store()

    def _matrices(self) -> list[Tensor]:
        states = [m for state in self.states for name, m in state.items() if name != "step"]
        return [*self.weights, *states]

    def group(self, sheet: Sheet) -> Group:
        """The hyper-parameters of a sheet."""
        return self.groups[sheet.group]


def log_largest(sheets: Sequence[Sheet]) -> tuple[float, float]:
    """Logarithms of the largest numbers that all steps can be taken in, and all weights stored."""
    stored = {leaf.parameter.dtype for sheet in sheets for leaf in sheet.leaves}
    dtypes = ({sheet.dtype for sheet in sheets}, stored)
    steps, weights = (min((torch.finfo(d).max for d in some), default=1e38) for some in dtypes)
    return math.log(steps), math.log(weights)
