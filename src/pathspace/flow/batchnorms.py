"""The batch norms of a program, to be folded all together.

A deep network has one behind every layer, and folding each of them is a dozen operations on short
vectors: it is calls that take time. So their statistics and parameters are put in a row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pathspace.network import Node, StateRef
from pathspace.tracing.reading import needed, refs

NAMES = ("running_mean", "running_var", "weight", "bias", "training", "momentum", "eps")


@dataclass(frozen=True)
class BatchNorm:
    """What one batch norm reads.

    Attributes:
        place: of its node.
        parts: mean, variance, weight, bias and the bias in front of it that it absorbs; those that
            there are, each a reference or a tensor.
        eps: is added to the variance.
        is_read: whether an output of the program depends on it.
    """

    place: int
    parts: Mapping[str, StateRef | Tensor]
    eps: float
    is_read: bool

    @classmethod
    def of(cls, node: Node, place: int, absorbed: Mapping[int, str], is_read: bool) -> BatchNorm:
        """That of a node."""
        given = dict(zip(NAMES, node.args[1:], strict=False)) | node.kwargs
        parts = {key: given[key] for key in NAMES[:4] if given.get(key) is not None}
        if place in absorbed:
            parts["absorbed"] = StateRef(absorbed[place])
        return cls(place, parts, given.get("eps", 1e-5), is_read)

    def name(self, key: str) -> str:
        """The name of a part in the state of the model; empty if it has none."""
        part = self.parts.get(key)
        return part.name if isinstance(part, StateRef) else ""

    def tensor(self, key: str, state: Mapping[str, Tensor]) -> Tensor | None:
        """A part."""
        part = self.parts.get(key)
        return state[part.name] if isinstance(part, StateRef) else part


class BatchNorms:
    """Those of a program that can be folded: that have running statistics.

    Args:
        nodes: the operations.
        outputs: where the outputs come from.
        absorbed: by the place of a batch norm, the name of the bias in front of it.
    """

    def __init__(
        self, nodes: Sequence[Node], outputs: Sequence[Any], absorbed: Mapping[int, str]
    ) -> None:
        read = needed(nodes, (ref.node for ref in refs(outputs)))
        found = [
            BatchNorm.of(node, place, absorbed, place in read)
            for place, node in enumerate(nodes)
            if node.operation == "batch_norm"
        ]
        self.norms = [n for n in found if {"running_mean", "running_var"} <= n.parts.keys()]
        self._channels: list[int] = []

    def sizes(self, state: Mapping[str, Tensor]) -> list[int]:
        """How many channels each of them has."""
        if not self._channels:
            means = [norm.tensor("running_mean", state) for norm in self.norms]
            self._channels = [mean.numel() for mean in means if mean is not None]
        return self._channels

    def eps(self, state: Mapping[str, Tensor], like: Tensor) -> float | Tensor:
        """What is added to all variances, or to each of them."""
        numbers = [norm.eps for norm in self.norms]
        if len(set(numbers)) == 1:
            return numbers[0]
        counts = torch.tensor(self.sizes(state))
        return torch.tensor(numbers, dtype=torch.float64).repeat_interleave(counts).to(like)

    def row(
        self, key: str, fill: float, state: Mapping[str, Tensor], dtype: torch.dtype
    ) -> Tensor | None:
        """One part of all of them in a row, with ``fill`` for those that have none.

        ``None`` if none has it.
        """
        found = [norm.tensor(key, state) for norm in self.norms]
        given = [part for part in found if part is not None]
        if not given:
            return None
        if len(given) < len(found):
            given = [
                given[0].new_full((size,), fill) if part is None else part
                for part, size in zip(found, self.sizes(state), strict=True)
            ]
        return torch.cat([part.to(dtype) for part in given])


def folded(
    weight: Tensor | None,
    bias: Tensor | None,
    absorbed: Tensor | None,
    mean: Tensor,
    inverse: Tensor,
) -> Tensor:
    r"""The folded bias :math:`\beta + (b - \mu)\gamma/\sqrt{\sigma^2+\varepsilon}`.

    Args:
        weight: γ.
        bias: β.
        absorbed: b.
        mean: μ.
        inverse: :math:`1/\sqrt{\sigma^2+\varepsilon}`.
    """
    scale = inverse if weight is None else inverse * weight
    centre = -mean if absorbed is None else absorbed - mean
    return centre * scale if bias is None else torch.addcmul(bias, centre, scale)
