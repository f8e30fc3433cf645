"""The graph under construction: what the rules of the operations call."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from pathspace.errors import UnsupportedOperation
from pathspace.network import Edge, Network, Node, Normalization, Space, Streams
from pathspace.tracing.values import Value, Weight, compact
from pathspace.units import PINNED, ZERO, Partition

OnUnknown = Literal["error", "pin"]


class Graph:
    """Collects units, edges and ties while a model runs.

    Attributes:
        operation: the operation that is being applied, as torch calls it.
        function: the very function, to be applied to units as well.
        path: the modules whose forward is running, innermost last.
    """

    def __init__(self, model: nn.Module, streams: Streams, on_unknown: OnUnknown) -> None:
        self.model, self.streams, self.on_unknown = model, streams, on_unknown
        self.partition = Partition()
        self.spaces: list[Space] = []
        self.starts: list[int] = []  # their first units
        self.reasons: list[dict[str, None]] = []  # by space; a dict keeps the order
        self.links: dict[int, dict[int, str]] = {}  # by space: the spaces it is tied to, and why
        self.connections: dict[str, tuple[str, Tensor, Tensor]] = {}  # space, target, source
        self.normalizations: list[Normalization] = []
        self.joins: list[tuple[Tensor, Tensor]] = []
        self.additions: list[tuple[int, str, Tensor]] = []  # place, parameter, target
        self.program: list[Node] = []
        self.coarse: str | None = None
        self.parameters = dict(model.named_parameters(remove_duplicate=False))
        self.buffers = dict(model.named_buffers(remove_duplicate=False))
        self.path: list[str] = []
        self.operation = ""
        self.function: Callable[..., Any] = torch.relu
        self.size: int | None = None  # how many units are its own, after `agree_with`
        self._uses: dict[str, int] = {}

    # Where we are ------------------------------------------------------------------------------

    @property
    def module(self) -> str:
        """Path of the module whose forward is running."""
        return self.path[-1] if self.path else ""

    def where(self) -> str:
        """The operation and the module it is in, for messages."""
        module = f"`{self.module}`" if self.module else f"`{type(self.model).__name__}`"
        return f"{module} ({self.operation})" if self.operation else module

    def refuse(self, why: str) -> Any:
        """Raise :class:`UnsupportedOperation`, naming operation and module."""
        raise UnsupportedOperation(
            f"{self.where()} cannot be traced: {why}",
            operation=self.operation,
            module=self.module,
        )

    # Units -------------------------------------------------------------------------------------

    def emit(self, layer: str, count: int) -> Tensor:
        """New units, as a space of their own."""
        uses = self._uses[layer] = self._uses.get(layer, 0) + 1
        name = layer if uses == 1 else f"{layer}#{uses}"
        self.spaces.append(Space(name, layer, self.operation, self.partition.size, count))
        self.starts.append(self.partition.size)
        self.reasons.append({})
        return self.partition.fresh(count)

    def units(self, x: Any) -> Tensor:
        """The units of a value; a parameter used as data writes units of its own."""
        if isinstance(x, Value):
            if x.units is None:
                assert x.weight is not None
                name = x.weight.name
                shape = self.parameters[name].shape
                own = self.emit(self.layer(x), shape.numel()).view(shape)
                self.connect(Value(None, x.dtype, weight=Weight(name), shape=shape), own, PINNED)
                places = x.weight.positions
                if places is not None:
                    own = torch.where(places < 0, ZERO, own.reshape(-1)[places])
                x.units = own
            return x.units
        zero = isinstance(x, int | float) and x == 0
        return torch.tensor(ZERO if zero else PINNED)

    def is_pinned(self, units: Tensor) -> bool:
        """Whether all these units are pinned (or zero), so that the values carry no scale."""
        return bool((self.partition.find(compact(units)) <= PINNED).all())

    def constant_over(self, units: Tensor, keep: Sequence[int]) -> Tensor:
        """Make units constant along all axes but ``keep``, tying what differs; size 1 there."""
        units = compact(units)
        keep = [dim % units.dim() for dim in keep]
        dims = [d for d in range(units.dim()) if d not in keep and units.shape[d] > 1]
        return self.windows(units, lambda x: x.amax(dims, keepdim=True)) if dims else units

    def windows(self, units: Tensor, largest: Callable[[Tensor], Tensor]) -> Tensor:
        """Units of values that combine several others; the parts of a combination are tied.

        Args:
            units: of the operand.
            largest: the operation, with the maximum in place of the sum.
        """
        while True:
            roots = self.partition.find(units)
            high = largest(roots)
            low = -largest(torch.where(roots == ZERO, -self.partition.size, -roots))
            differ = (low != high) & (high != ZERO)
            if not differ.any():
                return largest(units)
            self.coarse = self.coarse or f"{self.where()} combines different units"
            self.tie(high[differ], low[differ], f"combined with other units in {self.where()}")

    def join(self, a: Tensor, b: Tensor) -> Tensor:
        """Units of a sum (or maximum) of two values, element by element."""
        shape = torch.broadcast_shapes(a.shape, b.shape)
        a, b = (compact(x)[(None,) * (len(shape) - x.dim())] for x in (a, b))
        a, b = torch.broadcast_tensors(a, b)
        differ = (a != b) & (a != ZERO) & (b != ZERO)
        out = torch.maximum(a, b)  # where one of the two is ZERO, the other
        if not differ.any():
            return out.expand(shape)
        pairs, place = _distinct(torch.stack([a[differ], b[differ]]))
        self.tie(pairs[0], pairs[1], f"added to other units in {self.where()}")
        constant = (pairs == PINNED).any(0)  # PINNED itself is a constant: no path comes from it
        if constant.all():
            return out.expand(shape)
        total = self.emit(self.module or "sum", pairs.shape[1])
        self.partition.tie(total, pairs.amax(0))
        if self.streams == "pinned":
            self.reasons[-1].setdefault("a sum")
        for part in pairs:
            self.link(len(self.spaces) - 1, self.spaces_of(part), "a sum of them")
        self.joins.extend((total, part) for part in pairs)
        out[differ] = total[place]
        return out.expand(shape)

    # Ties --------------------------------------------------------------------------------------

    def pin(self, units: Tensor, reason: str) -> None:
        """Pin units, and remember why for the spaces they belong to."""
        units = compact(units).reshape(-1)
        free = units[self.partition.find(units) > PINNED]
        if len(free):
            for index in self.spaces_of(free):
                self.reasons[index].setdefault(reason)
            self.partition.pin(free)

    def tie(self, a: Tensor, b: Tensor, reason: str) -> None:
        """Two units share one scale (``streams="shared"``) or are both pinned."""
        if self.streams == "pinned":
            self.pin(a, reason)
            self.pin(b, reason)
        else:
            self.merge(a, b, reason)

    def merge(self, a: Tensor, b: Tensor, reason: str) -> None:
        """Two units share one scale, whatever ``streams`` says (weights used twice)."""
        a, b = compact(a), compact(b)
        for units, others in ((a, b), (b, a)):
            if bool((others == PINNED).any()):  # in no space that could hand its reasons on
                units, others = torch.broadcast_tensors(units, others)
                self.pin(units[others == PINNED], reason)
        self.partition.tie(a, b)
        spaces = [self.spaces_of(x.reshape(-1)) for x in (a, b)]
        for one, other in (spaces, spaces[::-1]):
            for index in one:
                self.link(index, other, reason)

    def link(self, index: int, others: list[int], reason: str) -> None:
        """Remember that a space is tied to others."""
        for other in others:
            self.links.setdefault(index, {}).setdefault(other, reason)
            self.links.setdefault(other, {}).setdefault(index, reason)

    def spaces_of(self, units: Tensor) -> list[int]:
        """Indices of the spaces that units belong to."""
        units = units[units > PINNED]
        if not len(units):
            return []
        first = bisect.bisect_right(self.starts, int(units.min())) - 1
        last = bisect.bisect_right(self.starts, int(units.max())) - 1
        if first == last:  # the usual case
            return [first]
        places = torch.searchsorted(torch.tensor(self.starts), units, right=True) - 1
        return list(torch.unique(places).tolist())

    # Weights -----------------------------------------------------------------------------------

    def layer(self, weight: Value) -> str:
        """The layer that a parameter belongs to: its module, or itself if it is a raw one."""
        assert weight.weight is not None
        owner, _, attribute = weight.weight.name.rpartition(".")
        plain = attribute.removesuffix("_orig") in ("weight", "bias", "original")
        return owner if owner and plain else weight.weight.name

    def connect(self, weight: Value, target: Tensor, source: Tensor | int) -> None:
        """Record that entry e of a weight runs from ``source[e]`` to ``target[e]`` (broadcast)."""
        assert weight.weight is not None
        name, positions = weight.weight.name, weight.weight.positions
        shape = self.parameters[name].shape
        ends = [compact(torch.as_tensor(end)) for end in (target, source)]
        ends = [end[(None,) * (weight.ndim - end.dim())] for end in ends]
        reason = f"weight `{name}` used more than once"
        space, *known = self.connections.get(name, (self.spaces[-1].name,))
        if known:
            self.coarse = self.coarse or reason
        if positions is None:
            if isinstance(source, int):
                self.additions.append((len(self.program), name, ends[0]))
            for old, new in zip(known, ends, strict=False):
                self.merge(old, new, reason)
            if not known:
                self.connections[name] = (space, ends[0], ends[1])
            elif any((old == ZERO).any() for old in known):  # views of it came first
                full = [torch.where(old == ZERO, new, old) for old, new in zip(known, ends)]  # noqa: B905
                self.connections[name] = (space, full[0], full[1])
            return
        # A view of the parameter: scatter the units back to the places in the parameter.
        flat = positions[positions >= 0]
        full = []
        for index, end in enumerate(ends):
            new = end.expand(positions.shape)[positions >= 0]
            old = torch.full((shape.numel(),), ZERO)
            if known:
                old = known[index].expand(shape).reshape(-1)
                self.merge(old[flat], new, reason)
            once = torch.full_like(old, ZERO).scatter_reduce(0, flat, new, "amax")
            self.merge(once[flat], new, reason)
            full.append(torch.where(old == ZERO, once, old).view(shape))
        self.connections[name] = (space, full[0], full[1])

    def fix(self, weight: Value) -> None:
        """Record a parameter that no scale may touch."""
        assert weight.weight is not None
        name = weight.weight.name
        if name in self.connections:
            for end in self.connections[name][1:]:
                self.pin(end, f"weight `{name}` meets {self.where()}")
        else:
            here = torch.full((1,) * len(self.parameters[name].shape), PINNED)
            self.connections[name] = (self.layer(weight), here, here)

    # The result --------------------------------------------------------------------------------

    def agree_with(self, other: Graph) -> None:
        """Keep only what leaves another run of the same model (in train mode) unchanged too.

        A weight that both use ties the units of both; what meets a weight that only the other uses
        is pinned, because that weight has no edge here.
        """
        for name in other.connections.keys() - self.connections.keys():
            for end in other.connections[name][1:]:
                other.pin(end, f"weight `{name}`, which only this mode uses")
        own = torch.arange(self.partition.size)
        self.size = len(own)
        pinned = self.partition.find(own) == PINNED
        foreign = torch.arange(PINNED + 1, other.partition.size)
        shift = int(self.partition.fresh(len(foreign))[0]) - PINNED - 1

        def here(units: Tensor) -> Tensor:
            return torch.where(units > PINNED, units + shift, units)

        self.partition.tie(here(foreign), here(other.partition.find(foreign)))
        for name in self.connections.keys() & other.connections.keys():
            ends = zip(self.connections[name][1:], other.connections[name][1:], strict=True)
            for mine, theirs in ends:
                self.partition.tie(mine, here(theirs))
                if bool((mine == ZERO).any()):  # an entry that is not read here will not move
                    mine, theirs = torch.broadcast_tensors(mine, theirs)
                    self.partition.tie(here(theirs[mine == ZERO]), torch.tensor([PINNED]))
        inputs = {norm.mean: norm.input for norm in other.normalizations if norm.mean}
        for norm in self.normalizations:
            if norm.mean in inputs:
                self.partition.tie(norm.input, here(inputs[norm.mean]))
        newly = (self.partition.find(own) == PINNED) & ~pinned
        for index in self.spaces_of(own[newly]):
            name = self.spaces[index].name
            for space, reasons in zip(other.spaces, other.reasons, strict=True):
                if space.name == name:
                    self.reasons[index] |= dict.fromkeys(f"in train mode: {r}" for r in reasons)
            self.reasons[index].setdefault("tied to pinned units in train mode")

    def _scales(self) -> tuple[Tensor, int]:
        """The scale of every unit, and how many are free."""
        scale, free = self.partition.scales()
        if self.size is None:
            return scale, free
        scale = scale[: self.size]
        known = torch.unique(scale)  # without those of another run
        return torch.searchsorted(known, scale), len(known) - 1

    def finish(self, inputs: tuple[Any, Any], outputs: Any) -> Network:
        """Number the free scales and put everything together."""
        scale, free = self._scales()
        edges = []
        for name, (space, target, source) in self.connections.items():
            shape = tuple(self.parameters[name].shape)
            edges.append(Edge(name, shape, space, target, source, scale[target], scale[source]))
        exact = torch.ones(free + 1, dtype=torch.bool)
        normalizations = []
        for norm in self.normalizations:
            normalizations.append(replace(norm, input_scale=scale[norm.input]))
            if norm.eps > 0:
                exact[scale[norm.input]] = False
        reached = {id(self.parameters[name]) for name in self.connections}
        return Network(
            model=self.model,
            streams=self.streams,
            spaces=self._explained(scale),
            edges=tuple(edges),
            normalizations=tuple(normalizations),
            scale=scale,
            exact=exact[1:],
            joins=tuple(self.joins),
            additions=tuple(self.additions),
            unreached=tuple(n for n, p in self.parameters.items() if id(p) not in reached),
            program=tuple(self.program),
            inputs=inputs,
            outputs=outputs,
            coarse=self.coarse,
        )

    def _explained(self, scale: Tensor) -> tuple[Space, ...]:
        """The spaces with the reasons why units are pinned, handed on along ties."""
        pinned = [bool((scale[space.units] == 0).any()) for space in self.spaces]
        queue = [i for i, reasons in enumerate(self.reasons) if reasons and pinned[i]]
        for index in queue:  # grows while it is walked: breadth first
            for other, reason in self.links.get(index, {}).items():
                if pinned[other] and not self.reasons[other]:
                    self.reasons[other][f"tied to `{self.spaces[index].name}`: {reason}"] = None
                    queue.append(other)
        return tuple(
            replace(space, reasons=tuple(reasons) if is_pinned else ())
            for space, reasons, is_pinned in zip(self.spaces, self.reasons, pinned, strict=True)
        )


def _distinct(pairs: Tensor) -> tuple[Tensor, Tensor]:
    """The distinct columns of a (2, n) tensor, and the place of every column among them."""
    if bool((pairs[0].diff() > 0).all()):  # they are, as in every ordinary sum
        return pairs, torch.arange(pairs.shape[1])
    return torch.unique(pairs, dim=1, return_inverse=True)
