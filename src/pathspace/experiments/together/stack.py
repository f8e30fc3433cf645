"""Several perceptrons of one shape as one module: parameters with a leading axis of networks.

T networks side by side are one network whose layers are grouped. The module computes it in two
ways: as grouped convolutions, which is what :func:`pathspace.trace` sees, and as batched matrix
products, which is fast.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from pathspace.network import Edge, Network
from pathspace.tracing import trace


class StackedLinear(nn.Module):
    """The linear layers of T networks: weight (T, O, I), bias (T, O) or none."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)
        self.bias = None if bias is None else nn.Parameter(bias)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T·I, 1) to (B, T·O, 1), as a convolution with T groups."""
        bias = None if self.bias is None else self.bias.flatten()
        weight = self.weight.flatten(0, 1).unsqueeze(-1)
        return F.conv1d(x, weight, bias, groups=len(self.weight))

    def run(self, x: Tensor) -> Tensor:
        """(T, B, I) to (T, B, O)."""
        weight = self.weight.transpose(1, 2)
        if self.bias is None:
            return torch.bmm(x, weight)
        return torch.baddbmm(self.bias.unsqueeze(1), x, weight)

    def back(self, slope: Tensor, x: Tensor, y: Tensor, last: bool) -> Tensor:
        """The slope of the loss by the input, from that by the output; sets the gradients."""
        torch.bmm(slope.transpose(1, 2), x, out=_gradient(self.weight))
        if self.bias is not None:
            torch.sum(slope, 1, out=_gradient(self.bias))
        return slope if last else torch.bmm(slope, self.weight)


class StackedDropout(nn.Module):
    """Dropout that draws the numbers of each network from a generator of its own.

    Attributes:
        generators: one per network; each gives what ``nn.Dropout`` would draw from it.
    """

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.probability = probability
        self.generators: Sequence[Generator] = ()

    def forward(self, x: Tensor) -> Tensor:
        """As ``nn.Dropout``."""
        return F.dropout(x, self.probability, self.training)

    def run(self, x: Tensor) -> Tensor:
        """(T, B, O) to the same, with units dropped."""
        kept = 1 - self.probability
        self._noise = torch.empty_like(x)
        for part, generator in zip(self._noise, self.generators, strict=True):
            part.bernoulli_(kept, generator=generator)
        return x * self._noise.div_(kept)

    def back(self, slope: Tensor, x: Tensor, y: Tensor, last: bool) -> Tensor:
        """As of what was drawn last."""
        return slope.mul_(self._noise)


class StackedReLU(nn.ReLU):
    """ReLU; the same in both ways."""

    def run(self, x: Tensor) -> Tensor:
        """Element by element."""
        return F.relu(x)

    def back(self, slope: Tensor, x: Tensor, y: Tensor, last: bool) -> Tensor:
        """0 where the unit is off."""
        return torch.ops.aten.threshold_backward(slope, y, 0.0)


Stacked = StackedLinear | StackedDropout | StackedReLU


class Stack(nn.Module):
    """T perceptrons of one shape.

    Their parameters lie in one matrix with a row per network, so that an optimizer can step all of
    them at once without copying.

    Args:
        models: sequences of linear layers, ReLU, dropout and flattening.

    Raises:
        TypeError: another kind of layer, named.

    Example:
        >>> models = [nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)) for _ in range(5)]
        >>> stack = Stack(models)
        >>> x = torch.randn(5, 7, 4)  # a batch of 7 for each
        >>> torch.allclose(stack.run(x)[2], models[2](x[2]), atol=1e-6)
        True
        >>> stack.network().copies
        5
    """

    def __init__(self, models: Sequence[nn.Module]) -> None:
        super().__init__()
        parameters = [list(model.parameters()) for model in models]
        columns = [
            torch.stack([one.detach() for one in column])
            for column in zip(*parameters, strict=True)
        ]
        count = sum(column[0].numel() for column in columns)
        matrix = columns[0].new_empty(len(models), count)
        views: list[Tensor] = []
        start = 0
        for column in columns:
            stop = start + column[0].numel()
            views.append(matrix[:, start:stop].view(column.shape).copy_(column))
            start = stop
        self.copies = len(models)
        self.layers: list[Stacked] = []
        given = iter(views)
        for layer in flat(models[0]):
            if isinstance(layer, nn.Linear):
                bias = layer.bias is not None
                self.layers.append(StackedLinear(next(given), next(given) if bias else None))
            elif isinstance(layer, nn.Dropout):
                self.layers.append(StackedDropout(layer.p))
            elif isinstance(layer, nn.ReLU):
                self.layers.append(StackedReLU())

        for number, layer in enumerate(self.layers):
            self.add_module(str(number), layer)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T·I, 1) to (B, T·O, 1)."""
        for layer in self.layers:
            x = layer(x)
        return x

    def run(self, x: Tensor) -> Tensor:
        """(T, B, I) to (T, B, O)."""
        for layer in self.layers:
            x = layer.run(x)
        return x

    @torch.no_grad()
    def gradients(self, x: Tensor, losses: Callable[[Tensor], tuple[Tensor, Tensor]]) -> Tensor:
        """Set the gradients of the sum of all losses.

        One pass forwards and one back in closed form: on networks this small, recording a graph
        would cost as much as the arithmetic.

        Args:
            x: (T, B, I) inputs.
            losses: of the outputs (T, B, O): one per network, and their slopes by the outputs.

        Returns:
            (T,) the losses.
        """
        steps = []
        for layer in self.layers:
            y = layer.run(x)
            steps.append((layer, x, y))
            x = y
        found, slope = losses(x)
        for number, (layer, inner, outer) in reversed(list(enumerate(steps))):
            slope = layer.back(slope, inner, outer, number == 0)
        return found

    def set_generators(self, generators: Sequence[Generator]) -> None:
        """Where dropout draws from, one per network."""
        for layer in self.layers:
            if isinstance(layer, StackedDropout):
                layer.generators = generators

    def network(self) -> Network:
        """The traced network of all of them."""
        first = next(layer for layer in self.layers if isinstance(layer, StackedLinear))
        example = first.weight.new_ones(1, self.copies * first.weight.shape[2], 1)
        network = trace(self, example)
        edges = tuple(map(_compact, network.edges))
        return dataclasses.replace(network, edges=edges, copies=self.copies)


def _gradient(parameter: Tensor) -> Tensor:
    """Where the gradient of a parameter is to be written."""
    if parameter.grad is None:
        parameter.grad = torch.empty(parameter.shape, dtype=parameter.dtype)
    return parameter.grad


def flat(model: nn.Module) -> list[nn.Module]:
    """The layers of nested sequences, one after the other.

    Raises:
        TypeError: a layer that cannot be stacked, named.
    """
    if type(model) is nn.Sequential:
        return [layer for part in model for layer in flat(part)]
    if type(model) in (nn.Linear, nn.ReLU, nn.Dropout, nn.Flatten):
        return [model]
    raise TypeError(f"{type(model).__name__} cannot be stacked")


def _compact(edge: Edge) -> Edge:
    """The edge with tables of size 1 along axes on which they are constant, the first apart."""
    return dataclasses.replace(
        edge,
        target=_squeezed(edge.target),
        source=_squeezed(edge.source),
        target_scale=_squeezed(edge.target_scale),
        source_scale=_squeezed(edge.source_scale),
    )


def _squeezed(table: Tensor) -> Tensor:
    for axis in range(1, table.dim()):
        first = table.narrow(axis, 0, 1)
        if bool((table == first).all()):
            table = first
    return table
