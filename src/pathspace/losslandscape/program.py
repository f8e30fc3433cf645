"""A recorded program evaluated at many points of a chart at once.

What does not depend on the point is computed once per batch of data. A linear map or convolution
of such a value, whose weights are affine in t, is affine in t too: 1 + K products with the data
are enough for all points. The rest runs with a leading axis for the points, by ``torch.vmap``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pathspace.losslandscape.chart import Chart
from pathspace.network import Network, Node, Ref, StateRef
from pathspace.tracing.values import leaves, map_leaves

LINEAR_IN_WEIGHTS = frozenset("linear conv1d conv2d conv3d".split())
# One convolution per point would become one with many groups, which is slow on a CPU.
CONVOLUTIONS = frozenset(
    "conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d".split()
)


@dataclass(frozen=True)
class Prepared:
    """What a program needs of one batch of data, whatever the point.

    Attributes:
        state: the entries of the state that do not move, and the inputs.
        constant: by node, results that do not depend on the point.
        affine: by node, (1 + K, ...) the coefficients of results that are affine in t.
    """

    state: Mapping[str, Tensor]
    constant: dict[int, Any]
    affine: dict[int, Tensor]

    @property
    def nbytes(self) -> int:
        """Memory of what was computed."""
        kept = [*leaves(self.constant), *self.affine.values()]
        return sum(t.nbytes for t in kept if isinstance(t, Tensor))


class GridProgram:
    """The program of a network as a function of the points of a chart.

    Args:
        network: traced with the very shapes of the data, because shapes are part of a program.
        chart: the states of the model.
    """

    def __init__(self, network: Network, chart: Chart) -> None:
        self.program, self.output, self.chart = network.program, network.outputs, chart
        self._coefficients = chart.affine()
        self.affine: set[int] = set()
        self.moving: set[int] = set()
        entries: set[str] = set()
        for place, node in enumerate(self.program):
            refs, names = _references(node)
            if not refs & (self.moving | self.affine) and not names & chart.moving:
                continue
            if self._is_affine(node):
                self.affine.add(place)
            else:
                self.moving.add(place)
                entries |= names & chart.moving
        self.entries = frozenset(entries)  # of the state, needed with a leading axis
        last: dict[int, int] = {}
        self._readers: Counter[int] = Counter()
        for place in sorted(self.moving):
            read = _references(self.program[place])[0]
            self._readers.update(read)
            last |= dict.fromkeys(read, place)
        last |= dict.fromkeys(_references(self.output)[0], len(self.program))
        self._dying: dict[int, set[int]] = {}  # by node: what nothing reads after it
        for value, place in last.items():
            self._dying.setdefault(place, set()).add(value)

    @property
    def is_worthwhile(self) -> bool:
        """Whether many points at once are possible, and no slower than one after the other."""
        if not isinstance(self.output, Ref) or self.output.node not in self.moving:
            return False
        if any(self.program[place].operation in CONVOLUTIONS for place in self.moving):
            return False
        # What is overwritten must be each point's own.
        return not any(
            node.inplace and not _references(node.args[:1])[0] & (self.moving | self.affine)
            for node in self.program
        )

    def prepare(self, inputs: list[Tensor]) -> Prepared:
        """Evaluate what is the same, or affine, at all points."""
        state = {n: t for n, t in self.chart.state.items() if n not in self.chart.moving}
        state |= {f"input {k}": x for k, x in enumerate(inputs)}
        constant: dict[int, Any] = {}
        affine: dict[int, Tensor] = {}
        for place, node in enumerate(self.program):
            if place in self.affine:
                affine[place] = self._products(node, constant, state)
            elif place not in self.moving:
                args, kwargs = _resolve((node.args, node.kwargs), constant, state)
                constant[place] = node.function(*args, **kwargs)
        needed = set().union(*(_references(self.program[place])[0] for place in self.moving))
        return Prepared(state, {p: c for p, c in constant.items() if p in needed}, affine)

    def outputs(self, prepared: Prepared, points: Tensor) -> tuple[Tensor, int]:
        """(P, ...) what the model returns at points (P, K), and bytes of all results per point."""
        states = self.chart.states(points, self.entries)
        coefficients = torch.cat([points.new_ones(len(points), 1), points], 1)
        lifted = {
            place: (coefficients.to(stack) @ stack.flatten(1)).view(-1, *stack.shape[1:])
            for place, stack in prepared.affine.items()
        }
        sizes: list[int] = []

        def at_one_point(lifted: dict[int, Tensor], moving: dict[str, Tensor]) -> Tensor:
            results = {**prepared.constant, **lifted}
            state = {**prepared.state, **moving}
            sizes.extend(tensor.nbytes for tensor in (*lifted.values(), *moving.values()))
            for place in sorted(self.moving):
                node = self.program[place]
                args, kwargs = _resolve((node.args, node.kwargs), results, state)
                dying = self._dying.get(place, set())
                if node.operation == "relu" and self._is_fresh(node.args[0], dying):
                    result = args[0].relu_()
                elif node.operation == "linear" and not kwargs and args[2:] not in ((), (None,)):
                    result = node.function(*args[:2]).add_(args[2])
                else:
                    result = node.function(*args, **kwargs)
                results[place] = args[0] if node.inplace else result
                sizes.extend(t.nbytes for t in leaves(result) if isinstance(t, Tensor))
                del args, kwargs, result
                for dead in dying:
                    del results[dead]
            return _resolve(self.output, results, state)

        return torch.vmap(at_one_point)(lifted, states), sum(sizes)

    def _is_fresh(self, value: Any, dying: set[int]) -> bool:
        """Whether a value is nobody else's: the result of a product that nothing else reads."""
        return (
            isinstance(value, Ref)
            and value.node in dying
            and self._readers[value.node] == 1  # another might have kept a view of it
            and value.node in self.moving | self.affine
            and self.program[value.node].operation in LINEAR_IN_WEIGHTS
        )

    def _is_affine(self, node: Node) -> bool:
        """Whether a node applies weights that are affine in t to a value that is constant."""
        if node.operation not in LINEAR_IN_WEIGHTS or node.inplace:
            return False
        value, rest = node.args[0], (node.args[1:], node.kwargs)
        if _references(value)[0] & (self.moving | self.affine) or _references(rest)[0]:
            return False
        moving = _references(value)[1] & self.chart.moving
        return not moving and all(
            name in self._coefficients for name in _references(rest)[1] & self.chart.moving
        )

    def _products(
        self, node: Node, constant: Mapping[int, Any], state: Mapping[str, Any]
    ) -> Tensor:
        """(1 + K, ...) a node with each coefficient of its weights in place of them."""
        names = _references((node.args[1:], node.kwargs))[1]
        parts = []
        for k in range(1 + len(self.chart.ratios)):
            own = {}
            for name in names:
                if name in self.chart.moving:
                    own[name] = self._coefficients[name][k]
                else:  # the same at all points: its other coefficients are 0
                    own[name] = state[name] if k == 0 else torch.zeros_like(state[name])
            args, kwargs = _resolve((node.args, node.kwargs), constant, {**state, **own})
            parts.append(node.function(*args, **kwargs))
        return torch.stack(parts)


def _references(tree: Any) -> tuple[set[int], set[str]]:
    """The nodes and the entries of the state that arguments refer to."""
    if isinstance(tree, Node):
        tree = (tree.args, tree.kwargs)
    found: tuple[set[int], set[str]] = set(), set()

    def note(leaf: Any) -> None:
        if isinstance(leaf, Ref):
            found[0].add(leaf.node)
        elif isinstance(leaf, StateRef):
            found[1].add(leaf.name)

    map_leaves(note, tree)
    return found


def _resolve(tree: Any, results: Mapping[int, Any], state: Mapping[str, Tensor]) -> Any:
    """Arguments with the values in place of the references."""

    def value(leaf: Any) -> Any:
        if isinstance(leaf, Ref):
            result = results[leaf.node]
            return result if leaf.item is None else result[leaf.item]
        return state[leaf.name] if isinstance(leaf, StateRef) else leaf

    return map_leaves(value, tree)
