"""Which parameters an optimizer steps, and which edges of the network they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pathspace.errors import PathspaceError
from pathspace.network import Edge, Network
from pathspace.optim.sheets import Leaf


def make_leaves(network: Network, groups: Sequence[Mapping[str, Any]]) -> list[Leaf]:
    """The parameters of all groups that are to be stepped, by the names the network has for them.

    Raises:
        PathspaceError: one of them is not real, or none belongs to the network.
    """
    edges = {edge.parameter: edge for edge in network.edges}
    edge_of: dict[int, Edge] = {}
    name_of: dict[int, str] = {}
    for name, parameter in network.parameters().items():
        name_of.setdefault(id(parameter), name)
        if name in edges:
            name_of[id(parameter)] = name
            edge_of[id(parameter)] = edges[name]
    leaves, known = [], False
    for number, group in enumerate(groups):
        for place, parameter in enumerate(group["params"]):
            known |= id(parameter) in name_of
            if not parameter.requires_grad:
                continue
            name = name_of.get(id(parameter), f"parameter {place} of group {number}")
            if not parameter.is_floating_point():
                raise PathspaceError(
                    f"`{name}` is of {parameter.dtype}; only real weights can be stepped here, "
                    "leave it to another optimizer"
                )
            leaves.append(Leaf(parameter, name, number, edge_of.get(id(parameter))))
    if not known:
        raise PathspaceError(
            "none of these parameters belongs to network.model; trace the model whose "
            "parameters you pass, after moving or copying it"
        )
    return leaves
