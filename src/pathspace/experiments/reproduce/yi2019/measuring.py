"""Flatness and landscapes of trained networks, as jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from pathspace.experiments.reproduce.yi2019.effort import KINDS, SPACES, Effort, flatness_of
from pathspace.experiments.reproduce.yi2019.trained import CHUNK, SKELETON, Trained, trained
from pathspace.experiments.training import Outcome
from pathspace.flatnesses import PathCoordinates
from pathspace.flatnesses.coordinates import Space
from pathspace.flatnesses.paths import KEPT
from pathspace.flatnesses.result import Kind
from pathspace.losslandscape import Landscape, landscapes
from pathspace.rescalings import random_rescaling, rescale


def flatnesses(
    outcomes: Sequence[Outcome], data_dir: str | Path | None, *, effort: Mapping[str, Any]
) -> dict[str, Any]:
    """The three kinds of flatness of a trained network in both spaces.

    Args:
        outcomes: of one training.
        data_dir: the data folder.
        effort: an :class:`Effort` as data.

    Returns:
        by space and kind: ``value``, ``error`` (standard error; None for a search), ``loss``.
    """
    (outcome,) = outcomes
    return _values(trained(outcome, data_dir), Effort(**effort))


def root_sizes(outcomes: Sequence[Outcome], data_dir: str | Path | None) -> dict[str, Any]:
    """Number, least and median size of the roots that divide weights of a trained network.

    These are what perturbations must not bring to zero.
    """
    (outcome,) = outcomes
    room = PathCoordinates(trained(outcome, data_dir).network, SKELETON).room
    sizes = room[room.isfinite()] / (1 - KEPT)
    if not len(sizes):
        return {"count": 0, "least": float("inf"), "median": float("inf")}
    return {"count": len(sizes), "least": float(sizes.min()), "median": float(sizes.median())}


def rescaled_flatnesses(
    outcomes: Sequence[Outcome],
    data_dir: str | Path | None,
    *,
    effort: Mapping[str, Any],
    spread: float,
    seed: int = 0,
) -> dict[str, Any]:
    """The same of a network before and after a random rescaling, in float64.

    Args:
        outcomes: of one training.
        data_dir: the data folder.
        effort: an :class:`Effort` as data.
        spread: standard deviation of the logarithms of the factors.
        seed: of the factors.

    Returns:
        ``before`` and ``after`` by space and kind; ``outputs``: the largest change of an output,
        relative to the largest output.
    """
    (outcome,) = outcomes
    one = trained(outcome, data_dir, dtype=torch.float64)
    generator = torch.Generator().manual_seed(seed)
    factors = random_rescaling(one.network, spread, generator=generator, normalized=True)
    moved = rescale(one.network, factors)
    return {
        "before": _values(one, Effort(**effort)),
        "after": _values(one, Effort(**effort), moved),
        "outputs": change_of_outputs(one, moved),
    }


def pictures(
    outcomes: Sequence[Outcome],
    data_dir: str | Path | None,
    *,
    images: int,
    grid: int,
    scale: float,
    names: Sequence[str],
    seed: int = 0,
) -> dict[str, Any]:
    """Landscapes of several trained networks in basis-path space, along the same directions.

    Args:
        outcomes: of trainings of one network.
        data_dir: the data folder.
        images: training images that the loss is the mean over.
        grid: points per axis.
        scale: of the directions.
        names: of the networks, one each.
        seed: of the directions.

    Returns:
        by name what :func:`picture_of` makes a landscape of.
    """
    ones = [trained(outcome, data_dir) for outcome in outcomes]
    found = landscapes(
        ones[0].network,
        {name: one.network.state() for name, one in zip(names, ones, strict=True)},
        cross_entropy,
        ones[0].data(images),
        skeleton=SKELETON,
        grid=grid,
        scale=scale,
        seed=seed,
    )
    return {
        name: {
            "axes": list(one.axes),
            "losses": one.losses,
            "outside": one.outside,
            "center": one.center,
            "labels": list(one.labels),
            "scale": scale,
            "reach": one.about["reach"],
        }
        for name, one in found.items()
    }


def picture_of(name: str, kept: Mapping[str, Any]) -> Landscape:
    """The landscape of what :func:`pictures` kept."""
    return Landscape(
        tuple(kept["axes"]),
        kept["losses"],
        kept["outside"],
        kept["center"],
        name,
        "paths",
        tuple(kept["labels"]),
        "cross_entropy",
        about={"scale": kept["scale"], "reach": kept["reach"]},
    )


def change_of_outputs(one: Trained, state: Mapping[str, Tensor]) -> float:
    """The largest change of an output between two states, relative to the largest output."""
    images = one.images(CHUNK).inputs
    with torch.no_grad():
        before = functional_call(one.network.model, dict(one.network.state()), (images,))
        after = functional_call(one.network.model, dict(state), (images,))
    return float((after - before).abs().max() / before.abs().max())


# Helpers -----------------------------------------------------------------------------------------


def _values(
    one: Trained, effort: Effort, state: Mapping[str, Tensor] | None = None
) -> dict[str, Any]:
    return {
        space: {kind: _value(one, effort, space, kind, state) for kind in KINDS} for space in SPACES
    }


def _value(
    one: Trained, effort: Effort, space: Space, kind: Kind, state: Mapping[str, Tensor] | None
) -> dict[str, Any]:
    found = flatness_of(one, effort, space, kind, state, choice=SKELETON)
    return {
        "value": found.value,
        "error": found.standard_error,
        "loss": found.loss,
        "reaches_end": bool(found.details.get("reaches_end", False)),
    }
