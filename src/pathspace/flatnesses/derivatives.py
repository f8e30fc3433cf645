"""Losses, gradients and Hessian-vector products in any space, averaged over all data.

Per batch everything happens in the weights; the change to another space is made once per point or
direction, not once per batch. Several points or directions share one pass over the data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import compress, repeat

import torch
from torch import Tensor

from pathspace.errors import PathspaceError
from pathspace.evaluation import Batch, Objective
from pathspace.flatnesses.coordinates import Coordinates, State, unflat
from pathspace.weightgraph import WeightGraph

Parts = Sequence[Tensor]  # one per weight tensor of the graph

BLOCK = 2**25  # numbers held at once, shared out among the points or directions of one pass
TOGETHER = 32  # points or directions in one pass at most


def losses(objective: Objective, coordinates: Coordinates, points: Tensor) -> Tensor:
    """(k,) mean losses at (k, n) points of a space, in float64."""
    found: list[Tensor] = []
    for block in blocks(points, coordinates):
        states = [coordinates.state(point) for point in block]

        def on(batch: Batch, states: Sequence[State] = states) -> tuple[Tensor]:
            with torch.no_grad():
                return (torch.stack([_scalar(objective.on(batch, state)) for state in states]),)

        found += average(objective, on)
    return torch.cat(found)


def gradients(
    objective: Objective, coordinates: Coordinates, points: Tensor
) -> tuple[Tensor, Tensor]:
    """(k,) mean losses in float64 and their (k, n) gradients at (k, n) points of a space."""
    values, slopes = [], []
    for block in blocks(points, coordinates):
        states = [coordinates.state(point) for point in block]

        def on(batch: Batch, states: Sequence[State] = states) -> tuple[Tensor, Tensor]:
            found = []
            for state in states:
                value, leaves = _differentiable(objective, coordinates.graph, batch, state)
                slope = torch.autograd.grad(value, leaves, materialize_grads=True)
                found.append((_scalar(value.detach()), _flat(slope)))
            return torch.stack([v for v, _ in found]), torch.stack([g for _, g in found])

        value, slope = average(objective, on)
        values.append(value)
        slopes += [coordinates.pull(own, state) for own, state in zip(slope, states, strict=True)]
    return torch.cat(values), torch.stack(slopes)


def quadratic_forms(
    objective: Objective, coordinates: Coordinates, directions: Tensor
) -> tuple[float, Tensor]:
    """The mean loss at the point of a space, and (k,) zᵀ ∇²l z of (k, n) directions, in float64.

    No product is kept: a batch adds the forms of the tangents in the weights, and what the other
    space has beyond them follows from the gradient at the end.
    """
    loss, found = torch.zeros(()), []
    for block in blocks(directions, coordinates):
        tangents = [coordinates.tangent(direction) for direction in block]
        along = [_parts(tangent, coordinates) for tangent in tangents]

        def on(batch: Batch, along: Sequence[Parts] = along) -> tuple[Tensor, ...]:
            value, slope, products = _products(objective, coordinates, batch, along)
            forms = [_dot(*pair) for pair in zip(along, products, strict=True)]
            return value, slope, _scalar(torch.stack(forms))

        loss, gradient, forms = average(objective, on)
        beyond = [
            coordinates.bend(direction, tangent, gradient)
            for direction, tangent in zip(block, tangents, strict=True)
        ]
        found.append(forms + _scalar(torch.stack(beyond)))
    return float(loss), torch.cat(found)


def hessian_products(objective: Objective, coordinates: Coordinates, directions: Tensor) -> Tensor:
    """(k, n) Hessian of the mean loss at the point of a space, times (k, n) directions."""
    found: list[Tensor] = []
    for block in blocks(directions, coordinates):
        tangents = [coordinates.tangent(direction) for direction in block]
        along = [_parts(tangent, coordinates) for tangent in tangents]

        def on(batch: Batch, along: Sequence[Parts] = along) -> tuple[Tensor, ...]:
            _, slope, products = _products(objective, coordinates, batch, along)
            return slope, *(_flat(product) for product in products)

        gradient, *products = average(objective, on)
        found += map(coordinates.curvature, block, tangents, products, repeat(gradient))
    return torch.stack(found)


def average(objective: Objective, on: Callable[[Batch], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    """The means over all samples of quantities that ``on`` gives as means over a batch."""
    means: tuple[Tensor, ...] = ()
    count = 0
    with torch.enable_grad(), objective.evaluating():
        for batch in objective.batches():
            new = on(batch)
            count += batch.size
            for mean, value in zip(means, new, strict=bool(means)):
                mean.lerp_(value, batch.size / count)
            means = means or new
    return means


def blocks(rows: Tensor, coordinates: Coordinates) -> Iterator[Tensor]:
    """The rows in as many pieces as memory asks for."""
    yield from rows.split(_together(coordinates))


def block_sizes(count: int, coordinates: Coordinates) -> Iterator[int]:
    """The numbers of rows of these pieces, for those who make the rows on the way."""
    size = _together(coordinates)
    for start in range(0, count, size):
        yield min(size, count - start)


def _together(coordinates: Coordinates) -> int:
    return max(1, min(TOGETHER, BLOCK // max(1, coordinates.graph.m)))


def _differentiable(
    objective: Objective, graph: WeightGraph, batch: Batch, state: State
) -> tuple[Tensor, list[Tensor]]:
    """The loss on a batch, and the weights of the graph that it can be differentiated by."""
    weights = {
        name: weight.detach().requires_grad_() for name, weight in graph.weights(state).items()
    }
    value = objective.on(batch, graph.state(weights, state))
    leaves = [weights[edge.parameter] for edge in graph.edges]
    if not value.requires_grad:
        raise PathspaceError(
            "the loss does not depend on the weights in a way that autograd can follow; use "
            'kind="expected", which needs no derivatives, or another loss'
        )
    return value, leaves


def _products(
    objective: Objective, coordinates: Coordinates, batch: Batch, tangents: Sequence[Parts]
) -> tuple[Tensor, Tensor, Iterator[Parts]]:
    """On one batch, in the weights: loss, gradient, and the Hessian times each tangent.

    The graph of the gradient is built once. At a kink of a ReLU, autograd's derivative is taken.
    """
    value, leaves = _differentiable(objective, coordinates.graph, batch, coordinates.origin)
    slope = torch.autograd.grad(value, leaves, create_graph=True, materialize_grads=True)
    curved = [g.requires_grad for g in slope]  # False where the loss is linear
    differentiable = list(compress(slope, curved))

    def products() -> Iterator[Parts]:
        for tangent in tangents:
            if not differentiable:
                yield [torch.zeros_like(leaf) for leaf in leaves]
                continue
            yield torch.autograd.grad(
                differentiable,
                leaves,
                list(compress(tangent, curved)),
                retain_graph=True,
                materialize_grads=True,
            )

    return _scalar(value.detach()), _flat(slope).detach(), products()


def _parts(vector: Tensor, coordinates: Coordinates) -> Parts:
    """A vector of all weights of the graph, tensor by tensor."""
    return list(unflat(coordinates.graph, vector).values())


def _flat(parts: Parts) -> Tensor:
    return torch.cat([part.reshape(-1) for part in parts])


def _dot(a: Parts, b: Parts) -> Tensor:
    dots = [torch.dot(x.reshape(-1), y.reshape(-1)) for x, y in zip(a, b, strict=True)]
    return torch.stack(dots).sum()


def _scalar(value: Tensor) -> Tensor:
    return value.to("cpu", torch.float64)
