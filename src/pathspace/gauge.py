"""Entering basis-path space: by a rescaling that keeps the function, or as the papers do."""

from __future__ import annotations

import torch

from pathspace.basis import BasisPaths
from pathspace.network import Network
from pathspace.rescalings import rescale_
from pathspace.skeleton import Choice, Skeleton


def gauge_(network: Network, choice: Choice | Skeleton = "modulo") -> BasisPaths:
    """Rescale the model in place so that all free skeleton weights are ±1; keeps the function.

    The gains of batch norms, which are the free weights of the units before them, stay as they
    are (see :meth:`BasisPaths.gauge`), so that the function is kept in train mode too.

    Returns:
        the basis paths for that skeleton.
    """
    basis = BasisPaths(network, choice)
    rescale_(network, basis.gauge())
    return basis


def skeleton_init_(
    network: Network, choice: Choice | Skeleton = "modulo", value: float = 1.0
) -> BasisPaths:
    """Set all skeleton weights to 1, as the papers initialise: this changes the function.

    It is the papers' initialisation for G-SGD and not a rescaling: it overwrites the weights of
    the in-edges and out-edges (batch-norm weights, which the papers leave alone, are not touched).
    To enter basis-path space with the function you have, use :func:`gauge_`.

    Reference: Meng et al. 2019, section 11.3.
    """
    basis = BasisPaths(network, choice)
    graph = basis.graph
    state = network.state()
    chosen = torch.unique(torch.cat([basis.skeleton.incoming[1:], basis.skeleton.outgoing[1:]]))
    places = graph.places(chosen)
    with torch.no_grad():
        for block in places.blocks:
            name = graph.edges[block.edge].parameter
            if name not in graph.norms:
                state[name][tuple(i.to(state[name].device) for i in block.index)] = value
    return basis
