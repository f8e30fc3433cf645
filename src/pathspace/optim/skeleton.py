"""The skeleton that training uses: of the graph of train mode, as far as weights may move."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from pathspace.network import Network
from pathspace.optim.representative import he_scales
from pathspace.skeleton import Choice, Skeleton, choose_edges, fill_edges, order_of_computation
from pathspace.weightgraph import WeightGraph, sum_to


def training_skeleton(
    network: Network, weights: Mapping[str, Tensor], relabel: Tensor, choice: Choice
) -> Skeleton:
    """A skeleton for all units that can have one; the edges of the others are -1.

    Without are units that count as pinned (``relabel`` is 0 for them, as where a frozen weight
    meets them), units in front of a batch norm, which no weight leaves, and dead ones, all of
    whose weights on one side are zero. They take part like pinned units: their weights are
    coordinates of their own.
    """
    kept = torch.where(_alive(network, weights, relabel)[relabel], relabel, 0)
    if bool((kept[1:] == 0).any()):  # these have a scale, which must not be seen
        weights = _representative(network, weights, (relabel > 0) & (kept == 0))
    while True:
        graph = WeightGraph(network, folded=False, relabel=kept)
        incoming = choose_edges(graph, dict(weights), "target", choice, None)
        outgoing = choose_edges(graph, dict(weights), "source", choice, None)
        missing = ((incoming < 0) | (outgoing < 0)) & (kept == torch.arange(len(kept)))
        missing[0] = False
        if not bool(missing.any()):
            return skeleton_of(graph, incoming, outgoing)
        kept = torch.where(missing[kept], 0, kept)


def _representative(
    network: Network, weights: Mapping[str, Tensor], dead: Tensor
) -> dict[str, Tensor]:
    """The weights in the representative of the network's class that steps are measured in.

    What leaves a dead unit is 0 there: nothing may enter the unit, and then it has any scale.
    """
    logs = he_scales(network.edges, weights, network.H + 1)
    scaled = {}
    for edge in network.edges:
        factor = edge.ratio(logs).exp() * ~dead[edge.source_scale]
        scaled[edge.parameter] = weights[edge.parameter] * factor.to(weights[edge.parameter])
    return {**weights, **scaled}


def _alive(network: Network, weights: Mapping[str, Tensor], relabel: Tensor) -> Tensor:
    """(H+1,) the scales that weights other than 0 enter and leave."""
    counts = torch.zeros(2, len(relabel), dtype=torch.long)
    for edge in WeightGraph(network, folded=False, relabel=relabel).edges:
        present = (weights[edge.parameter] != 0).cpu()
        for side, scales in enumerate((edge.target_scale, edge.source_scale)):
            found = sum_to(present.long(), scales.shape)
            counts[side].index_add_(0, scales.reshape(-1), found.reshape(-1))
    return (counts > 0).all(0)


def skeleton_of(graph: WeightGraph, incoming: Tensor, outgoing: Tensor) -> Skeleton:
    """The skeleton with these edges, -1 for units that have none."""
    parent = graph.places(incoming).ends()[0]
    child = graph.places(outgoing).ends()[1]
    return Skeleton(graph, incoming, outgoing, parent, child)


def rechosen(
    skeleton: Skeleton, weights: Mapping[str, Tensor], log_source: Tensor, units: Tensor
) -> Skeleton:
    """The skeleton with the largest in-edges for some units, where they are twice as large.

    Sizes are those after division by the factors of the weights' sources. A new in-edge must come
    from a unit that is computed earlier and must not be a free weight.
    """
    graph, outgoing = skeleton.graph, skeleton.outgoing
    rank = order_of_computation(graph, "target")
    bound = {name: tensor.clone() for name, tensor in weights.items()}
    graph.places(outgoing).put_(bound, torch.zeros(len(outgoing)))
    numbers = torch.where(units, -1, skeleton.incoming)
    for constant in (False, True):
        numbers = fill_edges(numbers, graph, bound, "target", rank, log_source, constant)
    sizes = []
    for chosen in (skeleton.incoming, numbers):
        places = graph.places(chosen)
        sizes.append(places.take(weights, 0.0).abs().log() - log_source[places.ends()[0]])
    better = (numbers >= 0) & units & (sizes[1] > sizes[0] + _CLEARLY)
    new = skeleton_of(graph, torch.where(better, numbers, skeleton.incoming), outgoing)
    return new if _is_forest(new.parent) else skeleton


def _is_forest(parent: Tensor) -> bool:
    """Whether following parents always ends at the pinned scale."""
    walk = parent
    for _ in range(len(parent).bit_length()):
        walk = walk[walk]
    return not bool(walk.any())


_CLEARLY = 0.6931471805599453  # a new in-edge must be twice as large as the old one
