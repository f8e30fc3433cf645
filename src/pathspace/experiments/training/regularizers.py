"""Penalties by name, and dropout put into a model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from torch import nn

from pathspace.experiments.training.errors import TrialError
from pathspace.experiments.training.naming import build
from pathspace.network import Network
from pathspace.penalties import BasisPathPenalty, PathNormPenalty, Penalty

Maker = Callable[[Network], Penalty]


def basis_path(
    lam1: float,
    lam2: float | None = None,
    exact: bool = False,
    skeleton: Literal["modulo", "largest"] = "modulo",
) -> Maker:
    """Keeps basis paths small and roots near ±1; ``lam2``, of the roots, is by default ``lam1``."""
    second = lam1 if lam2 is None else lam2
    return lambda network: BasisPathPenalty(network, lam1, second, skeleton, exact=exact)


def path_norm(lam: float, p: float = 2.0, biases: bool = True) -> Maker:
    """Keeps the path norm small: what weight decay is where rescaling must not matter."""
    return lambda network: PathNormPenalty(network, lam, p, biases=biases)


PENALTIES: dict[str, Callable[..., Maker]] = {"basis-path": basis_path, "path-norm": path_norm}


def parse_penalty(text: str) -> Maker:
    """What makes the penalty that a text such as ``basis-path:1e-4`` names.

    Example:
        >>> import torch, pathspace as ps
        >>> network = ps.trace(torch.nn.Linear(2, 1), torch.ones(1, 2))
        >>> parse_penalty("basis-path:1e-4:exact=true")(network)
        <BasisPathPenalty lam1=0.0001, lam2=0.0001, exact gradients>
    """
    return build("penalty", text, PENALTIES)


def insert_dropout_(model: nn.Module, probability: float) -> None:
    """Put dropout behind every ReLU module; the names of the weights stay as they are.

    Args:
        model: changed in place.
        probability: of dropping a unit.

    Raises:
        TrialError: the model has no ReLU module.

    Example:
        >>> model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
        >>> insert_dropout_(model, 0.5)
        >>> model[1]
        Sequential(
          (0): ReLU()
          (1): Dropout(p=0.5, inplace=False)
        )
    """
    found = [
        (parent, name)
        for parent in model.modules()
        for name, child in parent.named_children()
        if isinstance(child, nn.ReLU)
    ]
    if not found:
        raise TrialError("dropout is put behind ReLU modules, but the model has none")
    for parent, name in found:
        setattr(parent, name, nn.Sequential(getattr(parent, name), nn.Dropout(probability)))
