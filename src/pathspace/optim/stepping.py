r"""The arithmetic of a step: on lists of matrices, all at once or block by block.

.. math:: w_e \leftarrow b_e\,(w_e - \eta\, s_e u_e)

with u the rule's update for the gradients :math:`s_e\,\partial l/\partial w_e`. It is written once:
called as it is, every line is an operation on one block that lies in the cache, with intermediate
results in memory that is used again; compiled (:func:`compiled_kernels`), all of it is one pass
over each whole matrix, which for large ones costs little more than SGD's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pathspace.compiling import compiled
from pathspace.optim.lists import Group, Tensors, add_, add_products_, is_on, plus
from pathspace.optim.rules import Rule, State

Room = dict[Any, Tensor]
Factors = list[Tensor] | None  # one per matrix, which broadcasts; none at all where all are 1


def step_weights(
    weights: list[Tensor],
    gradients: Tensors,
    states: Sequence[State],
    source: Factors,
    target: Factors,
    back: Sequence[Factors],
    penalty: Sequence[Tensors],
    rate: Any,
    group: Group,
    rule: Rule,
    linear: bool,
    room: Room | None,
) -> None:
    """Step weights and states.

    Args:
        weights: matrices, changed in place; everything else is one per matrix too.
        gradients: of the loss; not changed.
        states: of the rule; changed in place.
        source: one part of s, or of its square for a linear rule.
        target: the other part.
        back: parts of b.
        penalty: factors: times the weights, what is added to the gradients.
        rate: η.
        group: the other hyper-parameters.
        rule: how to step.
        linear: whether the rule's update is the gradient.
        room: memory for intermediate results; ``None`` where a compiler makes do without.
    """
    if source is None:
        source, target = target, None  # the last factor costs nothing extra
    gradients = _complete(gradients, weights, group)
    if penalty:
        added: Tensors = weights
        for factor in penalty:
            added = _times(added, factor, room)
        torch._foreach_add_(added, gradients)
        gradients = added
    if linear:
        updates = _times(gradients, target, room)
    else:
        scaled = _times(_times(gradients, source, room), target, room)
        updates = rule.update(_owned(scaled, gradients), states, group)
        updates = _times(updates, target, room)
    if room is None and isinstance(rate, Tensor):  # a number would be compiled in
        updates, rate = torch._foreach_mul(updates, rate), 1.0
    if source is None:
        add_(weights, updates, -rate)
    else:
        add_products_(weights, updates, source, -rate)
    for factors in back:
        if factors:
            torch._foreach_mul_(weights, factors)


class Kernels(NamedTuple):
    """The functions of a step that may be compiled.

    Attributes:
        step_weights: :func:`step_weights`.
        row_sums: sums of products along the rows of large matrices, in one pass; ``None`` where
            these are done block by block.
    """

    step_weights: Callable[..., None] = step_weights
    row_sums: Callable[[Tensor, Tensor], Tensor] | None = None


def compiled_kernels() -> Kernels:
    """The same, compiled for the shapes that they meet."""
    return Kernels(compiled(step_weights), compiled(_row_sums))


def _row_sums(first: Tensor, second: Tensor) -> Tensor:
    return (first * second).sum(1, keepdim=True)


def _times(tensors: Tensors, factors: Tensors | None, room: Room | None) -> Tensors:
    """Products, in memory that is used for every block: new memory costs more than they do."""
    if factors is None:
        return tensors
    if len(tensors) > 1 or room is None:
        return torch._foreach_mul(tensors, factors)
    tensor = tensors[0]
    key = tensor.shape, tensor.dtype, tensor.device
    place = room.get(key)
    if place is None:
        place = room[key] = torch.empty_like(tensor)
    return [torch.mul(tensor, factors[0], out=place)]


def _complete(gradients: Tensors, weights: Tensors, group: Group) -> Tensors:
    """The gradients with their sign and the weight decay of the group."""
    if group["maximize"]:
        gradients = torch._foreach_neg(gradients)
    if is_on(group["weight_decay"]):
        gradients = plus(gradients, weights, group["weight_decay"])
    return gradients


def _owned(tensors: Tensors, originals: Tensors) -> Tensors:
    """Tensors that a rule may overwrite: not the gradients themselves."""
    return [t.clone() for t in tensors] if tensors is originals else tensors
