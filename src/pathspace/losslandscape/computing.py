"""`landscape` and `landscapes`: compute the loss around a model, in path space or weight space."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pathspace.basis import BasisPaths
from pathspace.durable.errors import Damaged, StoreError, explained
from pathspace.durable.locking import locked
from pathspace.errors import PathspaceError
from pathspace.evaluation import Data, Loss, Objective
from pathspace.losslandscape.chart import Coordinates, Space
from pathspace.losslandscape.directions import (
    SCALES,
    Directions,
    choose_directions,
    fitting_scale,
)
from pathspace.losslandscape.fingerprints import Key, key_of, name_of
from pathspace.losslandscape.grid import Grid, grid_axes, grid_points
from pathspace.losslandscape.partial import NAME as PARTIAL
from pathspace.losslandscape.partial import Partial, check_key, damaged
from pathspace.losslandscape.result import ABOUT, ARRAYS, Landscape
from pathspace.losslandscape.strategies import PointByPoint, Progress, choose_strategy, evaluate
from pathspace.network import Network
from pathspace.skeleton import Choice, Skeleton, WeightIndex, choose_skeleton
from pathspace.weightgraph import WeightGraph

LOCK = ".landscape.lock"

SkeletonChoice = Choice | Skeleton | Mapping[str, Sequence[WeightIndex]]


def landscape(
    network: Network,
    loss: Loss,
    data: Data,
    *,
    space: Space = "paths",
    directions: Directions = "random",
    grid: Grid = 25,
    dims: int = 2,
    seed: int = 0,
    scale: float | None = None,
    skeleton: SkeletonChoice = "largest",
    state: Mapping[str, Tensor] | None = None,
    name: str = "model",
    chunk: int | None = None,
    folder: str | Path | None = None,
    progress: Progress | None = None,
) -> Landscape:
    r"""The loss on a line or a plane through a model.

    .. math:: f(t_1, t_2) = l(v + t_1 \xi + t_2 \eta)

    over basis-path values v, the free skeleton weights fixed, or over the weights. The model is
    evaluated in eval mode, batch norm folded, and is not modified. In path space the result does
    not change under rescaling; it does depend on the skeleton.

    All points need one forward pass each. If the model is made of linear layers (and whatever
    else is no convolution), many points are evaluated at once, and the first layer's weights being
    affine in t its products with the data are computed three times, not once per point. The data is
    read once and kept, so that every point sees the same samples.

    Args:
        network: the traced network.
        loss: takes what the model returns and the targets, returns their mean loss.
        data: as for :class:`~pathspace.evaluation.Objective`: a loader, or one pair.
        space: ``"paths"`` (basis-path values) or ``"weights"``.
        directions: ``"random"`` (``scale`` · N(0, I) over the coordinates), ``"filter-normalized"``
            (Li et al. 2018), one or two directions (vectors, dicts, or
            :class:`~pathspace.Towards` another model), or a
            :class:`~pathspace.Trajectory`.
        grid: points per axis, on [−1, 1] (on [−0.5, 1.5] towards another model); or the values of t
            as one vector per axis.
        dims: 1 or 2, for random directions and trajectories.
        seed: of random directions.
        scale: of random directions; by default as published, 0.05, or 1 if filter-normalized,
            but less if the grid would not fit into the chart: 0.9 of what fits.
        skeleton: for path space, see :class:`~pathspace.BasisPaths`.
        state: parameters and buffers to look at; by default the model's.
        name: what to call the model in pictures.
        chunk: points evaluated at once; by default as many as take 32 MB.
        folder: keep what is computed there. A call that was interrupted goes on from it and ends
            with the same bits; a finished landscape is read from it; one that another process is
            computing is an error.
        progress: called with the number of points done and their total.

    Returns:
        a :class:`Landscape`: losses, and their pictures.

    Example:
        >>> import torch, pathspace as ps
        >>> from pathspace.losslandscape import landscape
        >>> model = torch.nn.Sequential(
        ...     torch.nn.Linear(2, 3), torch.nn.ReLU(), torch.nn.Linear(3, 2)
        ... )
        >>> network = ps.trace(model, torch.ones(1, 2))
        >>> data = torch.eye(2), torch.tensor([0, 1])
        >>> found = landscape(network, torch.nn.functional.cross_entropy, data, grid=5)
        >>> found.losses.shape
        torch.Size([5, 5])
        >>> bool(found.losses[2, 2].isclose(torch.tensor(found.center).double()))
        True

    Reference: Yi et al. 2019, section 6, Equations 17-21; Li et al. 2018.
    """
    if dims not in (1, 2):
        raise ValueError(f"dims must be 1 or 2, not {dims!r}")
    own = _full_state(network, state)
    coordinates = _coordinates(network, own, space, skeleton)
    if scale is None and isinstance(directions, str):
        points = grid_points(grid_axes(grid, dims, start=-1.0))
        scale = fitting_scale(coordinates, directions, seed, points)
    chosen = choose_directions(
        coordinates, directions, dims=dims, seed=seed, scale=1.0 if scale is None else scale
    )
    axes = grid_axes(grid, len(chosen.vectors), start=-0.5 if chosen.marks else -1.0)
    chart = coordinates.chart(chosen.vectors)
    points = grid_points(axes)
    inside, reach = chart.contains(points), chart.reach(points)
    objective = Objective(network, loss, data)
    with torch.no_grad(), objective.evaluating():
        batches = list(objective.batches())
        strategy = choose_strategy(objective, batches, chart, points[inside], chunk)
        key = key_of(coordinates, chosen.vectors, axes, objective, batches, strategy.chunk)
        about = {
            "coordinates": coordinates.size,
            "samples": sum(batch.size for batch in batches),
            "seed": seed if isinstance(directions, str) else None,
            "scale": scale,
            "published scale": SCALES[directions] if isinstance(directions, str) else None,
            "reach": reach if math.isfinite(reach) else None,
            "key": key,
        }

        def compute(kept: Partial | None) -> Landscape:
            losses = torch.full((len(points),), float("nan"), dtype=torch.float64)
            center = PointByPoint(objective, batches, chart).at(own)
            losses[inside] = evaluate(strategy, points[inside], kept, progress)
            sizes = [len(axis) for axis in axes]
            return Landscape(
                axes=axes,
                losses=losses.view(sizes),
                outside=~inside.view(sizes),
                center=float(center),
                name=name,
                space=space,
                labels=tuple(chosen.labels),
                loss=name_of(loss),
                marks=chosen.marks,
                trail=tuple(chosen.trail),
                about=about,
            )

        if folder is None:
            return compute(None)
        found = _computed_once(Path(folder), key, int(inside.sum()), compute)
    return dataclasses.replace(found, name=name)


def landscapes(
    network: Network,
    states: Mapping[str, Mapping[str, Tensor]],
    loss: Loss,
    data: Data,
    *,
    space: Space = "paths",
    skeleton: SkeletonChoice = "largest",
    folder: str | Path | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> dict[str, Landscape]:
    """The landscapes of several models of one architecture, along the same directions.

    In path space all share one skeleton, so that coordinate i is the same path in each; the one
    chosen for the first model, if there is a choice. Filter-normalized directions are the same
    draw, each normalized by its own model. Draw them by
    :func:`pathspace.plot.landscape.side_by_side`, on one height scale.

    Args:
        network: the traced network.
        states: parameters and buffers by the name of the model.
        loss: see :func:`landscape`.
        data: read once, the same for all models.
        space: see :func:`landscape`.
        skeleton: see :func:`landscape`.
        folder: each model gets a folder of its own in it.
        progress: called with the number of points done and their total, over all models.
        options: further options of :func:`landscape`.

    Reference: Yi et al. 2019, Figure 3.
    """
    if not states:
        raise ValueError("there is no model to look at")
    full = {name: _full_state(network, state) for name, state in states.items()}
    if space == "paths" and not isinstance(skeleton, Skeleton):
        skeleton = choose_skeleton(network, skeleton, state=next(iter(full.values())))
    pairs = data if isinstance(data, tuple) else list(data)
    directions: Directions = options.get("directions", "random")
    if options.get("scale") is None and isinstance(directions, str):
        points = grid_points(grid_axes(options.get("grid", 25), options.get("dims", 2), start=-1.0))
        seed = options.get("seed", 0)
        all_coordinates = (_coordinates(network, state, space, skeleton) for state in full.values())
        options["scale"] = min(
            fitting_scale(coordinates, directions, seed, points) for coordinates in all_coordinates
        )
    found: dict[str, Landscape] = {}
    for place, (name, state) in enumerate(full.items()):
        found[name] = landscape(
            network,
            loss,
            pairs,
            space=space,
            skeleton=skeleton,
            state=state,
            name=name,
            folder=None if folder is None else Path(folder) / folder_name(name),
            progress=_part(progress, place, len(full)),
            **options,
        )
    return found


def folder_name(name: str) -> str:
    """The name of a model as that of a folder.

    Example:
        >>> folder_name("batch 2,048")
        'batch-2-048'
    """
    return re.sub(r"[^\w.]+", "-", name).strip("-.") or "model"


# Steps of a landscape -----------------------------------------------------------------------------


def _full_state(network: Network, state: Mapping[str, Tensor] | None) -> dict[str, Tensor]:
    """The model's state with what is given in place of its own tensors, detached."""
    own = network.state()
    for entry, tensor in (state or {}).items():
        if entry not in own:
            raise PathspaceError(f"the model has no parameter or buffer `{entry}`")
        if tensor.shape != own[entry].shape:
            shapes = f"{tuple(tensor.shape)}, in the model {tuple(own[entry].shape)}"
            raise PathspaceError(f"`{entry}` has shape {shapes}")
    full = {**own, **(state or {})}
    # One tensor per parameter, however many names it has: functional_call looks at identity.
    detached = {id(tensor): tensor.detach() for tensor in full.values()}
    return {entry: detached[id(tensor)] for entry, tensor in full.items()}


def _coordinates(
    network: Network, state: Mapping[str, Tensor], space: Space, skeleton: SkeletonChoice
) -> Coordinates:
    if space == "weights":
        return Coordinates(WeightGraph(network), state)
    if space != "paths":
        raise ValueError(f'space must be "paths" or "weights", not {space!r}')
    basis = BasisPaths(network, skeleton, state=state)
    return Coordinates(basis.graph, state, basis)


def _computed_once(
    folder: Path, key: Key, count: int, compute: Callable[[Partial], Landscape]
) -> Landscape:
    """The landscape that a folder holds, or else computed and saved there; by one process."""
    alone = partial(locked, folder / LOCK, "computes this landscape", wait=False)
    if not (folder / ABOUT).exists():
        with explained(folder):
            folder.mkdir(parents=True, exist_ok=True)
        with alone():
            if not (folder / ABOUT).exists():  # while we came here
                kept = Partial(folder, key, count)
                compute(kept).save(folder)
                kept.remove()
    elif (folder / PARTIAL).exists() or (folder / LOCK).exists():
        # What a killed process could not remove any more, unless it is there and about to.
        with contextlib.suppress(OSError, StoreError), alone():
            (folder / PARTIAL).unlink(missing_ok=True)
    try:
        found = Landscape.load(folder)
    except Damaged as error:
        raise damaged(str(error), folder / ABOUT, folder / ARRAYS) from error
    check_key(folder, found.about["key"], key)
    return found


def _part(progress: Progress | None, place: int, count: int) -> Progress | None:
    """The progress of one of several landscapes of equal size."""
    if progress is None:
        return None
    return lambda done, total: progress(place * total + done, count * total)
