"""Spectral norms of the layers, and the measure that Bartlett et al. (2017) build from them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pathspace.errors import PathspaceError
from pathspace.network import InputSpec, Network, Node, Ref, StateRef
from pathspace.tracing.reading import needed
from pathspace.tracing.values import leaves, map_leaves
from pathspace.weightgraph import WeightGraph, gain
from pathspace.weightnorms import State, double, norm_21, own_state, stacked


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
        >>> model = torch.nn.Conv1d(1, 1, 2, bias=False)
        >>> _ = torch.nn.init.ones_(model.weight)
        >>> network = ps.trace(model, torch.ones(1, 1, 3))
        >>> [(name, value, _)] = ps.spectral_norms(network)  # [[1, 1, 0], [0, 1, 1]]
        >>> round(float(value) ** 2, 6)
        3.0
        >>> [(name, value, _)] = ps.spectral_norms(network, exact=False)  # [[1, 1]]
        >>> round(float(value) ** 2, 6)
        2.0

    Reference: Bartlett, Foster and Telgarsky 2017.
    """
    state = own_state(network, state)
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
                factors = double(gain(norm, state))
                if not bool(factors.isfinite().all()):
                    raise PathspaceError(f"the factors of `{norm.layer}` are not finite")
                norms.append(SpectralNorm(key, factors.abs().amax(), 0.0))
            continue
        for name in _weights_of(network, node):
            if name not in alias:
                continue
            seen.add(alias[name])
            weight = double(state[name])
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
        >>> model = torch.nn.Sequential(
        ...     torch.nn.Linear(2, 2), torch.nn.ReLU(), torch.nn.Linear(2, 2)
        ... )
        >>> with torch.no_grad():
        ...     _ = model[0].weight.copy_(torch.diag(torch.tensor([3.0, 1.0])))
        ...     _ = model[2].weight.copy_(torch.diag(torch.tensor([1.0, 2.0])))
        >>> round(float(ps.spectral_norm(ps.trace(model, torch.ones(1, 2)))), 6)  # 3 · 2
        6.0

    Reference: Bartlett, Foster and Telgarsky 2017, the first factor of the spectral complexity.
    """
    norms = spectral_norms(network, exact=exact, state=state)
    values = [norm.value.log() for norm in norms]
    result = stacked(values).sum()
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
        >>> model = torch.nn.Linear(2, 2)
        >>> with torch.no_grad():
        ...     _ = model.weight.copy_(torch.diag(torch.tensor([3.0, 1.0])))
        >>> network = ps.trace(model, torch.ones(1, 2))
        >>> round(float(ps.spectral_complexity(network, margin=0.5)), 6)  # 3 · (4/3) / 0.5
        8.0

    Reference: Bartlett, Foster and Telgarsky 2017, the spectral complexity.
    """
    if not margin > 0:
        raise ValueError(f"margin must be positive, not {margin}")
    groups = dict(norm_21(network, reference=reference, state=state))
    norms = spectral_norms(network, exact=exact, state=state)
    sigma = stacked([norm.value.log() for norm in norms])
    group = stacked([groups[norm.parameter].log() for norm in norms])
    # The product over all other layers, rather than a quotient: a layer of zeros is no problem.
    own = torch.eye(len(norms), dtype=torch.bool, device=sigma.device)
    others = sigma.expand(own.shape).masked_fill(own, 0.0).sum(1)
    result = 1.5 * ((group + others) * (2 / 3)).logsumexp(0) - math.log(margin)
    return result if log else result.exp()


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
        return _largest_singular_value(matrix), 0.0
    return _operator_norm(lambda x, w: w @ x, matrix, tuple(matrix.shape[1:]))


def _largest_singular_value(matrix: Tensor) -> Tensor:
    """From the smaller Gram matrix: cheaper than all singular values, and as good for the largest.

    Divided by the largest entry, so that squares neither overflow nor underflow.
    """
    top = matrix.detach().abs().amax() if matrix.numel() else matrix.new_zeros(())
    if not bool(top > 0):
        return torch.linalg.matrix_norm(matrix, ord=2)
    matrix = matrix / top
    gram = matrix @ matrix.T if len(matrix) <= matrix.shape[1] else matrix.T @ matrix
    return top * torch.linalg.eigvalsh(gram)[-1].sqrt()


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
        for place in sorted(needed(program, convolutions)):
            node = program[place]
            args, kwargs = map_leaves(value, node.args), map_leaves(value, node.kwargs)
            result = node.function(*args, **kwargs)
            results[place] = args[0] if result is None else result  # what `setitem` writes to
            if place in convolutions:
                shapes[place] = tuple((args[0] if args else kwargs["input"]).shape)
    return shapes
