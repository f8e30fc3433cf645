"""Penalties of a stack: each network has its own λ."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pathspace.experiments.together.states import Correspondence
from pathspace.experiments.training.naming import literal
from pathspace.network import Network
from pathspace.optim.lists import rows_of
from pathspace.optim.skeleton import skeleton_of
from pathspace.penalties import BasisPathPenalty, PathNormPenalty, Penalty
from pathspace.weightgraph import WeightGraph

NUMBERS = {"basis-path": ("lam1", "lam2"), "path-norm": ("lam",)}  # each network's own


def penalty_kind(text: str) -> str | None:
    """A penalty without its λ; None if it cannot be stacked.

    Example:
        >>> penalty_kind("basis-path:1e-4:exact=true"), penalty_kind("path-norm:0.1:1.5")
        ('basis-path:exact=true', None)
    """
    name, *arguments = (part.strip() for part in text.split(":"))
    if name not in NUMBERS:
        return None
    kept = [name]
    for place, argument in enumerate(arguments):
        key, equals, value = argument.partition("=")
        if (key.strip() in NUMBERS[name]) if equals else place < len(NUMBERS[name]):
            continue
        is_exponent = key.strip() == "p" if equals else place == 1
        if name == "path-norm" and is_exponent and literal(value if equals else key) != 2:
            return None  # R depends on the norm of the whole then
        kept.append(argument)
    return ":".join(kept)


class StackedPenalty:
    """A penalty of T networks, from the penalties of each.

    Args:
        penalties: one per network, alike but for their λ.
        network: of the stack.
        relation: between stack and networks.
    """

    def __init__(
        self, penalties: Sequence[Penalty], network: Network, relation: Correspondence
    ) -> None:
        self.network = network
        self.parts: list[tuple[Penalty, float | Tensor]] = []
        first = penalties[0]
        if isinstance(first, BasisPathPenalty):
            found = [p.basis.skeleton for p in penalties if isinstance(p, BasisPathPenalty)]
            edges = []
            for name in ("incoming", "outgoing"):
                rows = torch.stack([getattr(skeleton, name) for skeleton in found])
                edges.append(relation.spread(relation.join_numbers(rows), -1))
            skeleton = skeleton_of(WeightGraph(network), *edges)
            for name, unit in (("lam1", (1.0, 0.0)), ("lam2", (0.0, 1.0))):
                rates = rows_of([getattr(penalty, name) for penalty in penalties])
                if isinstance(rates, Tensor) or rates:
                    whole = BasisPathPenalty(network, *unit, skeleton, exact=first.exact)
                    self.parts.append((whole, rates))
        elif isinstance(first, PathNormPenalty):
            rates = rows_of([p.lam for p in penalties if isinstance(p, PathNormPenalty)])
            part = PathNormPenalty(network, 1.0, first.p, biases=first.biases)
            self.parts.append((part, rates))
        else:
            raise TypeError(f"{type(first).__name__} cannot be stacked")

    @torch.no_grad()
    def add_to_gradients_(self) -> None:
        """Add the gradient to ``.grad`` of the stack's parameters."""
        parameters = self.network.parameters()
        for penalty, rates in self.parts:
            for name, gradient in penalty.gradients().items():
                target = parameters[name].grad
                assert target is not None
                if isinstance(rates, Tensor):
                    shape = (-1, *[1] * (gradient.dim() - 1))
                    target.addcmul_(gradient, rates.to(gradient).view(shape))
                else:
                    target.add_(gradient, alpha=rates)
