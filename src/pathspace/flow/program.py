"""The recorded program for one sample, and when its values are not needed any more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch

from pathspace.absorption import Absorption
from pathspace.network import InputSpec, Network, Node, Ref, StateRef
from pathspace.tracing import trace
from pathspace.tracing.reading import names, refs
from pathspace.tracing.values import leaves, map_leaves

T = TypeVar("T")
WORTH = 2**21  # scalars: it takes about as long to read them as to find out what to do with them


@dataclass(frozen=True)
class Program:
    """The operations of a network on a single sample.

    Attributes:
        nodes: the operations, in order.
        unused: for each of them the values that none behind it reads.
        inputs: shapes and dtypes of the inputs.
        outputs: where the outputs come from; an input that is returned as it is is one.
        waist: the place of a linear map that all paths go through, such that its weight is much
            larger than all behind it, and worth being read once instead of twice.
        repeated: the names of parameters and buffers that are read in several places.
        absorption: the biases that are part of batch norms.
        kept: what :meth:`keep` has made.
    """

    nodes: tuple[Node, ...]
    unused: tuple[tuple[Ref, ...], ...]
    inputs: list[InputSpec]
    outputs: list[Ref | StateRef]
    waist: int | None
    repeated: frozenset[str]
    absorption: Absorption

    kept: dict[Any, Any] = field(default_factory=dict, compare=False, repr=False)

    def keep(self, key: object, make: Callable[[], T]) -> T:
        """What follows from the program alone: made when it is first asked for."""
        if key not in self.kept:
            self.kept[key] = make()
        found: T = self.kept[key]
        return found

    @classmethod
    def of(cls, network: Network) -> Program:
        """That of a network, however many samples it was traced with; found once."""
        found: Program | None = network.__dict__.get("_program_of_one")
        if found is None:
            found = cls._read(_with_one_sample(network))
            network.__dict__["_program_of_one"] = found
        return found

    @classmethod
    def _read(cls, network: Network) -> Program:
        reads = [list(refs((node.args, node.kwargs))) for node in network.program]
        outputs = list(refs(network.outputs))
        last = {ref.node: place for place, read in enumerate(reads) for ref in read}
        last |= dict.fromkeys((ref.node for ref in outputs), len(reads))
        unused = (
            tuple(ref for ref in read if last[ref.node] == place)
            for place, read in enumerate(reads)
        )
        ends = [leaf for leaf in leaves(network.outputs) if _is_end(leaf)]
        waist = _waist(network, reads, outputs) if len(ends) == len(outputs) else None
        uses = Counter(name for node in network.program for name in names((node.args, node.kwargs)))
        repeated = frozenset(name for name, count in uses.items() if count > 1)
        return cls(
            nodes=tuple(network.program),
            unused=tuple(unused),
            inputs=_specs(network),
            outputs=ends,
            waist=waist,
            repeated=repeated,
            absorption=Absorption.of(network),
        )


def _waist(network: Network, reads: list[list[Ref]], outputs: list[Ref]) -> int | None:
    """The linear map that is worth most; what it saves, the part behind it costs twice."""
    sizes = {name: tensor.numel() for name, tensor in network.state().items()}
    best, saved = None, WORTH
    behind, first = 0, min(ref.node for ref in outputs) if outputs else -1
    for place in range(len(reads) - 1, -1, -1):
        node = network.program[place]
        read = list(names((node.args, node.kwargs)))
        weight = node.args[1] if len(node.args) > 1 else None
        if node.operation == "linear" and isinstance(weight, StateRef) and first >= place:
            gain = sizes.get(weight.name, 0) - 2 * behind
            best, saved = (place, gain) if gain > saved else (best, saved)
        behind += sum(sizes.get(name, 0) for name in read)
        first = min([first, *(ref.node for ref in reads[place])])
        if any(name.startswith("input ") for name in read):
            break  # paths may start here
    return best


def _with_one_sample(network: Network) -> Network:
    """The same network, traced again if it was traced with several samples."""
    if all(spec.shape[:1] == (1,) for spec in _specs(network)):
        return network
    device = next((p.device for p in network.model.parameters()), torch.device("cpu"))

    def example(leaf: Any) -> Any:
        if not isinstance(leaf, InputSpec):
            return leaf
        shape = (1, *leaf.shape[1:]) if leaf.shape else ()
        return torch.zeros(shape, dtype=leaf.dtype, device=device)

    args, kwargs = (map_leaves(example, part) for part in network.inputs)
    if kwargs and args:
        return network
    return trace(network.model, kwargs or args, streams=network.streams)


def _specs(network: Network) -> list[InputSpec]:
    return [leaf for leaf in leaves(network.inputs) if isinstance(leaf, InputSpec)]


def _is_end(leaf: Any) -> bool:
    """Whether paths end here, those without a weight among them."""
    return isinstance(leaf, Ref) or (isinstance(leaf, StateRef) and leaf.name.startswith("input "))
