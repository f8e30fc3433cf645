r"""Scales on loops: shared streams, weights that are used repeatedly.

With y = log z, the equations of a part are :math:`y_v + \log\lambda = \log(b_v + \sum_u M_{vu}
e^{y_u})` and :math:`\log\lambda = \log \sum_u o_u e^{y_u}`. For given y, the largest difference of
right and left sides without :math:`\log\lambda` bounds it from above (Collatz-Wielandt), and two
kinds of steps lower that bound:

* Newton's. The derivatives P of the right sides are shares: non-negative, with sums of at most 1
  along each row. Near the solution every step doubles the digits; far away, where shares of a loop
  are 1 up to rounding, a step may lead anywhere.
* Noda's, which is one of inverse iteration with the bound as shift: :math:`\log\lambda` of it is
  always less, wherever it begins, but it may take many steps to come near.

So Newton's steps are taken as long as they lower the bound, apart from a few of the first ones, and
Noda's where they do not.

Reference: T. Noda, Note on the computation of the maximal eigenvalue of a non-negative irreducible
matrix, Numerische Mathematik 17 (1971).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pathspace.errors import RescalingError
from pathspace.scaleflow import Flow
from pathspace.scalelinear import LinearFlow

STEPS = 1000
PATIENCE = 5  # so many of Newton's first steps need not lower the bound
FAR = 100.0  # Newton's steps of the logarithms that are longer are not to be trusted


def solve_loops(flow: Flow, log_z: Tensor) -> tuple[Tensor, Tensor]:
    """Log z and log λ, from any start.

    Raises:
        RescalingError: if the steps do not settle, with the weights that hold them up.
    """
    here = lowest = _Point(flow, log_z)
    before, patience = math.inf, PATIENCE
    for _ in range(STEPS):
        change, growth = here.newton()
        size = float(change.abs().max())
        if _is_settled(here.log_z, size, before):
            return here.log_z + change, here.leaving + growth
        there = _Point(flow, here.log_z + change) if size < FAR else None  # not if it is NaN
        if there is not None and bool((there.bound <= lowest.bound + 1e-9).all()):
            here = lowest = there
        elif there is not None and patience:
            here, patience = there, patience - 1
        else:
            here = lowest = _Point(flow, lowest.log_z + lowest.noda())
            size, patience = math.inf, 0
        before = size
    worst = int(here.missing.abs().argmax())
    names = [block.name for block in flow.blocks if bool((block.target == worst).any())]
    raise RescalingError(
        f"no balanced weights found in {STEPS} steps: what enters the units of "
        f"`{', '.join(names)}` does not settle; the sizes of weights on a loop are too uneven. "
        'Trace with streams="pinned", which cuts streams into parts, or balance by hand first'
    )


def rise_in_loops(flow: Flow, log_z: Tensor) -> Tensor | None:
    """Log z at λ = 1, from a start below it; ``None`` if loops grow without end.

    From below no step of Newton's is too long, so one without limit means: there is no solution.
    """
    before = math.inf
    for _ in range(STEPS):
        change, _ = _Point(flow, log_z).newton()
        size = float(change.abs().max())
        if not size < FAR:  # NaN too
            break
        log_z = log_z + change
        if _is_settled(log_z, size, before):
            return log_z
        before = size
    return None


class _Point:
    """The equations at some z, and the steps from there.

    Attributes:
        missing: (H+1,) what the right sides exceed the left sides by.
        leaving: (parts,) log of what leaves: the λ of this z.
        bound: (parts,) the upper bound of log λ.
    """

    def __init__(self, flow: Flow, log_z: Tensor) -> None:
        self.flow, self.log_z = flow, log_z
        self.total = flow.inflow
        for block in flow.blocks:
            self.total = torch.logaddexp(self.total, block.times(log_z))
        leaving = flow.leaving(log_z)
        self.leaving = torch.where(leaving > -math.inf, leaving, 0.0)  # else λ = 1
        growth = torch.where(flow.scales, self.total - log_z, -math.inf)
        self.bound = self.leaving.scatter_reduce(0, flow.part, growth, "amax")
        self.missing = torch.where(flow.scales, growth - self.leaving[flow.part], 0.0)

    def newton(self) -> tuple[Tensor, Tensor]:
        r"""The changes d of log z, and those of log λ: :math:`d = F + P d - \delta`.

        F is what is missing, P are the shares of weights in what enters, and :math:`\delta` is the
        sum of d over what leaves, weighted by shares.
        """
        minus = torch.full_like(self.missing, -1.0)
        linear = LinearFlow(self.flow, self.log_z, self.total, self.leaving)
        return linear.solve(self.missing, minus, torch.zeros_like(self.leaving))

    def noda(self) -> Tensor:
        r"""The change of log z to :math:`(\bar\lambda - M)^{-1} z` with the upper bound of λ.

        Where rounding spoils it, it is half the change of a plain iteration.
        """
        bound = self.bound + 1e-13 * (1 + self.bound.abs())  # a loop that has settled is singular
        enters = self.log_z + bound[self.flow.part]
        linear = LinearFlow(self.flow, self.log_z, enters, bound)
        from_pinned = (self.flow.inflow - enters).exp()
        x, x_0 = linear.solve(torch.ones_like(enters), from_pinned, torch.ones_like(bound))
        x = torch.where(self.flow.scales, x / x_0[self.flow.part], 1.0)
        return x.log() if bool((x > 0).all()) else self.missing / 2


def _is_settled(log_z: Tensor, size: float, before: float) -> bool:
    """Whether the next change would be of the order of rounding errors, or this one is."""
    return size <= 1e-9 * (1 + float(log_z.abs().max())) or before / 2 < size < 1e-6
