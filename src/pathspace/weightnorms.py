"""Norms of the weights that are compared with the path norm; rescaling changes all of them.

Group norms over the incoming weights of units (weight decay and max-norm are two of them), the
spectral norms of the layers, and the spectral complexity that is made of them. "The weights" are
those of :class:`pathspace.weightgraph.WeightGraph`: batch norms are read in eval mode, as one
multiplication per channel and a bias.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pathspace.errors import PathspaceError
from pathspace.network import Edge, InputSpec, Network, Node, Ref, StateRef
from pathspace.tracing.values import leaves, map_leaves
from pathspace.units import PINNED
from pathspace.weightgraph import WeightGraph, gain

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
        >>> from pathspace.weightnorms import group_norm
        >>> model = torch.nn.Linear(2, 2, bias=False)
        >>> with torch.no_grad():
        ...     _ = model.weight.copy_(torch.tensor([[3.0, 4.0], [0.0, 12.0]]))
        >>> network = ps.trace(model, torch.ones(1, 2))
        >>> float(group_norm(network))  # √(5² + 12²)
        13.0
        >>> round(float(group_norm(network, 2, float("inf"))), 6)  # max(5, 12)
        12.0

    Reference: Neyshabur et al. 2017, Eqs. (3) and (4).
    """
    for name, exponent in (("p", p), ("q", q)):
        if not exponent >= 1:
            raise ValueError(f"{name} must be at least 1, not {exponent}")
    graph = WeightGraph(network)
    logs = _log_incoming(
        network, graph.edges, graph.weights(_state(network, state)), p, one_output_group
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
        >>> from pathspace.weightnorms import max_norm
        >>> model = torch.nn.Sequential(
        ...     torch.nn.Linear(3, 4, bias=False),
        ...     torch.nn.ReLU(),
        ...     torch.nn.Linear(4, 2, bias=False),
        ... ).double()
        >>> network = ps.balance_(ps.trace(model, torch.ones(1, 3).double()))
        >>> bound = max_norm(network, one_output_group=True) ** 2
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
        >>> from pathspace.weightnorms import weight_norm
        >>> model = torch.nn.Linear(2, 2)
        >>> network = ps.trace(model, torch.ones(1, 2))
        >>> vector = torch.nn.utils.parameters_to_vector(model.parameters())
        >>> torch.allclose(weight_norm(network), vector.double().norm())
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
        >>> from pathspace.weightnorms import norm_21
        >>> model = torch.nn.Linear(2, 2)
        >>> with torch.no_grad():
        ...     _ = model.weight.copy_(torch.tensor([[3.0, 4.0], [0.0, 12.0]]))
        >>> [
        ...     (name, round(float(value), 6))
        ...     for name, value in norm_21(ps.trace(model, torch.ones(1, 2)))
        ... ]
        [('weight', 17.0)]

    Reference: Bartlett, Foster and Telgarsky 2017, Eq. (1.2).
    """
    graph = WeightGraph(network)
    weights = graph.weights(_state(network, state))
    start = {} if reference is None else graph.weights(reference)
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


class SpectralNorm(NamedTuple):
    """The spectral norm of one layer.

    Attributes:
        parameter: name of the layer's weight.
        value: the norm, a float64 scalar.
        error: relative size of what the iteration left: the interval ``value * (1 ± error)``
            holds a singular value. 0 where the norm comes from a factorisation.
    """

    parameter: str
    value: Tensor
    error: float


def spectral_norms(
    network: Network, *, exact: bool = True, state: State | None = None
) -> list[SpectralNorm]:
    r"""The spectral norm of every layer, in the order of computation. Not rescaling-invariant.

    .. math:: \|A\|_\sigma = \max_{x \ne 0} \frac{\|A x\|_2}{\|x\|_2}

    For a linear map the largest singular value of its matrix; for a convolution the norm of the
    map from its whole input to its whole output, at the size that the network was traced with (its
    zero padding, stride, dilation and groups included; any other padding is an operation of its
    own and does not count); for a batch norm, and for a product with a parameter, the largest
    factor. Biases do not count. A layer that is used twice is listed twice.

    Convolutions and large matrices A are applied, not written down: restarted Lanczos iteration on
    :math:`A^T A` in float64 from a fixed random start, until the residual
    :math:`\|A^T A x - \lambda x\| / \lambda` is below 1e-8, or below 1e-4 and λ (whose error is
    of the order of its square) does not change by more than 1e-12 any more. That it stopped
    earlier is seen in :attr:`SpectralNorm.error`. The model itself is not run.
    Differentiable with respect to ``state``.

    Args:
        network: the traced network.
        exact: ``False`` takes the matrix (out, in·k·k) of a convolution's kernel instead (as it is
            stored, so (in, out·k·k) for a transposed one): cheaper, and often used, but neither
            the norm of the map nor a bound on it.
        state: parameters and buffers by name; by default the model's, without gradient.

    Returns:
        one :class:`SpectralNorm` per layer, to be unpacked as (parameter, value, error).

    Raises:
        PathspaceError: for weights in an operation whose norm is not known here, naming it.

    Example:
        >>> import torch, pathspace as ps
        >>> from pathspace.weightnorms import spectral_norms
        >>> model = torch.nn.Conv1d(1, 1, 2, bias=False)
        >>> _ = torch.nn.init.ones_(model.weight)
        >>> network = ps.trace(model, torch.ones(1, 1, 3))
        >>> [(name, value, _)] = spectral_norms(network)  # [[1, 1, 0], [0, 1, 1]]
        >>> round(float(value) ** 2, 6)
        3.0
        >>> [(name, value, _)] = spectral_norms(network, exact=False)  # [[1, 1]]
        >>> round(float(value) ** 2, 6)
        2.0

    Reference: Bartlett, Foster and Telgarsky 2017, Eq. (1.2).
    """
    state = _state(network, state)
    edges = {edge.parameter: edge for edge in network.edges if not edge.from_constant}
    names = network.names()
    alias = {other: name for name in edges for other in names.get(name, [name])}
    folded = WeightGraph(network).norms.values()  # says so if a batch norm cannot be folded
    batch_norms = {norm.variance: norm for norm in folded}
    shapes = _input_shapes(network) if exact else {}
    norms, seen = [], set()
    for place, node in enumerate(network.program):
        if node.operation == "batch_norm":
            read = [leaf.name for leaf in leaves((node.args, node.kwargs)) if _is_state(leaf)]
            for norm in (batch_norms[name] for name in read if name in batch_norms):
                key = norm.weight or norm.variance
                assert key is not None
                norms.append(SpectralNorm(key, _double(gain(norm, state)).abs().amax(), 0.0))
            continue
        for name in _weights_of(network, node):
            if name not in alias:
                continue
            seen.add(alias[name])
            weight = _double(state[name])
            if not bool(weight.isfinite().all()):
                raise PathspaceError(f"`{name}` has entries that are not finite")
            value, error = _layer_norm(node, name, weight, shapes.get(place))
            norms.append(SpectralNorm(alias[name], value, error))
    missing = [name for name in edges if name not in seen]
    if missing:
        raise PathspaceError(
            f"`{missing[0]}` is not used by a linear map, a convolution or a batch norm directly "
            "(a view or a function of it is), so its spectral norm is not known; measure the "
            "part of the model before or behind it"
        )
    return norms


def spectral_norm(
    network: Network, *, exact: bool = True, log: bool = False, state: State | None = None
) -> Tensor:
    r"""The product of the spectral norms of all layers. Not rescaling-invariant.

    .. math:: \prod_i \|A_i\|_\sigma

    It bounds the Lipschitz constant of a network that is a chain of layers with activations and
    poolings of Lipschitz constant 1; parallel branches are multiplied as well, so with residual
    sums it is a measure and no bound. Computed in logarithms from :func:`spectral_norms`.

    Args:
        network: the traced network.
        exact: see :func:`spectral_norms`.
        log: return the natural logarithm, which does not overflow.
        state: parameters and buffers by name; by default the model's, without gradient.

    Returns:
        a float64 scalar.

    Example:
        >>> import torch, pathspace as ps
        >>> from pathspace.weightnorms import spectral_norm
        >>> model = torch.nn.Sequential(
        ...     torch.nn.Linear(2, 2), torch.nn.ReLU(), torch.nn.Linear(2, 2)
        ... )
        >>> with torch.no_grad():
        ...     _ = model[0].weight.copy_(torch.diag(torch.tensor([3.0, 1.0])))
        ...     _ = model[2].weight.copy_(torch.diag(torch.tensor([1.0, 2.0])))
        >>> round(float(spectral_norm(ps.trace(model, torch.ones(1, 2)))), 6)  # 3 · 2
        6.0

    Reference: Bartlett, Foster and Telgarsky 2017, Eq. (1.2), first factor.
    """
    norms = spectral_norms(network, exact=exact, state=state)
    values = [norm.value.log() for norm in norms]
    result = _stack(values).sum()
    return result if log else result.exp()


def spectral_complexity(
    network: Network,
    margin: float = 1.0,
    *,
    reference: State | None = None,
    exact: bool = True,
    log: bool = False,
    state: State | None = None,
) -> Tensor:
    r"""The spectral complexity, divided by the margin. Not rescaling-invariant.

    .. math:: \frac{1}{\gamma} \prod_i \|A_i\|_\sigma \; \Big(\sum_i
        \frac{\|A_i^T - M_i^T\|_{2,1}^{2/3}}{\|A_i\|_\sigma^{2/3}}\Big)^{3/2}

    Activations count with Lipschitz constant 1. Computed in logarithms, with the product
    multiplied into the sum, from :func:`spectral_norms` and :func:`norm_21`. The theorem behind it
    is about chains of matrices: for convolutions the second norm is that of the kernel, not of the
    much larger matrix of the map, and biases do not count, so there it is a measure and no bound.

    Args:
        network: the traced network.
        margin: γ > 0, such as a low quantile of :func:`margins` on the training data.
        reference: the state that gives the matrices :math:`M_i`; by default zero.
        exact: see :func:`spectral_norms`.
        log: return the natural logarithm, which does not overflow.
        state: parameters and buffers by name; by default the model's, without gradient.

    Returns:
        a float64 scalar.

    Example:
        >>> import torch, pathspace as ps
        >>> from pathspace.weightnorms import spectral_complexity
        >>> model = torch.nn.Linear(2, 2)
        >>> with torch.no_grad():
        ...     _ = model.weight.copy_(torch.diag(torch.tensor([3.0, 1.0])))
        >>> network = ps.trace(model, torch.ones(1, 2))
        >>> round(float(spectral_complexity(network, margin=0.5)), 6)  # 3 · (4/3) / 0.5
        8.0

    Reference: Bartlett, Foster and Telgarsky 2017, Eq. (1.2) and Theorem 1.1.
    """
    if not margin > 0:
        raise ValueError(f"margin must be positive, not {margin}")
    groups = dict(norm_21(network, reference=reference, state=state))
    norms = spectral_norms(network, exact=exact, state=state)
    sigma = _stack([norm.value.log() for norm in norms])
    group = _stack([groups[norm.parameter].log() for norm in norms])
    # The product over all other layers, rather than a quotient: a layer of zeros is no problem.
    own = torch.eye(len(norms), dtype=torch.bool, device=sigma.device)
    others = sigma.expand(own.shape).masked_fill(own, 0.0).sum(1)
    result = 1.5 * ((group + others) * (2 / 3)).logsumexp(0) - math.log(margin)
    return result if log else result.exp()


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
        >>> import torch
        >>> from pathspace.weightnorms import margins
        >>> margins(torch.tensor([[3.0, 1.0, 2.0], [0.0, 4.0, 1.0]]), torch.tensor([0, 2]))
        tensor([ 1., -3.])

    Reference: Bartlett, Foster and Telgarsky 2017, section 1.
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
        size = _double(weights[edge.parameter]).abs()
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


# Spectral norms ----------------------------------------------------------------------------------

_LINEAR = frozenset("linear matmul rmatmul mm mv addmm addmv".split())
_TURNS = frozenset("t T mT H transpose swapaxes swapdims permute adjoint".split())
_PRODUCTS = frozenset("mul multiply".split())
_CONVOLUTION = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
_TRANSPOSED = (*_CONVOLUTION[:5], "output_padding", "groups", "dilation")

_LARGE = 1024  # both sides of a matrix that is not factorised any more
_BASIS = 32  # vectors of the Lanczos iteration between restarts
_KEPT = 12  # of them, after a restart
_RESTARTS = 50
_TOLERANCE = 1e-8


def _weights_of(network: Network, node: Node) -> Iterator[str]:
    """The parameters that a node multiplies its input by."""
    operands: tuple[Any, ...] = (*node.args, *node.kwargs.values())
    if node.operation in _LINEAR:
        for operand in operands:
            while isinstance(operand, Ref) and _is_turn(network.program[operand.node]):
                operand = network.program[operand.node].args[0]
            if isinstance(operand, StateRef):
                yield operand.name
    elif node.operation in _PRODUCTS:
        yield from (operand.name for operand in operands if isinstance(operand, StateRef))
    elif node.operation.startswith("conv") and isinstance(
        weight := _options(node).get("weight"), StateRef
    ):
        yield weight.name


def _is_state(leaf: Any) -> bool:
    return isinstance(leaf, StateRef)


def _is_turn(node: Node) -> bool:
    return node.operation in _TURNS and bool(node.args)


def _options(node: Node) -> dict[str, Any]:
    """The arguments of a convolution by name."""
    names = _TRANSPOSED if "transpose" in node.operation else _CONVOLUTION
    return {**dict(zip(names, node.args, strict=False)), **node.kwargs}


def _layer_norm(
    node: Node, name: str, weight: Tensor, shape: tuple[int, ...] | None
) -> tuple[Tensor, float]:
    """The norm of one layer and its error."""
    if node.operation in _PRODUCTS:
        return weight.abs().amax(), 0.0
    if node.operation in _LINEAR:
        if weight.dim() > 2:
            raise PathspaceError(f"`{name}` is a stack of matrices; pass them one by one")
        return _matrix_norm(weight if weight.dim() == 2 else weight.reshape(1, -1))
    if shape is None:
        return _matrix_norm(weight.flatten(1))
    options = {
        key: value
        for key, value in _options(node).items()
        if key not in ("input", "weight", "bias")
    }
    function = getattr(torch.nn.functional, node.operation)
    sample = (1, *shape[1:]) if len(shape) == weight.dim() else (1, *shape)
    return _operator_norm(lambda x, w: function(x, w, **options), weight, sample)


def _matrix_norm(matrix: Tensor) -> tuple[Tensor, float]:
    if min(matrix.shape) <= _LARGE:
        return torch.linalg.matrix_norm(matrix, ord=2), 0.0
    return _operator_norm(lambda x, w: w @ x, matrix, tuple(matrix.shape[1:]))


def _operator_norm(apply: Any, weight: Tensor, shape: tuple[int, ...]) -> tuple[Tensor, float]:
    """The largest singular value of x ↦ apply(x, weight), and its relative error."""
    fixed = weight.detach()
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(math.prod(shape), generator=generator, dtype=torch.float64)

    def gram(x: Tensor) -> Tensor:
        y, pull, *_ = torch.func.vjp(lambda x: apply(x, fixed), x.view(shape))
        return pull(y)[0].reshape(-1)

    x, residual = _top_eigenvector(gram, start.to(weight.device))
    # With x fixed, the derivative of ‖A x‖ is that of the singular value.
    return torch.linalg.vector_norm(apply(x.view(shape), weight)), residual / 2


def _top_eigenvector(gram: Any, x: Tensor) -> tuple[Tensor, float]:
    """The eigenvector of a positive semidefinite map's largest eigenvalue λ, and residual / λ.

    Lanczos with full orthogonalisation. When the basis is full, the best approximate eigenvectors
    stay in it (a thick restart), because the largest singular values of convolutions lie close.
    """
    steps = min(_BASIS, len(x))
    basis = x.new_empty(steps, len(x))
    basis[0] = x / x.norm()
    matrix = x.new_zeros(steps, steps)  # the map in this basis
    first, top, residual = 0, 0.0, math.inf
    for _ in range(_RESTARTS):
        for k in range(first, steps):
            used = basis[: k + 1]
            image = gram(basis[k])
            size = float(image.norm())
            along = used @ image
            matrix[: k + 1, k] = matrix[k, : k + 1] = along
            image = image - along @ used
            image = image - (used @ image) @ used  # twice is enough to stay orthogonal
            rest = float(image.norm())
            if rest <= 1e-14 * size or k + 1 == steps:
                break
            basis[k + 1] = image / rest
        values, vectors = torch.linalg.eigh(matrix[: k + 1, : k + 1])
        x = vectors[:, -1] @ used
        before, top = top, float(values[-1])
        if top <= 0:
            return x, 0.0
        residual = rest * abs(float(vectors[-1, -1])) / top
        if residual <= _TOLERANCE or (
            residual <= math.sqrt(_TOLERANCE) and top - before <= _TOLERANCE**1.5 * top
        ):
            break
        first = min(_KEPT, k)
        if k + 1 < steps or not first:
            break
        basis[:first] = vectors[:, -first:].T @ used
        matrix = x.new_zeros(steps, steps)
        matrix[:first, :first] = torch.diag(values[-first:])
        basis[first] = image / rest
    return x, residual


def _input_shapes(network: Network) -> dict[int, tuple[int, ...]]:
    """By place in the program: the shape of a convolution's input; replays it without data."""
    program = network.program
    convolutions = [k for k, node in enumerate(program) if node.operation.startswith("conv")]
    needed = set(convolutions)
    for place in range(len(program) - 1, -1, -1):
        if place in needed:
            node = program[place]
            refs = leaves((node.args, list(node.kwargs.values())))
            needed |= {ref.node for ref in refs if isinstance(ref, Ref)}
    specs = [leaf for leaf in leaves(network.inputs) if isinstance(leaf, InputSpec)]
    inputs = [torch.empty(spec.shape, dtype=spec.dtype, device="meta") for spec in specs]
    state = network.state()
    results: dict[int, Any] = {}
    shapes = {}

    def value(leaf: Any) -> Any:
        if isinstance(leaf, Ref):
            return results[leaf.node] if leaf.item is None else results[leaf.node][leaf.item]
        if isinstance(leaf, StateRef) and leaf.name.startswith("input "):
            return inputs[int(leaf.name.removeprefix("input "))]
        tensor = state[leaf.name] if isinstance(leaf, StateRef) else leaf
        return torch.empty_like(tensor, device="meta") if isinstance(tensor, Tensor) else leaf

    with torch.no_grad():
        for place in sorted(needed):
            node = program[place]
            args, kwargs = map_leaves(value, node.args), map_leaves(value, node.kwargs)
            result = node.function(*args, **kwargs)
            results[place] = args[0] if result is None else result  # what `setitem` writes to
            if place in convolutions:
                shapes[place] = tuple((args[0] if args else kwargs["input"]).shape)
    return shapes


# States ------------------------------------------------------------------------------------------


def _state(network: Network, state: State | None) -> State:
    if state is not None:
        return state
    return {name: tensor.detach() for name, tensor in network.state().items()}


def _double(tensor: Tensor) -> Tensor:
    """In float64, which the devices of type mps do not have."""
    device = torch.device("cpu") if tensor.device.type == "mps" else tensor.device
    return tensor.to(device, torch.float64)


def _stack(values: list[Tensor]) -> Tensor:
    if not values:
        raise PathspaceError("this network has no layer with weights")
    return torch.stack([value.to(values[0].device) for value in values])
