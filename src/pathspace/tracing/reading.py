"""What the operations of a recorded program read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from pathspace.network import Node, Ref, StateRef
from pathspace.tracing.values import leaves


def refs(tree: Any) -> Iterator[Ref]:
    """The results of operations in nested arguments."""
    return (leaf for leaf in leaves(tree) if isinstance(leaf, Ref))


def names(tree: Any) -> Iterator[str]:
    """The names of inputs, parameters and buffers in nested arguments."""
    return (leaf.name for leaf in leaves(tree) if isinstance(leaf, StateRef))


def needed(nodes: Sequence[Node], places: Iterable[int]) -> set[int]:
    """These places, and those of all operations that they depend on."""
    found = set(places)
    for place in range(len(nodes) - 1, -1, -1):
        if place in found:
            found |= {ref.node for ref in refs((nodes[place].args, nodes[place].kwargs))}
    return found
