"""The structure everything else stands on: units, the weights between them, and their scales.

A ReLU network is a directed graph. Its nodes are *units* (a neuron, a feature map), every scalar
weight is an edge from one unit to another, a bias is an edge from the constant 1. Units that must
be scaled together share a *scale*; scale 0 is the one that stays 1 (inputs, outputs, and every
unit that meets an operation that is not positively homogeneous). :func:`pathspace.trace` builds
this structure; nothing above it ever asks "is it a Linear?".
"""

from __future__ import annotations

import html
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from pathspace.placement import check_placement
from pathspace.units import PINNED

Streams = Literal["pinned", "shared"]


@dataclass(frozen=True)
class Space:
    """The units that one operation writes.

    Attributes:
        name: unique; the path of the layer, with ``#2`` and so on for further uses of a layer.
        layer: path of the layer in the model.
        operation: what writes the units, as torch calls it (``linear``, ``conv2d``, ...).
        start: first unit.
        size: number of units.
        reasons: why units of this space are pinned (empty if none is).
    """

    name: str
    layer: str
    operation: str
    start: int
    size: int
    reasons: tuple[str, ...] = ()

    @property
    def units(self) -> slice:
        """The units of this space, to index :attr:`Network.scale`."""
        return slice(self.start, self.start + self.size)


@dataclass(frozen=True)
class Edge:
    """The edges of one parameter tensor: entry e runs from unit ``source[e]`` to ``target[e]``.

    ``target`` and ``source`` hold units, ``target_scale`` and ``source_scale`` the scales of these
    units. All four broadcast against the parameter: along an axis on which they are constant they
    have size 1, so a Linear of shape (O, I) has a target of shape (O, 1) and a source of (1, I).
    """

    parameter: str
    shape: tuple[int, ...]
    space: str
    target: Tensor
    source: Tensor
    target_scale: Tensor
    source_scale: Tensor

    @property
    def count(self) -> int:
        """Number of scalar weights."""
        return int(torch.Size(self.shape).numel())

    def scale(self, side: Literal["target", "source"]) -> Tensor:
        """The scales at one end."""
        return self.target_scale if side == "target" else self.source_scale

    @cached_property
    def from_constant(self) -> bool:
        """Whether all these weights come from the constant, as biases do."""
        return bool((self.source == PINNED).all())

    @cached_property
    def is_fixed(self) -> bool:
        """Whether these are no edges but slopes or gains that no scale touches."""
        return bool((self.target == PINNED).all())

    @cached_property
    def into_free(self) -> bool:
        """Whether any of these weights ends at a free unit."""
        return bool((self.target_scale > 0).any())

    @cached_property
    def from_free(self) -> bool:
        """Whether any of these weights starts at a free unit."""
        return bool((self.source_scale > 0).any())

    def ratio(self, by_scale: Tensor) -> Tensor:
        """``by_scale[target] - by_scale[source]``, for logarithms of scales; broadcastable."""
        return by_scale[self.target_scale] - by_scale[self.source_scale]


@dataclass(frozen=True)
class Normalization:
    """A batch norm: it divides out the scale of its input units and gives its output a new one.

    Names are those of the model's state, ``None`` where the layer has no such tensor. ``input``
    and ``output`` hold one unit per channel; ``place`` is that of its operation in the program.
    """

    layer: str
    input: Tensor
    output: Tensor
    input_scale: Tensor
    weight: str | None
    bias: str | None
    mean: str | None
    variance: str | None
    eps: float
    place: int


@dataclass(frozen=True)
class Ref:
    """A place in a recorded program: the result of node ``node`` (its ``item``-th if several)."""

    node: int
    item: int | None = None


@dataclass(frozen=True)
class StateRef:
    """A parameter or buffer of the model, by name."""

    name: str


@dataclass(frozen=True)
class InputSpec:
    """Shape and dtype of a tensor that the model takes."""

    shape: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True)
class Node:
    """One recorded operation: ``function(*args, **kwargs)``, tensors replaced by references."""

    operation: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    module: str
    inplace: bool


@dataclass(eq=False)
class Network:
    """A traced model: its units, weights and free scales. Made by :func:`pathspace.trace`.

    Attributes:
        model: the user's model itself, unwrapped; never modified by a measurement.
        streams: ``"pinned"`` or ``"shared"``: what a sum does to the scales of its operands.
        spaces: the groups of units, in the order in which the model computes them.
        edges: one per parameter that the graph reaches.
        normalizations: the batch norms.
        scale: (number of units,) the scale of every unit; 0 is pinned, 1..H are free.
        exact: (H,) whether the scale leaves the function unchanged in train mode too. Only a scale
            that a batch norm divides out is not: there the batch norm's ``eps`` does not scale, so
            the change is of the order eps/variance. In eval mode every scale is exact (unless the
            batch norm has no running statistics: then it always works as in train mode).
        joins: (target, source) units of sums; the edges of weight 1 of the graph.
        additions: place in the program, name and target units of every use of a parameter that
            starts at a constant, such as a bias.
        unreached: names of parameters that no traced operation uses.
        program: the recorded operations.
        inputs: the arguments of the model, positional and by keyword; a tensor as
            :class:`InputSpec`. In the program the k-th tensor is ``StateRef("input k")``.
        outputs: what the model returns, tensors as references to the program.
        coarse: why the graph does not tell single units apart somewhere, if so; scales are right
            all the same, but paths cannot be listed one by one.
        copies: number of networks of one kind that lie side by side in it. If there are several,
            the first axis of every parameter counts them.
    """

    model: nn.Module
    streams: Streams
    spaces: tuple[Space, ...]
    edges: tuple[Edge, ...]
    normalizations: tuple[Normalization, ...]
    scale: Tensor
    exact: Tensor
    joins: tuple[tuple[Tensor, Tensor], ...]
    additions: tuple[tuple[int, str, Tensor], ...]
    unreached: tuple[str, ...]
    program: tuple[Node, ...]
    inputs: tuple[Any, Any]
    outputs: Any
    coarse: str | None = None
    copies: int = 1

    @property
    def H(self) -> int:
        """Number of free scales."""
        return len(self.exact)

    @property
    def m(self) -> int:
        """Number of scalar weights that the graph reaches."""
        return sum(edge.count for edge in self.edges)

    @property
    def invariant_ratio(self) -> float:
        """H/m, the share of the weights' dimensions that rescaling makes redundant."""
        return self.H / self.m if self.m else 0.0

    @cached_property
    def copy_of(self) -> Tensor:
        """(H+1,) which of the networks side by side a scale belongs to; 0 for the pinned one."""
        found = torch.zeros(self.H + 1, dtype=torch.long)
        if self.copies > 1:
            for edge in self.edges:
                scales = edge.target_scale.expand(self.copies, *edge.target_scale.shape[1:])
                number = torch.arange(self.copies).view(-1, *[1] * (scales.dim() - 1))
                found[scales] = number.expand_as(scales)
            found[0] = 0
        return found

    def space(self, name: str) -> Space:
        """The space of that name; a ``KeyError`` lists the names there are."""
        for space in self.spaces:
            if space.name == name:
                return space
        known = ", ".join(space.name for space in self.spaces)
        raise KeyError(f"no space {name!r} in this network; there are: {known}")

    def state(self) -> dict[str, Tensor]:
        """The model's parameters and buffers by name: the very tensors, not copies."""
        return {**self.parameters(), **dict(self.model.named_buffers(remove_duplicate=False))}

    def parameters(self) -> dict[str, Tensor]:
        """The model's parameters by name, shared ones under each of their names.

        Raises:
            PlacementError: if they have been sharded or spread over devices since the trace.
        """
        return check_placement(dict(self.model.named_parameters(remove_duplicate=False)))

    def names(self) -> dict[str, list[str]]:
        """All names under which each parameter is registered, by each of them."""
        names: dict[int, list[str]] = {}
        parameters = self.parameters()
        for name, parameter in parameters.items():
            names.setdefault(id(parameter), []).append(name)
        return {name: names[id(parameter)] for name, parameter in parameters.items()}

    # What a person sees ----------------------------------------------------------------------

    COLUMNS: ClassVar = ("layer", "operation", "weights", "units", "scales")

    def rows(self) -> Iterator[tuple[str, str, str, str, str]]:
        """The rows of the table: layer, operation, weights, units, scales."""
        weights: dict[str, list[str]] = {}
        for edge in self.edges:
            weights.setdefault(edge.space, []).append("×".join(map(str, edge.shape)) or "1")
        for space in self.spaces:
            scales = self.scale[space.units]
            yield (
                space.name,
                space.operation,
                " + ".join(weights.pop(space.name, [])) or "-",
                f"{space.size:,}",
                self._status(space, scales),
            )
        for name, shapes in weights.items():
            yield name, "fixed", " + ".join(shapes), "-", "no scale touches these weights"

    def _status(self, space: Space, scales: Tensor) -> str:
        free = int((scales > 0).sum())
        parts = []
        if free:
            inexact = int((~self.exact[scales[scales > 0] - 1]).sum())
            note = " (up to eps in train mode: read by batch norm)" if inexact else ""
            parts.append(f"{free:,} free{note}")
        if free < space.size:
            reasons = "; ".join(space.reasons) or "tied to pinned units"
            parts.append(f"{space.size - free:,} pinned: {reasons}")
        return ", ".join(parts)

    def totals(self) -> str:
        """One line with m, H and H/m, and one about what the graph does not reach."""
        inexact = int((~self.exact).sum())
        kinds = f" ({self.H - inexact:,} exact, {inexact:,} before batch norm)" if inexact else ""
        line = f"m = {self.m:,} weights, H = {self.H:,} free scales{kinds}, H/m = "
        line += f"{self.invariant_ratio:.4g}, streams {self.streams}"
        if self.unreached:
            line += "\nnot reached by the graph: " + ", ".join(self.unreached)
        return line

    def __str__(self) -> str:
        rows = [self.COLUMNS, *self.rows()]
        widths = [max(len(row[i]) for row in rows) for i in range(len(self.COLUMNS) - 1)]
        right = {3}
        lines = []
        for row in rows:
            cells = [
                cell.rjust(width) if i in right else cell.ljust(width)
                for i, (cell, width) in enumerate(zip(row, widths, strict=False))
            ]
            lines.append("  ".join([*cells, row[-1]]).rstrip())
        lines.insert(1, "  ".join("─" * width for width in [*widths, 6]))
        return "\n".join([*lines, "", self.totals()])

    def __repr__(self) -> str:
        return (
            f"<Network of {type(self.model).__name__}: m={self.m:,}, H={self.H:,}, "
            f"H/m={self.invariant_ratio:.4g}, streams={self.streams!r}>"
        )

    def _repr_html_(self) -> str:
        def line(cells: tuple[str, ...], tag: str) -> str:
            return "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells)

        head = line(self.COLUMNS, "th")
        body = "".join(f"<tr>{line(row, 'td')}</tr>" for row in self.rows())
        caption = html.escape(self.totals()).replace("\n", "<br>")
        return (
            f"<table><caption style='caption-side:bottom'>{caption}</caption>"
            f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        )
