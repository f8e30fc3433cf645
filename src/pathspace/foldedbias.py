"""The chain rule through a folded batch norm, for gradients that are added in place."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor

from pathspace.network import Normalization
from pathspace.weightgraph import gain

State = Mapping[str, Tensor]
Destination = Callable[[str], Tensor | None]  # where the gradient of a weight is added, if anywhere


class FoldedBias:
    r"""The bias :math:`\beta + (b - \mu)\gamma/\sqrt{\sigma^2+\varepsilon}` of a folded batch norm.

    Args:
        norm: the batch norm.
        absorbed: name of the bias b in front of it that is part of it, if there is one.
        state: parameters and buffers by name.
    """

    def __init__(self, norm: Normalization, absorbed: str | None, state: State) -> None:
        self.norm, self.absorbed, self.state = norm, absorbed, state
        assert norm.mean is not None
        self.centre = -state[norm.mean]
        if absorbed is not None:
            self.centre = self.centre + state[absorbed]

    def value(self) -> Tensor:
        """The folded bias."""
        assert self.norm.bias is not None
        return (self.state[self.norm.bias] + self.centre * gain(self.norm, self.state)).detach()

    def add_(self, gradient: Tensor, destination: Destination) -> None:
        """Add the gradients of what it is made of, given that of the folded bias."""
        norm = self.norm
        assert norm.bias is not None
        add_(destination(norm.bias), gradient)
        if norm.weight is not None:
            inverse = inverse_deviation(norm, self.state)
            add_(destination(norm.weight), gradient * self.centre * inverse)
        if self.absorbed is not None:
            add_(destination(self.absorbed), gradient * gain(norm, self.state))


def inverse_deviation(norm: Normalization, state: State) -> Tensor:
    r""":math:`1/\sqrt{\sigma^2+\varepsilon}`."""
    assert norm.variance is not None
    return (state[norm.variance] + norm.eps).rsqrt()


def add_(destination: Tensor | None, gradient: Tensor) -> None:
    """Add to a destination, if there is one."""
    if destination is not None:
        destination += gradient.detach().to(destination)
