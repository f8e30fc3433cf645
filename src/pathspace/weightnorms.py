"""Norms of the weights that are compared with the path norm; rescaling changes all of them.

Group norms over the incoming weights of units (weight decay and max-norm are two of them), (2,1)
norms and margins; spectral norms are in :mod:`pathspace.spectral`. "The weights" are those of
:class:`pathspace.weightgraph.WeightGraph`: batch norms are read in eval mode, as one
multiplication per channel and a bias.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from pathspace.errors import PathspaceError
from pathspace.network import Edge, Network
from pathspace.units import PINNED
from pathspace.weightgraph import WeightGraph

State = Mapping[str, Tensor]


def group_norm(
    network: Network,
    p: float = 2.0,
    q: float = 2.0,
    *,
    one_output_group: bool = False,
    log: bool = False,
    state: State | None = None,
) -> Tensor:
    r"""The q-norm over units of the p-norms of their incoming weights. Not rescaling-invariant.

    .. math:: \mu_{p,q}(w) = \Big(\sum_v \Big(\sum_{u \to v} |w_{uv}|^p\Big)^{q/p}\Big)^{1/q}

    Every unit is a group, free or pinned, with its bias; a shared weight (convolution) counts
    once, and the ones of a residual sum do not count. Weights that end at no unit of the graph,
    such as those of a layer norm, are one group per tensor. p = q = 2 is weight decay, q = ∞ the
    max-norm. Computed in float64 by two passes over the weights; each unit's weights are divided
    by the largest of them first, so that powers do not overflow. Differentiable with respect to
    ``state``.

    Args:
        network: the traced network.
        p: exponent within a group, 1 ≤ p ≤ ∞.
        q: exponent over groups, 1 ≤ q ≤ ∞.
        one_output_group: take all weights into output units (those whose values no further weight
            reads) as one group; Lemma 4.1 needs that if there are several outputs.
        log: return the natural logarithm, which does not overflow.
        state: parameters and buffers by name; by default the model's, without gradient.

    Returns:
        a float64 scalar.

    Example:
        >>> import torch, pathspace as ps
        >>> model = torch.nn.Linear(2, 2, bias=False)
        >>> with torch.no_grad():
        ...     _ = model.weight.copy_(torch.tensor([[3.0, 4.0], [0.0, 12.0]]))
        >>> network = ps.trace(model, torch.ones(1, 2))
        >>> float(ps.group_norm(network))  # √(5² + 12²)
        13.0
        >>> round(float(ps.group_norm(network, 2, float("inf"))), 6)  # max(5, 12)
        12.0

    Reference: Neyshabur et al. 2017, Eqs. (3) and (4).
    """
    for name, exponent in (("p", p), ("q", q)):
        if not exponent >= 1:
            raise ValueError(f"{name} must be at least 1, not {exponent}")
    graph = WeightGraph(network)
    logs = _log_incoming(
        network, graph.edges, graph.finite_weights(own_state(network, state)), p, one_output_group
    )
    if not len(logs):
        result = logs.new_tensor(-math.inf)
    else:
        result = logs.amax() if math.isinf(q) else (q * logs).logsumexp(0) / q
    return result if log else result.exp()


def max_norm(
    network: Network,
    p: float = 2.0,
    *,
    one_output_group: bool = False,
    log: bool = False,
    state: State | None = None,
) -> Tensor:
    r"""The largest p-norm of the incoming weights of a unit. Not rescaling-invariant.

    .. math:: \mu_{p,\infty}(w) = \max_v \Big(\sum_{u \to v} |w_{uv}|^p\Big)^{1/p}

    This is :func:`group_norm` with q = ∞. For a layered network of depth d without biases, its
    d-th power with ``one_output_group=True`` is at least the path norm :math:`\phi_p`, and equal
    to it after :func:`pathspace.balance_` with the same p.

    Args:
        network: the traced network.
        p: exponent, 1 ≤ p ≤ ∞.
        one_output_group: take all weights into output units as one group.
        log: return the natural logarithm.
        state: parameters and buffers by name; by default the model's, without gradient.

    Returns:
        a float64 scalar.

    Example:
        >>> import torch, pathspace as ps
        >>> model = torch.nn.Sequential(
        ...     torch.nn.Linear(3, 4, bias=False),
        ...     torch.nn.ReLU(),
        ...     torch.nn.Linear(4, 2, bias=False),
        ... ).double()
        >>> network = ps.balance_(ps.trace(model, torch.ones(1, 3).double()))
        >>> bound = ps.max_norm(network, one_output_group=True) ** 2
        >>> torch.allclose(bound, ps.path_norm(network))
        True

    Reference: Neyshabur et al. 2017, Eq. (4) and Lemma 4.1.
    """
    return group_norm(network, p, math.inf, one_output_group=one_output_group, log=log, state=state)


def weight_norm(
    network: Network, p: float = 2.0, *, log: bool = False, state: State | None = None
) -> Tensor:
    r"""The ℓp norm of all weights and biases. Not rescaling-invariant.

    .. math:: \|w\|_p = \Big(\sum_e |w_e|^p\Big)^{1/p} = \mu_{p,p}(w)

    For p = 2 the Frobenius norm of the whole network. Computed as :func:`group_norm` with q = p.

    Args:
        network: the traced network.
        p: exponent, 1 ≤ p ≤ ∞.
        log: return the natural logarithm.
        state: parameters and buffers by name; by default the model's, without gradient.

    Returns:
        a float64 scalar.

    Example:
        >>> import torch, pathspace as ps
        >>> model = torch.nn.Linear(2, 2)
        >>> network = ps.trace(model, torch.ones(1, 2))
        >>> vector = torch.nn.utils.parameters_to_vector(model.parameters())
        >>> torch.allclose(ps.weight_norm(network), vector.double().norm())
        True

    Reference: Neyshabur et al. 2017, Eq. (3) with p = q.
    """
    return group_norm(network, p, p, log=log, state=state)


def norm_21(
    network: Network, *, reference: State | None = None, state: State | None = None
) -> list[tuple[str, Tensor]]:
    r"""The (2,1) group norm of every layer's weights. Not rescaling-invariant.

    .. math:: \|A^T - M^T\|_{2,1} = \sum_v \Big(\sum_u (A_{vu} - M_{vu})^2\Big)^{1/2}

    The columns of the transposed matrix are the incoming weights of the units, so this is the sum
    over units of the 2-norms of their incoming weights. A convolution is the matrix (out,
    in·k·k) of its kernel, a batch norm the diagonal matrix of its factors; biases do not count.

    Args:
        network: the traced network.
        reference: the state that gives M, such as the one at initialisation; by default M = 0.
        state: parameters and buffers by name; by default the model's, without gradient.

    Returns:
        (name of the parameter, float64 scalar) for each tensor of weights that are not biases.

    Example:
        >>> import torch, pathspace as ps
        >>> model = torch.nn.Linear(2, 2)
        >>> with torch.no_grad():
        ...     _ = model.weight.copy_(torch.tensor([[3.0, 4.0], [0.0, 12.0]]))
        >>> [
        ...     (name, round(float(value), 6))
        ...     for name, value in ps.norm_21(ps.trace(model, torch.ones(1, 2)))
        ... ]
        [('weight', 17.0)]

    Reference: Bartlett, Foster and Telgarsky 2017, in the spectral complexity.
    """
    graph = WeightGraph(network)
    weights = graph.finite_weights(own_state(network, state))
    start = {} if reference is None else graph.finite_weights(reference)
    norms = []
    for edge in graph.edges:
        if edge.from_constant:
            continue
        weight = weights[edge.parameter]
        if reference is not None:
            weight = weight - start[edge.parameter].to(weight)
        logs = _log_incoming(network, [edge], {edge.parameter: weight}, 2.0)
        norms.append((edge.parameter, logs.exp().sum()))
    return norms


def margins(logits: Tensor, labels: Tensor) -> Tensor:
    r"""The margin of every sample: the score of its class less the largest other score.

    .. math:: f(x)_y - \max_{j \ne y} f(x)_j

    Rescaling-invariant, because the function is.

    Args:
        logits: (N, K) scores, K ≥ 2.
        labels: (N,) classes.

    Returns:
        (N,) margins; negative where the sample is misclassified.

    Example:
        >>> import torch, pathspace as ps
        >>> ps.margins(torch.tensor([[3.0, 1.0, 2.0], [0.0, 4.0, 1.0]]), torch.tensor([0, 2]))
        tensor([ 1., -3.])

    Reference: Bartlett, Foster and Telgarsky 2017.
    """
    if logits.dim() != 2 or logits.shape[1] < 2 or labels.shape != logits.shape[:1]:
        raise ValueError(
            "expected logits of shape (N, K) with K ≥ 2 and labels of shape (N,), not "
            f"{tuple(logits.shape)} and {tuple(labels.shape)}"
        )
    place = labels.long().unsqueeze(1)
    own = logits.gather(1, place).squeeze(1)
    return own - logits.scatter(1, place, -math.inf).amax(1)


# Incoming weights --------------------------------------------------------------------------------


def _log_incoming(
    network: Network,
    edges: tuple[Edge, ...] | list[Edge],
    weights: State,
    p: float,
    one_output_group: bool = False,
) -> Tensor:
    """The logarithms of the p-norms of the groups, without those that are zero."""
    units = len(network.scale)
    group = torch.arange(units)
    if one_output_group:
        outputs = _output_units(network)
        group[outputs] = group[outputs][:1]
    places, sizes = [], []
    device = None
    for k, edge in enumerate(edges):
        size = double(weights[edge.parameter]).abs()
        device = device or size.device
        place = torch.where(edge.target <= PINNED, units + k, group[edge.target])
        places.append(place.to(device))
        sizes.append(size.to(device))
    largest = torch.zeros(units + len(edges), dtype=torch.float64, device=device)
    for place, size in zip(places, sizes, strict=True):
        dims = _constant(place, size)
        top = size.amax(dims, keepdim=True) if dims else size
        index = place.expand(top.shape).reshape(-1)
        largest = largest.scatter_reduce(0, index, top.reshape(-1), "amax")
    if math.isinf(p):
        return largest[largest > 0].log()
    unit = largest.detach()
    unit = torch.where(unit > 0, unit, 1.0)
    total = torch.zeros_like(unit)
    for place, size in zip(places, sizes, strict=True):
        power = (size / unit[place]) ** p
        dims = _constant(place, size)
        power = power.sum(dims, keepdim=True) if dims else power
        total = total.index_add(0, place.expand(power.shape).reshape(-1), power.reshape(-1))
    filled = total > 0
    return unit[filled].log() + total[filled].log() / p


def _constant(place: Tensor, size: Tensor) -> list[int]:
    """The axes of a weight along which all entries belong to the same unit."""
    return [d for d, n in enumerate(place.shape) if n == 1 and size.shape[d] > 1]


def _output_units(network: Network) -> Tensor:
    """Whether a unit's value reaches no further weight, by unit."""
    read = torch.zeros(len(network.scale), dtype=torch.bool)
    for edge in network.edges:
        read[edge.source.reshape(-1)] = True
    for norm in network.normalizations:
        read[norm.input] = True
    for total, part in reversed(network.joins):  # a sum is read where its parts are, and back
        read[part[read[total]]] = True
    return ~read


# States ------------------------------------------------------------------------------------------


def own_state(network: Network, state: State | None) -> State:
    """The given state, or the model's own without gradients."""
    if state is not None:
        return state
    return {name: tensor.detach() for name, tensor in network.state().items()}


def double(tensor: Tensor) -> Tensor:
    """In float64, which the devices of type mps do not have."""
    device = torch.device("cpu") if tensor.device.type == "mps" else tensor.device
    return tensor.to(device, torch.float64)


def stacked(values: list[Tensor]) -> Tensor:
    """One vector of the values of all layers."""
    if not values:
        raise PathspaceError("this network has no layer with weights")
    return torch.stack([value.to(values[0].device) for value in values])
