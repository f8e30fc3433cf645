"""How the weights of a trial begin, by name.

A rule has up to two parts: how weights are drawn, and what is done to the network afterwards,
which needs the traced network.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Generator, Tensor, nn
from torch.nn.modules.conv import _ConvNd

from pathspace.experiments.models import initialize_
from pathspace.experiments.training.errors import TrialError
from pathspace.experiments.training.naming import build
from pathspace.gauge import skeleton_init_
from pathspace.network import Network
from pathspace.rescalings import rescale_, unbalanced_rescaling


@dataclass(frozen=True)
class Initialisation:
    """How weights begin.

    Attributes:
        draw: fills the model's weights from a generator; None leaves them as they are built.
        change: changes the network's weights afterwards.
    """

    draw: Callable[[nn.Module, Generator], object] | None = None
    change: Callable[[Network, Generator], object] | None = None


def he() -> Initialisation:
    """Normal, variance 2 / fan-in (He et al. 2015)."""
    return Initialisation(_he)


def glorot() -> Initialisation:
    """Normal, variance 2 / (fan-in + fan-out) (Glorot and Bengio 2010); biases 0."""
    return Initialisation(_glorot)


def as_torch() -> Initialisation:
    """As torch's layers initialise themselves (Meng et al. 2019, section 11.4)."""
    return Initialisation(_torch)


def as_built() -> Initialisation:
    """As the code of the model leaves the weights."""
    return Initialisation()


def balanced() -> Initialisation:
    """Normal, variance 1 / fan-in (Neyshabur et al. 2017, Figure 3); biases 0."""
    return Initialisation(_balanced)


def unbalanced(picks: int = 2000, factor: float = 10.0, spread: float = 1.0) -> Initialisation:
    """Balanced, then units drawn at random are rescaled (Neyshabur et al. 2017, Figure 3)."""
    return Initialisation(
        _balanced,
        lambda network, generator: rescale_(
            network, unbalanced_rescaling(network, picks, factor, spread, generator=generator)
        ),
    )


def skeleton(choice: Literal["modulo", "largest"] = "modulo", value: float = 1.0) -> Initialisation:
    """He's rule, then all skeleton weights are set to 1 (Meng et al. 2019, section 11.3)."""
    return Initialisation(_he, lambda network, generator: skeleton_init_(network, choice, value))


INITIALISATIONS: dict[str, Callable[..., Initialisation]] = {
    "he": he,
    "glorot": glorot,
    "torch": as_torch,
    "as-built": as_built,
    "balanced": balanced,
    "unbalanced": unbalanced,
    "skeleton": skeleton,
}


def parse_initialisation(text: str) -> Initialisation:
    """The rule that a text such as ``unbalanced:2000`` names.

    Example:
        >>> model = nn.Linear(900, 400)
        >>> _ = parse_initialisation("balanced").draw(model, Generator().manual_seed(0))
        >>> round(model.weight.std().item(), 3)  # 1 / sqrt(900)
        0.033
    """
    return build("initialisation", text, INITIALISATIONS)


# Drawing -----------------------------------------------------------------------------------------


def _he(model: nn.Module, generator: Generator) -> None:
    try:
        initialize_(model, generator)
    except TypeError as error:
        raise TrialError(f'{error}; init = "as-built" leaves the weights as they are') from error


def _glorot(model: nn.Module, generator: Generator) -> None:
    _he(model, generator)  # biases and batch norms too
    for weight in _weights(model):
        nn.init.xavier_normal_(weight, generator=generator)


@torch.no_grad()
def _balanced(model: nn.Module, generator: Generator) -> None:
    """He's rule without the 2: the same numbers, smaller by √2."""
    _he(model, generator)
    for weight in _weights(model):
        weight.div_(2**0.5)


def _weights(model: nn.Module) -> Iterator[Tensor]:
    """The weights that are drawn, not set: neither biases nor what belongs to batch norms."""
    for layer in model.modules():
        if isinstance(layer, nn.Linear | nn.Embedding | _ConvNd):
            yield layer.weight


def _torch(model: nn.Module, generator: Generator) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(torch.randint(2**62, (), generator=generator)))
        for name, layer in model.named_modules():
            if callable(reset := getattr(layer, "reset_parameters", None)):
                reset()
            elif [*layer.parameters(recurse=False)]:
                raise TrialError(
                    f"`{name}` ({type(layer).__name__}) has no reset_parameters, so init = "
                    '"torch" cannot draw it'
                )
