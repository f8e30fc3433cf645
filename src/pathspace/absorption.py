r"""Biases that are part of the batch norm behind them, use by use.

A layer that feeds nothing but batch norms adds its bias b to what they read, so that only
:math:`\beta + (b - \mu)\gamma/\sqrt{\sigma^2+\varepsilon}` is a constant of the network in eval
mode: the bias that fusing the layer with the batch norm gives. A layer that is used twice may have
a batch norm behind one use only, and a batch norm that is used twice another bias in front of each.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from pathspace.network import Network, Node
from pathspace.tracing.reading import names, needed, refs


@dataclass(frozen=True)
class Absorption:
    """Which biases of a program batch norms absorb.

    Attributes:
        uses: place and name: the operations that add such a bias, and the bias.
        norms: by place of a batch norm: the bias that is part of its own.
        alone: those of them where neither bias nor batch norm is used in another way, so that the
            one parameter stands for both.
    """

    uses: frozenset[tuple[int, str]]
    norms: Mapping[int, str]
    alone: Mapping[int, str]

    @classmethod
    def of(cls, network: Network) -> Absorption:
        """That of a network; found once."""
        found: Absorption | None = network.__dict__.get("_absorption")
        if found is None:
            found = network.__dict__["_absorption"] = cls._find(network)
        return found

    @classmethod
    def _find(cls, network: Network) -> Absorption:
        if not network.normalizations:
            return cls(frozenset(), {}, {})
        inputs = {norm.place: norm.input for norm in network.normalizations if norm.mean}
        readers = Readers(network)
        uses: dict[tuple[int, str], list[int]] = {}
        absorbing: dict[int, str] = {}
        for place, name, target in network.additions:
            if name not in names(_summands(network.program[place])):
                continue
            behind = readers.batch_norms(place)
            units = target.reshape(-1)
            if behind and all(
                n in inputs and n not in absorbing and torch.equal(units, inputs[n]) for n in behind
            ):
                uses[place, name] = behind
                absorbing |= dict.fromkeys(behind, name)
        return cls(frozenset(uses), absorbing, _alone(network, uses, readers.live))


class Readers:
    """Which operations of a program read the result of which, as far as outputs depend on them."""

    def __init__(self, network: Network) -> None:
        self.nodes = network.program
        self.ends = {ref.node for ref in refs(network.outputs)}
        self.live = needed(self.nodes, self.ends)
        self.readers: dict[int, list[int]] = defaultdict(list)
        for place in sorted(self.live):
            for ref in refs((self.nodes[place].args, self.nodes[place].kwargs)):
                self.readers[ref.node].append(place)

    def batch_norms(self, place: int) -> list[int]:
        """The batch norms that read a result, if nothing else does; movements may lie between.

        Behind a ReLU or a factor the sum of the two constants is another one.
        """
        found, moved = [], [place]
        while moved:
            place = moved.pop()
            if place in self.ends:
                return []
            for reader in self.readers[place]:
                operation = self.nodes[reader].operation
                if operation == "batch_norm":
                    found.append(reader)
                elif operation in _MOVEMENTS:
                    moved.append(reader)
                else:
                    return []
        return found


def _alone(
    network: Network, uses: Mapping[tuple[int, str], list[int]], places: Iterable[int]
) -> dict[int, str]:
    """The batch norms that are used once, with a bias that they alone absorb all uses of."""
    count = Counter(norm.mean for norm in network.normalizations)
    single = {n.place for n in network.normalizations if count[n.mean] == 1 and n.bias is not None}
    nodes = (network.program[place] for place in places)
    reads = Counter(name for node in nodes for name in names((node.args, node.kwargs)))
    for (_, name), behind in uses.items():
        if single.issuperset(behind):
            reads[name] -= 1
    return {
        place: name for (_, name), behind in uses.items() if not reads[name] for place in behind
    }


def _summands(node: Node) -> Any:
    """What an operation adds to its result as it is; a weight is no such thing."""
    if node.operation == "linear" or node.operation.startswith("conv"):
        return (*node.args[2:3], node.kwargs.get("bias"))
    if node.operation == "add" and not node.kwargs:
        return node.args
    return ()


# Operations that leave all values as they are (dropout in eval mode).
_MOVEMENTS = frozenset(
    """
    dropout dropout1d dropout2d dropout3d feature_dropout contiguous clone detach to type type_as
    float double half bfloat16 view reshape flatten unflatten squeeze unsqueeze permute transpose
    movedim moveaxis swapaxes swapdims
    """.split()
)
