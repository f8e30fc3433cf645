r"""Directions of a landscape: random ones, towards other models, and along a run of training.

Random directions are the papers' :math:`0.05\cdot\mathcal N(0, I)` over the coordinates, or those
of Li et al. (2018), rescaled filter by filter to the norm of the model's own filters:
:math:`d_v \leftarrow \frac{d_v}{\lVert d_v\rVert}\lVert w_v\rVert` for the weights :math:`w_v` of
a tensor that lead to unit v; biases and batch norms are left alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from pathspace.errors import PathspaceError
from pathspace.losslandscape.chart import Coordinates, Direction, reach
from pathspace.network import Edge
from pathspace.weightgraph import sum_to

RandomKind = Literal["random", "filter-normalized"]
SCALES: dict[RandomKind, float] = {"random": 0.05, "filter-normalized": 1.0}  # as published
MARGIN = 1.1  # a trajectory covers 1/1.1 of the grid


@dataclass(frozen=True)
class Towards:
    """The direction that reaches another model at t = 1.

    Args:
        state: parameters and buffers of that model, of the same architecture.
        label: what to call it in pictures.
    """

    state: Mapping[str, Tensor]
    label: str = "other model"


@dataclass(frozen=True)
class Trajectory:
    """The two (or one) directions in which checkpoints of a run differ most from the model.

    The principal components of the differences to the model at the centre, scaled so that all
    checkpoints lie within the grid [-1, 1].

    Args:
        states: the checkpoints in order, parameters and buffers of each.

    Reference: Li et al. 2018, section 7.1.
    """

    states: Sequence[Mapping[str, Tensor]]


Directions = RandomKind | Direction | Towards | Trajectory | Sequence[Direction | Towards]


@dataclass(frozen=True)
class Chosen:
    """Directions as vectors, what they are called, and where given models lie among them."""

    vectors: list[Tensor]
    labels: list[str]
    marks: dict[str, tuple[float, ...]] = field(default_factory=dict)
    trail: list[tuple[float, ...]] = field(default_factory=list)


def choose_directions(
    coordinates: Coordinates,
    directions: Directions,
    *,
    dims: int = 2,
    seed: int = 0,
    scale: float = 1.0,
) -> Chosen:
    """Vectors of the coordinates for what :func:`pathspace.landscape` was asked for."""
    if isinstance(directions, str):
        vectors = [v * scale for v in random_directions(coordinates, directions, dims, seed)]
        kind = "" if directions == "random" else f" ({directions})"
        labels = [
            f"× {name}{kind}, |{name}| = {float(vector.norm()):.3g}"
            for name, vector in zip("ξη", vectors, strict=False)
        ]
        return Chosen(vectors, labels)
    if scale != 1:
        raise ValueError("`scale` is for random directions; scale a given direction yourself")
    if isinstance(directions, Trajectory):
        return _principal(coordinates, directions, dims)
    if isinstance(directions, Tensor | Mapping | Towards):
        directions = [directions]
    if len(directions) not in (1, 2):
        raise ValueError(f"a landscape has 1 or 2 directions, not {len(directions)}")
    vectors, labels, marks = [], [], {}
    for k, one in enumerate(directions):
        if isinstance(one, Towards):
            vectors.append(_difference(coordinates, one.state, one.label))
            labels.append(f"0: this model, 1: {one.label}")
            marks[one.label] = tuple(float(k == axis) for axis in range(len(directions)))
        else:
            vectors.append(coordinates.flat(one))
            labels.append(f"× given direction, norm {float(vectors[-1].norm()):.3g}")
    return Chosen(vectors, labels, marks)


def random_directions(
    coordinates: Coordinates, kind: RandomKind, dims: int, seed: int
) -> list[Tensor]:
    """Random directions of scale 1, float64.

    One float64 draw for every dtype and device, so that a model and its copy get the same.
    """
    if kind not in SCALES:
        raise ValueError(f"directions must be one of {', '.join(SCALES)}, not {kind!r}")
    generator = torch.Generator().manual_seed(seed)
    vectors = [
        torch.randn(coordinates.size, dtype=torch.float64, generator=generator) for _ in range(dims)
    ]
    if kind == "random":
        return vectors
    return [filter_normalized(coordinates, vector) for vector in vectors]


def fitting_scale(coordinates: Coordinates, kind: RandomKind, seed: int, points: Tensor) -> float:
    """The published scale, or less if it takes less to keep all points (P, K) in the chart."""
    published = SCALES.get(kind, 1.0)
    if coordinates.space == "weights":
        return published
    ratios = coordinates.ratios(random_directions(coordinates, kind, points.shape[1], seed))
    return min(published, 0.9 * reach(ratios, points))


def filter_normalized(coordinates: Coordinates, vector: Tensor) -> Tensor:
    """A direction whose filters have the norms of the model's, in weights or basis-path values.

    Li et al. (2018) do this with weights. With basis-path values it does not change under
    rescaling, because they do not.
    """
    parts = coordinates.unflat(vector)
    own = coordinates.unflat(coordinates.flat(coordinates.values(coordinates.state)))
    for edge in coordinates.graph.edges:
        direction, value = parts[edge.parameter], own[edge.parameter].to(vector)
        if edge.from_constant or edge.is_fixed or edge.parameter in coordinates.graph.norms:
            parts[edge.parameter] = torch.zeros_like(direction)
            continue
        norms = _filter_norms(edge, direction)  # 0 if all weights of a filter are free
        factor = torch.where(norms > 0, _filter_norms(edge, value) / norms, 0.0)
        parts[edge.parameter] = direction * factor
    return coordinates.flat(parts)


def _filter_norms(edge: Edge, weight: Tensor) -> Tensor:
    """The norm of all weights of a tensor into one unit, in the shape of the targets."""
    squares = sum_to(weight.square(), edge.target.shape).reshape(-1)
    units = edge.target.reshape(-1).to(weight.device)
    total = squares.new_zeros(int(units.max()) + 1).index_add_(0, units, squares)
    return total.sqrt()[units].view(edge.target.shape)


def _difference(coordinates: Coordinates, state: Mapping[str, Tensor], label: str) -> Tensor:
    """Coordinates of a state less those of the centre, in float64."""
    state = {name: tensor.detach() for name, tensor in state.items()}
    basis = coordinates.basis
    if basis is not None:
        opposite = basis.free(state).sign() != basis.free(coordinates.state).sign()
        if bool(opposite.any()):
            scale = int(opposite.nonzero()[0]) + 1
            name = coordinates.graph.name(int(basis.skeleton.outgoing[scale]))
            raise PathspaceError(
                f"the free skeleton weight `{name}` has another sign in {label} than in the model "
                f"(and {int(opposite.sum()) - 1:,} more), and no rescaling changes signs, so no "
                "line of basis-path values joins the two; choose a skeleton of weights whose signs "
                'agree, or space="weights"'
            )
    there, here = coordinates.values(state), coordinates.values(coordinates.state)
    return coordinates.flat({name: there[name].double() - here[name].double() for name in here})


def _principal(coordinates: Coordinates, trajectory: Trajectory, dims: int) -> Chosen:
    """Principal directions of the differences, by the Gram matrix of the K checkpoints: O(K² n)."""
    if not trajectory.states:
        raise PathspaceError("the trajectory has no checkpoint")
    rows = torch.stack(
        [
            _difference(coordinates, state, f"checkpoint {k}")
            for k, state in enumerate(trajectory.states)
        ]
    )
    squares, vectors = torch.linalg.eigh(rows @ rows.T)
    squares, vectors = squares.flip(0).clamp_min(0), vectors.flip(1)
    if len(squares) < dims or float(squares[dims - 1]) <= 1e-14 * float(squares[0]):
        raise PathspaceError(
            f"the {len(rows)} checkpoints do not span {dims} directions from the model; give more "
            f"of them, or dims={dims - 1}"
        )
    vectors = vectors * vectors.gather(0, vectors.abs().argmax(0)[None]).sign()  # eigh's are ±
    axes = (vectors[:, :dims].T @ rows) / squares[:dims, None].sqrt()
    places = rows @ axes.T
    reach = MARGIN * places.abs().amax(0)
    share = squares[:dims] / squares.sum()
    ordinal = ("1st", "2nd")
    return Chosen(
        list(axes * reach[:, None]),
        [f"{ordinal[k]} principal direction, {100 * float(share[k]):.0f} %" for k in range(dims)],
        trail=[tuple(place.tolist()) for place in places / reach],
    )
