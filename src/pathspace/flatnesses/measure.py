"""`flatness`: one function for every kind of flatness in every space."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from pathspace.errors import PathspaceError
from pathspace.evaluation import Data, Loss, Objective
from pathspace.flatnesses.ball import adaptive_sharpness, ball_flatness
from pathspace.flatnesses.coordinates import Coordinates, Space
from pathspace.flatnesses.expected import expected_flatness
from pathspace.flatnesses.paths import PathCoordinates, SkeletonChoice
from pathspace.flatnesses.result import Flatness, Kind, Spread
from pathspace.flatnesses.trace import trace_flatness
from pathspace.flatnesses.weights import WeightCoordinates
from pathspace.network import Network
from pathspace.skeleton import choose_skeleton

ESTIMATORS: Mapping[str, Callable[..., Flatness]] = {
    "ball": ball_flatness,
    "trace": trace_flatness,
    "expected": expected_flatness,
    "adaptive": adaptive_sharpness,
}


def flatness(
    network: Network,
    loss: Loss,
    data: Data,
    *,
    space: Space = "paths",
    kind: Kind = "ball",
    choice: SkeletonChoice = "largest",
    skeletons: int = 0,
    state: Mapping[str, Tensor] | None = None,
    dtype: torch.dtype | None = None,
    seed: int = 0,
    **options: Any,
) -> Flatness:
    r"""Measure how flat the loss is around a network; a large value means sharp.

    ============ ============================================================================
    kind         value
    ============ ============================================================================
    ``ball``     :math:`\max_{\|\delta\|\le\varepsilon} (l(v+\delta) - l(v)) / (1 + l(v))`
    ``trace``    :math:`\operatorname{tr} \nabla^2 l(v)`
    ``expected`` :math:`|\mathbb{E}\, l(v+u) - l(v)|`, u normal with standard deviation σ
    ``adaptive`` :math:`\max_{\|\delta/|v|\,\|\le\rho} l(v+\delta) - l(v)`
    ============ ============================================================================

    With ``space="paths"`` v are the values of the basis paths, and none of these changes when the
    model is rescaled; with ``"weights"`` they are the weights, and all but ``adaptive`` do.
    Path-space flatness still depends on which skeleton names the basis paths; ``skeletons=K``
    measures by how much. The model is evaluated in eval mode, batch norms folded, and not touched.

    Args:
        network: the traced network.
        loss: such as :func:`torch.nn.functional.cross_entropy`; must average over the batch.
        data: a ``DataLoader`` or any iterable of (inputs, targets), or one such pair as a tuple.
        space: ``"paths"`` or ``"weights"``.
        kind: see the table.
        choice: the skeleton of ``"paths"``, as in :func:`pathspace.choose_skeleton`. The papers'
            ``"modulo"`` may make tiny weights roots, near which the loss has a pole.
        skeletons: so many random skeletons are measured too, with the same options and draws; each
            edge is drawn among those at least half as large as the largest of its unit in the
            balanced representative.
        state: parameters and buffers to measure; by default the model's.
        dtype: ``torch.float64`` computes in double precision; by default as the model does.
        seed: of everything random.
        options: those of the kind: see :func:`ball_flatness` (``epsilon``, ``restarts``,
            ``steps``), :func:`trace_flatness` (``method``, ``rtol``, ``max_probes``, ``rank``,
            ``probes``), :func:`expected_flatness` (``sigma``, ``rtol``, ``max_pairs``) and
            :func:`adaptive_sharpness` (``rho``, ``restarts``, ``steps``).

    Returns:
        a :class:`Flatness`: value, standard error, details, and what attains a maximum.

    Example:
        >>> import torch, pathspace as ps
        >>> from torch import nn
        >>> from pathspace.flatnesses import flatness
        >>> _ = torch.manual_seed(0)
        >>> model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)).double()
        >>> data = (torch.randn(20, 4).double(), torch.randint(3, (20,)))
        >>> network = ps.trace(model, data[0])
        >>> def sharpness(space):
        ...     found = flatness(
        ...         network, nn.functional.cross_entropy, data, space=space, kind="trace"
        ...     )
        ...     return found.value
        >>> before = sharpness("paths"), sharpness("weights")
        >>> _ = ps.rescale_(network, ps.random_rescaling(network, spread=2.0))
        >>> after = sharpness("paths"), sharpness("weights")
        >>> abs(after[0] / before[0] - 1) < 1e-9, abs(after[1] / before[1] - 1) > 1
        (True, True)

    Reference: Yi et al. 2019, Definitions 2.1 and 4.1; Kwon et al. 2021 for ``adaptive``.
    """
    if kind not in ESTIMATORS:
        raise ValueError(f"kind must be one of {', '.join(ESTIMATORS)}, not {kind!r}")
    if skeletons and space != "paths":
        raise ValueError('skeletons=K compares bases of paths: use it with space="paths"')
    estimator = ESTIMATORS[kind]
    _check(kind, estimator, options)
    objective = Objective(network, loss, data, dtype=dtype)
    place = coordinates(network, space, choice, state=state, dtype=dtype)
    result = estimator(objective, place, seed=seed, **options)
    if not math.isfinite(result.loss):
        raise PathspaceError(f"the loss of the network itself is {result.loss}; it has no flatness")
    _refuse_nan(result)
    if not skeletons:
        return result
    generator = torch.Generator().manual_seed(seed)
    values = []
    for _ in range(skeletons):
        drawn = choose_skeleton(network, "random", state=place.origin, generator=generator)
        other = PathCoordinates(network, drawn, state=state, dtype=dtype)
        values.append(_refuse_nan(estimator(objective, other, seed=seed, **options)).value)
    return replace(result, spread=Spread(tuple(values)))


def coordinates(
    network: Network,
    space: Space = "paths",
    choice: SkeletonChoice = "largest",
    *,
    state: Mapping[str, Tensor] | None = None,
    dtype: torch.dtype | None = None,
) -> Coordinates:
    """The coordinates of a network in a space, by name; see :func:`flatness`."""
    if space == "weights":
        return WeightCoordinates(network, state=state, dtype=dtype)
    if space == "paths":
        return PathCoordinates(network, choice, state=state, dtype=dtype)
    raise ValueError(f'space must be "paths" or "weights", not {space!r}')


def _refuse_nan(found: Flatness) -> Flatness:
    if math.isnan(found.value):
        raise PathspaceError(
            f"the {found.kind} flatness in the space of {found.space} is not a number: around this "
            "network the loss or its derivatives leave the range of the dtype; are all inputs "
            "finite? If so, use dtype=torch.float64, or balance the network first"
        )
    return found


def _check(kind: str, estimator: Callable[..., Flatness], options: Mapping[str, Any]) -> None:
    parameters = inspect.signature(estimator).parameters.values()
    known = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.name != "seed"]
    for name in options:
        if name not in known:
            raise TypeError(f"kind={kind!r} has no option {name!r}; it has {', '.join(known)}")
