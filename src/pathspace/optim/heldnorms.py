r"""Norms of what enters batch norms, held where they were when training began.

What enters a batch norm has a scale that nothing compensates and that the batch norm divides out.
Its gradient is perpendicular to it, so every step makes it longer, and a step whose length is a
share of the present norm makes it longer by a factor: after some ten thousand steps it leaves the
range of its dtype. Since the norm means nothing, a step may rescale it: weights become

.. math:: w_e \leftarrow b_e\,(w_e - \eta\, s_e u_e), \qquad
    b_e = c(v)/c(u), \quad c(v) = \|w_{in}(v)\|_{\text{start}} / \|w_{in}(v)\|

for e = u → v, and c = 1 for all units that no batch norm reads. The norm is that before the step,
which has to be known in any case, of weights whose sources are scaled as in
:mod:`pathspace.optim.representative`. All this is a rescaling: it does not touch the function in
train mode. Running statistics follow as they follow any step.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from pathspace.network import Network
from pathspace.optim.scaletables import Table
from pathspace.optim.sheets import SIDES, Sheet


class HeldNorms:
    """The factors b of a network.

    Args:
        network: the traced network.

    Attributes:
        back: the parts of b, by side and by sheet.
        start: (H+1,) logarithms of the scales of He at the start; ``None`` before the first step.
    """

    def __init__(self, network: Network) -> None:
        self.network = network
        self.start: Tensor | None = None
        self.back: tuple[Sequence[Tensor | None], ...] = ()
        self._tables: list[tuple[float, Table]] = []

    def arrange(self, sheets: Sequence[Sheet]) -> None:
        """Prepare for these sheets; weights that are not among them hold their units."""
        trained = {leaf.name for sheet in sheets for leaf in sheet.leaves}
        read = self._read()
        for edge in self.network.edges:
            if edge.parameter not in trained:
                for side in SIDES:
                    read[edge.scale(side).reshape(-1)] = False
        self._tables = []
        for side, sign in zip(SIDES, (-1.0, 1.0), strict=True):
            scales = [sheet.scales(side) for sheet in sheets]
            index = [torch.where(read[one], one, 0) for one in scales]
            if any(bool(one.any()) for one in index):
                some = [one if bool(one.any()) else None for one in index]
                self._tables.append((sign, Table(sheets, some)))
        self.back = tuple(table.parts for _, table in self._tables)

    def _read(self) -> Tensor:
        """The scales that batch norms divide out."""
        read = torch.zeros(self.network.H + 1, dtype=torch.bool)
        for norm in self.network.normalizations:
            read[norm.input_scale.reshape(-1)] = True
        read[0] = False
        return read

    def renew(self, logs: Tensor | None) -> None:
        """Write the factors.

        Args:
            logs: the logarithms of the scales of He now; ``None`` if all factors are to be 1.
        """
        if not self._tables:
            return
        change = torch.zeros(self.network.H + 1, dtype=torch.float64)
        if logs is not None:
            self.start = logs.clone() if self.start is None else self.start
            change = logs - self.start
            change[0] = 0.0
        for sign, table in self._tables:
            table.fill((sign * change).exp_())

    def is_possible(self) -> bool:
        """Whether all batch norms divide by what their batches give: are modules that train."""
        modules = dict(self.network.model.named_modules())
        found = [modules.get(norm.layer) for norm in self.network.normalizations]
        return all(isinstance(one, _BatchNorm) and one.training for one in found)
