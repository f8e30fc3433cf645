r"""Flatness of one function in weights that are rescaled on purpose, as a job.

Theorem 3.2 rescales a hidden layer, or a single unit, by α: weights into it times α, weights out of
it divided by α. The trace of the Hessian is then exactly (Eq. 6)

.. math:: \operatorname{tr} \nabla^2 l(\phi_c(w)) =
    \operatorname{tr}(\alpha^{-2} A_1 + \alpha^2 A_2 + A_3),

:math:`A_1` the block of the weights into the unit, :math:`A_2` of those out of it. And with
:math:`c_i = \varepsilon / (\sqrt h\,\|w_i\|)` for the h units of a layer, the zero of all
weights into the layer is within the ball, which so holds a constant function.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from pathspace.evaluation import Objective
from pathspace.experiments.reproduce.yi2019.effort import KINDS, SPACES, Effort, flatness_of
from pathspace.experiments.reproduce.yi2019.measuring import change_of_outputs
from pathspace.experiments.reproduce.yi2019.trained import Trained, trained
from pathspace.experiments.training import Outcome
from pathspace.flatnesses import WeightCoordinates
from pathspace.flatnesses.coordinates import unflat
from pathspace.flatnesses.derivatives import quadratic_forms
from pathspace.rescalings import rescale, rescaling


def driven(
    outcomes: Sequence[Outcome],
    data_dir: str | Path | None,
    *,
    effort: Mapping[str, Any],
    factors: Sequence[float],
) -> dict[str, Any]:
    """All flatnesses of a trained perceptron whose first hidden layer is rescaled, in float64.

    Args:
        outcomes: of one training.
        data_dir: the data folder.
        effort: an :class:`Effort` as data.
        factors: α, one set of weights each.

    Returns:
        ``layer``: by factor, flatness by space and kind, and ``outputs``, how far outputs moved;
        ``proof``: the same for the factors of the proof, and the loss of the constant function;
        ``unit``: by factor, the trace after rescaling one unit and what Eq. (6) says.
    """
    (outcome,) = outcomes
    one, how = trained(outcome, data_dir, dtype=torch.float64), Effort(**effort)
    layer = {
        f"{factor:g}": _all(one, how, rescale(one.network, _layer(one, factor)))
        for factor in factors
    }
    return {"layer": layer, "proof": _proof(one, how), "unit": _equation_6(one, how, factors)}


def _all(one: Trained, how: Effort, state: Mapping[str, Tensor]) -> dict[str, Any]:
    """In paths of largest weights: any will do, they only have to be the same."""
    found: dict[str, Any] = {"outputs": change_of_outputs(one, state)}
    for space in SPACES:
        found[space] = {kind: flatness_of(one, how, space, kind, state).value for kind in KINDS}
    return found


def _layer(one: Trained, factor: float) -> Any:
    """α for all units of the first hidden layer."""
    return rescaling(one.network, {_first(one): factor})


def _first(one: Trained) -> str:
    """The space of the first hidden layer."""
    return one.network.edges[0].space


def _proof(one: Trained, how: Effort) -> dict[str, Any]:
    """The rescaling of the proof of Theorem 3.2, for the ball."""
    weight = one.network.state()[_matrices(one)[0]]
    norms = weight.norm(dim=1)
    scales = how.weight_epsilon / (math.sqrt(len(norms)) * norms)
    state = rescale(one.network, rescaling(one.network, {_first(one): scales}))
    images = one.images(how.images)
    zeroed = {**one.network.state(), _matrices(one)[0]: torch.zeros_like(weight)}
    with torch.no_grad():
        outputs = functional_call(one.network.model, zeroed, (images.inputs,))
    return {
        **_all(one, how, state),
        "constant": float(cross_entropy(outputs, images.targets)),
        "loss": float(_loss(one, how)),
    }


def _loss(one: Trained, how: Effort) -> Tensor:
    images = one.images(how.images)
    with torch.no_grad():
        return cross_entropy(one.network.model(images.inputs), images.targets)


def _equation_6(one: Trained, how: Effort, factors: Sequence[float]) -> dict[str, Any]:
    """The exact trace for one rescaled unit, and what Eq. (6) makes of the blocks at α = 1."""
    into, out = _matrices(one)[:2]
    diagonal = _diagonal(one, how)
    unit = int(diagonal[into].sum(1).argmax())  # where tr A₁ is largest
    first, second = float(diagonal[into][unit].sum()), float(diagonal[out][:, unit].sum())
    rest = sum(float(part.sum()) for part in diagonal.values()) - first - second
    found = {}
    for factor in factors:
        scales = torch.ones(len(diagonal[into]), dtype=torch.float64)
        scales[unit] = factor
        state = rescale(one.network, rescaling(one.network, {_first(one): scales}))
        trace = sum(float(part.sum()) for part in _diagonal(one, how, state).values())
        said = first / factor**2 + second * factor**2 + rest
        found[f"{factor:g}"] = {"trace": trace, "equation": said}
    return found


def _diagonal(
    one: Trained, how: Effort, state: Mapping[str, Tensor] | None = None, block: int = 256
) -> dict[str, Tensor]:
    """The diagonal of the Hessian in the weights, exactly, by layer."""
    place = WeightCoordinates(one.network, state=state)
    objective = Objective(one.network, cross_entropy, one.data(how.images))
    count, parts = len(place), []
    for start in range(0, count, block):
        size = min(block, count - start)
        unit = place.point.new_zeros(size, count)
        unit[torch.arange(size), torch.arange(start, start + size)] = 1.0
        parts.append(quadratic_forms(objective, place, unit)[1])
    return unflat(place.graph, torch.cat(parts))


def _matrices(one: Trained) -> list[str]:
    """The parameters of the layers, in order."""
    return [edge.parameter for edge in one.network.edges]
