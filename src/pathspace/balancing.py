r"""`balance`: the representative of a network's class whose units all have equal incoming norms.

With :math:`z_v = c_v^{-p}`, the incoming norm of unit v after rescaling is t if and only if
:math:`t^p z_v = \sum_{u \to v} |w_{uv}|^p z_u`, with z = 1 for everything pinned. The weights that
leave the free units for pinned ones form one more group, whose norm is t as well. Together: z is
the Perron vector of the non-negative matrix of all :math:`|w|^p` (everything pinned is one node of
it) and :math:`t^p` its eigenvalue. It is the smallest possible maximum of the incoming norms,
because the eigenvalue is the minimum of :math:`\max_v (Mz)_v / z_v` over all z > 0
(Collatz-Wielandt).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from pathspace.network import Edge, Network
from pathspace.perron import ScaleMatrix
from pathspace.rescalings import Rescaling, rescale_


def balance(network: Network, p: float = 2.0) -> Rescaling:
    r"""The rescaling that minimises the largest incoming norm :math:`\mu_{p,\infty}`.

    After it, the incoming weights (biases and batch-norm weights included) of every free unit have
    the same :math:`\ell_p` norm t, and so have the weights from these units into pinned ones taken
    together; units that share a scale are one group. For a layered network of depth d without
    biases, :math:`t^d` is the path norm :math:`\phi_p`. The result depends on the class of the
    network alone, not on its scaling. Parts of a network that only pinned units connect have a t
    each (units that one tensor of weights leads from into pinned ones belong together). Cost: some
    passes over the weights, in float64 and in logarithms: three for layers without biases, about
    ten more if the network is deep and has biases or shared streams.

    Scales that a batch norm with ``eps > 0`` divides out stay as they are, because moving them
    would change the function in train mode. So do scales that no non-zero weight reaches, for which
    no factor is best; what leaves their units is always zero, so these weights do not count. A part
    that no non-zero weight leaves gets t = 1.

    Args:
        network: the traced network.
        p: the exponent of the norm, 1 ≤ p < ∞.

    Example:
        >>> import torch, pathspace as ps
        >>> model = torch.nn.Sequential(
        ...     torch.nn.Linear(2, 3, bias=False),
        ...     torch.nn.ReLU(),
        ...     torch.nn.Linear(3, 1, bias=False),
        ... )
        >>> network = ps.balance_(ps.trace(model, torch.ones(1, 2)))
        >>> incoming = model[0].weight.norm(dim=1)
        >>> torch.allclose(incoming, model[2].weight.norm().expand(3))
        True

    Reference: Neyshabur et al. 2017, Lemma 4.1.
    """
    movable = torch.cat([torch.tensor([False]), network.exact])
    return Rescaling(network, balance_weights(network.edges, network.parameters(), movable, p))


def balance_(network: Network, p: float = 2.0) -> Network:
    """Balance the model's own weights in place; the function is kept. See :func:`balance`."""
    return rescale_(network, balance(network, p))


def balance_weights(
    edges: Sequence[Edge], weights: Mapping[str, Tensor], movable: Tensor, p: float = 2.0
) -> Tensor:
    """The logarithms of the balancing scales of any weighted graph.

    Args:
        edges: the edges, in the order in which the network computes.
        weights: the weights by name.
        movable: (H+1,) which scales may move; scale 0 may not.
        p: the exponent of the norm.

    Returns:
        (H,) logarithms, 0 for scales that may not move.
    """
    if not 1 <= p < math.inf:
        raise ValueError(f"p must be at least 1 and finite, not {p}")
    return -ScaleMatrix(edges, weights, movable, p).solve()[1:] / p
