"""`trace`: follow a model's units by running it once on tensors that have a shape but no data.

A torch-function mode sees every operation of the model's ``forward``: of leaf modules, functional
calls, tensor methods, hooks and parametrizations alike, with the user's own parameters as
arguments. So parameters are matched by identity, not by name, and nothing is hidden in a module
that is treated as a leaf. Beside every activation the tracer carries an integer tensor of the same
shape, the unit that each value belongs to (stride 0 along axes on which it is constant, so that it
costs nothing). :mod:`pathspace.operations` says for each operation what becomes of the units.
"""

from __future__ import annotations

import contextlib
import math
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.modules import module as nn_module
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakIdKeyDictionary

from pathspace import operations
from pathspace.errors import TraceError, UnsupportedOperation
from pathspace.network import Edge, Network, Node, Normalization, Ref, Space, StateRef, Streams
from pathspace.units import PINNED, ZERO, Partition

OnUnknown = Literal["error", "pin"]


def trace(
    model: nn.Module,
    example_input: Any,
    *,
    streams: Streams = "pinned",
    on_unknown: OnUnknown = "error",
) -> Network:
    r"""Find the units of a model, the weights between them, and which scales are free.

    For one scale :math:`c_v > 0` per unit, the weights :math:`w_{uv} \leftarrow w_{uv} c_v / c_u`
    give the same function, provided that every unit meets positively homogeneous operations only.
    ``trace`` finds the largest set of scales of this kind (one per group of tied units). The model
    is run once, in eval mode, without data: nothing is computed and the model is left as it was.

    Args:
        model: any module. Wrappers (DataParallel, DistributedDataParallel, torch.compile) are
            unwrapped.
        example_input: a tensor, a tuple of positional arguments, or a mapping of keyword
            arguments, of the shapes that the model takes. Only shapes and dtypes matter.
        streams: what a sum does. ``"pinned"``: units that are added are pinned (the papers' group,
            block by block). ``"shared"``: they share one scale, so a residual stream is scaled as
            a whole (the full group).
        on_unknown: ``"error"`` raises :class:`UnsupportedOperation` for an operation that is in no
            table; ``"pin"`` pins the units that meet it and goes on.

    Returns:
        the :class:`Network`; print it to see layers, units, m, H and what is pinned and why.

    Example:
        >>> import torch, pathspace as ps
        >>> model = torch.nn.Sequential(
        ...     torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2)
        ... )
        >>> print(ps.trace(model, torch.randn(1, 3)))
        layer  operation  weights  units  scales
        ─────  ─────────  ───────  ─────  ──────
        input  input      -            3  3 pinned: input
        0      linear     4×3 + 4      4  4 free
        2      linear     2×4 + 2      2  2 pinned: output
        <BLANKLINE>
        m = 26 weights, H = 4 free scales, H/m = 0.1538, streams pinned

    Reference: Neyshabur et al. 2017, section 3; Meng et al. 2019, section 3.1.
    """
    if streams not in ("pinned", "shared"):
        raise ValueError(f'streams must be "pinned" or "shared", not {streams!r}')
    if on_unknown not in ("error", "pin"):
        raise ValueError(f'on_unknown must be "error" or "pin", not {on_unknown!r}')
    model = unwrap(model)
    args, kwargs = _arguments(model, example_input)
    tracer = Tracer(model, streams, on_unknown)
    return tracer.run(args, kwargs)


def unwrap(model: nn.Module) -> nn.Module:
    """The module inside DataParallel, DistributedDataParallel and torch.compile."""
    if not isinstance(model, nn.Module):
        hint = "; call it to make one" if isinstance(model, type) else ""
        raise TraceError(f"model must be a torch.nn.Module, not {type(model).__name__}{hint}")
    while True:
        if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
            model = model.module
        elif type(model).__name__ == "OptimizedModule" and hasattr(model, "_orig_mod"):
            model = model._orig_mod
        else:
            break
    for name, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            raise TraceError(
                f"`{name or type(module).__name__}` is a TorchScript module, whose operations "
                "cannot be seen; pass the original torch.nn.Module"
            )
    return model


def _arguments(model: nn.Module, example: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Split the example into positional and keyword arguments and check the tensors in it."""
    args, kwargs = (), {}
    if isinstance(example, Mapping):
        kwargs = dict(example)
    elif isinstance(example, tuple | list):
        args = tuple(example)
    else:
        args = (example,)
    tensors = [t for t in _leaves((args, kwargs)) if isinstance(t, Tensor)]
    if not tensors:
        raise TraceError(
            f"example_input must hold at least one tensor, not {type(example).__name__}; pass a "
            "tensor, a tuple of arguments or a dict of keyword arguments"
        )
    devices = {p.device for p in model.parameters()} | {b.device for b in model.buffers()}
    for tensor in tensors:
        if tensor.numel() == 0:
            raise TraceError(
                f"example_input has the empty shape {tuple(tensor.shape)}; pass at least one "
                "sample"
            )
        if devices and tensor.device not in devices:
            found = ", ".join(sorted(map(str, devices)))
            raise TraceError(
                f"example_input is on {tensor.device} but the model is on {found}; "
                f"move one of them, e.g. example_input.to({sorted(map(str, devices))[0]!r})"
            )
    return args, kwargs


def _leaves(tree: Any) -> Iterator[Any]:
    if isinstance(tree, Mapping):
        tree = list(tree.values())
    if isinstance(tree, tuple | list):
        for branch in tree:
            yield from _leaves(branch)
    else:
        yield tree


def _map(function: Callable[[Any], Any], tree: Any) -> Any:
    """Apply ``function`` to the leaves of nested tuples, lists, dicts and slices."""
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):  # a named tuple
        return type(tree)(*(_map(function, branch) for branch in tree))
    if isinstance(tree, tuple | list):
        branches = [_map(function, branch) for branch in tree]
        return branches if isinstance(tree, list) else tuple(branches)
    if isinstance(tree, Mapping):
        return {key: _map(function, branch) for key, branch in tree.items()}
    if isinstance(tree, slice):
        return slice(*(_map(function, part) for part in (tree.start, tree.stop, tree.step)))
    return function(tree)


@dataclass(frozen=True)
class Weight:
    """A view of a parameter: entry i of the view is entry ``positions[i]`` of the parameter.

    ``positions`` is ``None`` for the parameter as it is.
    """

    name: str
    positions: Tensor | None = None


class Value:
    """What the tracer knows of one tensor: its units, or the parameter it is a view of."""

    def __init__(
        self,
        units: Tensor | None,
        dtype: torch.dtype,
        *,
        weight: Weight | None = None,
        shape: Sequence[int] = (),
    ) -> None:
        self.units = units
        self.dtype = dtype
        self.weight = weight
        self.shape = torch.Size(shape) if units is None else units.shape
        self.ref: Any = None
        self.aliases: weakref.WeakSet[Value] = weakref.WeakSet((self,))

    @property
    def ndim(self) -> int:
        return len(self.shape)


class Tracer(TorchFunctionMode):
    """Runs a model and builds its graph; the rules in ``operations`` call the methods here."""

    def __init__(self, model: nn.Module, streams: Streams, on_unknown: OnUnknown) -> None:
        super().__init__()
        self.model, self.streams, self.on_unknown = model, streams, on_unknown
        self.partition = Partition()
        self.spaces: list[Space] = []
        self.reasons: list[dict[str, None]] = []  # by space; a dict keeps the order
        self.connections: dict[str, tuple[str, Tensor, Tensor]] = {}  # space, target, source
        self.normalizations: list[Normalization] = []
        self.joins: list[tuple[Tensor, Tensor]] = []
        self.program: list[Node] = []
        self.coarse: str | None = None
        self.values = WeakIdKeyDictionary()
        self.parameters = dict(model.named_parameters(remove_duplicate=False))
        self.names: dict[int, str] = {}
        for name, tensor in [*model.named_buffers(), *self.parameters.items()]:
            self.names.setdefault(id(tensor), name)
        self.learnable = {id(parameter) for parameter in self.parameters.values()}
        self.path: list[str] = []
        self.operation = ""
        self.function: Callable[..., Any] = torch.relu
        self.device = torch.device("cpu")
        self.taken: dict[str, int] = {}

    # Running the model ------------------------------------------------------------------------

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Network:
        """Run the model on shapes and return the finished network."""
        inputs: list[Tensor] = []  # alive while the model runs

        def enter(leaf: Any) -> Any:
            if not isinstance(leaf, Tensor):
                return leaf
            self.device = leaf.device
            batch, features = (leaf.shape[0], leaf.shape[1:]) if leaf.dim() else (1, ())
            self.operation = "input"
            units = self.emit("input", math.prod(features))
            self.pin(units, "input")
            units = units.view(1, *features).expand(batch, *features).view(leaf.shape)
            tensor = self._wrap(Value(units, leaf.dtype))
            self.values[tensor].ref = StateRef(f"input {len(inputs)}")
            inputs.append(tensor)
            return tensor

        args, kwargs = _map(enter, args), _map(enter, kwargs)
        with _unchanged(self.model), _module_paths(self.model, self.path), self:
            try:
                result = self.model(*args, **kwargs)
            except (TraceError, RecursionError):
                raise
            except Exception as error:
                shapes = ", ".join(str(tuple(tensor.shape)) for tensor in inputs)
                raise TraceError(
                    f"the model failed on an example input of shape {shapes} at {self.where()}: "
                    f"{type(error).__name__}: {error}"
                ) from error
        outputs = self._outputs(result)
        return self._finish(len(inputs), outputs)

    def _outputs(self, result: Any) -> Any:
        self.operation, self.path[:] = "output", []
        if not isinstance(result, Tensor | tuple | list | Mapping):
            result = vars(result) if hasattr(result, "__dict__") else result
        found: list[Ref] = []

        def leave(leaf: Any) -> Any:
            if not isinstance(leaf, Tensor):
                return leaf
            value = self.value(leaf)
            if value.weight is not None:
                self.units(value)
            if value.units is not None:
                self.pin(value.units, "output")
            found.append(value.ref)
            return value.ref

        outputs = _map(leave, result)
        if not found:
            raise TraceError(
                f"the model returned {type(result).__name__}, in which there is no tensor; "
                "return a tensor, or a tuple, list or dict of tensors"
            )
        return outputs

    def _finish(self, inputs: int, outputs: Any) -> Network:
        scale, free = self.partition.scales()
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
        spaces = [
            replace(space, reasons=tuple(reasons) if (scale[space.units] == 0).any() else ())
            for space, reasons in zip(self.spaces, self.reasons, strict=True)
        ]
        reached = {id(self.parameters[name]) for name in self.connections}
        return Network(
            model=self.model,
            streams=self.streams,
            spaces=tuple(spaces),
            edges=tuple(edges),
            normalizations=tuple(normalizations),
            scale=scale,
            exact=exact[1:],
            joins=tuple(self.joins),
            unreached=tuple(n for n, p in self.parameters.items() if id(p) not in reached),
            program=tuple(self.program),
            inputs=inputs,
            outputs=outputs,
            coarse=self.coarse,
        )

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        tensors = [leaf for leaf in _leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        followed = [t for t in tensors if t in self.values or id(t) in self.learnable]
        if not followed:
            for tensor in tensors:
                if tensor.is_meta and not self.model_on_meta():
                    self.refuse(f"`{_name(func)}` meets a tensor of unknown origin", func)
            return self._constant(func, args, kwargs)
        if operations.is_inspection(func):
            if _name(func) == "device":
                return self.device
            return func(*args, **kwargs)
        known = operations.TABLE.get(func)
        if known is None:
            rule, inplace = operations.unknown, False
            self.operation = _name(func)
        else:
            rule, self.operation = known.rule, known.name
            inplace = known.is_inplace(args, kwargs)
        self.function = func
        if kwargs.get("out") is not None:
            self.refuse("the argument `out=` is not followed; use the returned tensor", func)
        values, named = _map(self._lift, args), _map(self._lift, kwargs)
        result = rule(self, *values, **named)
        return self._record(func, args, kwargs, result, inplace)

    def model_on_meta(self) -> bool:
        """Whether the user's model has no data of its own."""
        return self.device.type == "meta"

    def _constant(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Compute what involves no activation and no parameter; never write to a buffer."""
        known = operations.TABLE.get(func)
        name = _name(func)
        if (known and known.is_inplace(args, kwargs)) or operations.writes(name):
            args = tuple(a.clone() if isinstance(a, Tensor) else a for a in args)
        return func(*args, **kwargs)

    def _lift(self, leaf: Any) -> Any:
        return self.value(leaf) if isinstance(leaf, Tensor) else leaf

    def value(self, tensor: Tensor) -> Value:
        """What is known of a tensor; a parameter is a weight, anything else new is a constant."""
        value = self.values.get(tensor)
        if value is not None:
            return value
        name = self.names.get(id(tensor))
        if id(tensor) in self.learnable:
            assert name is not None
            value = Value(None, tensor.dtype, weight=Weight(name), shape=tensor.shape)
        else:
            if tensor.is_meta and not self.model_on_meta():
                self.refuse(f"`{self.operation}` meets a tensor of unknown origin")
            zero = not tensor.is_meta and name is None and not bool(tensor.any())
            units = torch.full((), ZERO if zero else PINNED, dtype=torch.long)
            value = Value(units.expand(tensor.shape), tensor.dtype)
        value.ref = StateRef(name) if name else tensor
        return value

    def _record(
        self,
        func: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        result: Any,
        inplace: bool,
    ) -> Any:
        def refer(leaf: Any) -> Any:
            return self.value(leaf).ref if isinstance(leaf, Tensor) else leaf

        node = len(self.program)
        self.program.append(
            Node(
                self.operation,
                func,
                _map(refer, args),
                _map(refer, kwargs),
                self.module,
                inplace,
            )
        )
        if inplace:
            return self._overwrite(args[0] if args else kwargs["input"], result, Ref(node))
        if isinstance(result, Value):
            result.ref = Ref(node)
            return self._wrap(result)
        for item, value in enumerate(result):
            value.ref = Ref(node, item)
        wrapped = [self._wrap(value) for value in result]
        named = operations.NAMED_RESULTS.get(self.operation)
        return named(wrapped) if named else tuple(wrapped)

    def _overwrite(self, tensor: Tensor, result: Value, ref: Ref) -> Tensor:
        """An in-place operation: the tensor object stays, what it holds is the result."""
        value = self.value(tensor)
        if value.weight is not None or value.units is None or result.units is None:
            self.refuse("a parameter is changed in place during the forward pass")
        if not self._same_scales(value.units, result.units) and len(value.aliases) > 1:
            self.refuse(
                "an in-place operation changes units that another tensor still shares; "
                "use the out-of-place form"
            )
        value.units, value.ref = result.units, ref
        return tensor

    def _same_scales(self, a: Tensor, b: Tensor) -> bool:
        a, b = compact(a), compact(b)
        return a.shape == b.shape and torch.equal(self.partition.find(a), self.partition.find(b))

    def _wrap(self, value: Value) -> Tensor:
        tensor = torch.empty(value.shape, dtype=value.dtype, device="meta")
        self.values[tensor] = value
        return tensor

    # What the rules use -----------------------------------------------------------------------

    @property
    def module(self) -> str:
        """Path of the module whose forward is running."""
        return self.path[-1] if self.path else ""

    def where(self) -> str:
        """The operation and the module it is in, for messages."""
        module = f"`{self.module}`" if self.module else f"`{type(self.model).__name__}`"
        return f"{module} ({self.operation})" if self.operation else module

    def refuse(self, why: str, func: Callable[..., Any] | None = None) -> Any:
        """Raise :class:`UnsupportedOperation`, naming operation and module."""
        if func is not None:
            self.operation = _name(func)
        raise UnsupportedOperation(
            f"{self.where()} cannot be traced: {why}",
            operation=self.operation,
            module=self.module,
        )

    def emit(self, layer: str, count: int) -> Tensor:
        """New units, as a space of their own."""
        uses = self.taken[layer] = self.taken.get(layer, 0) + 1
        name = layer if uses == 1 else f"{layer}#{uses}"
        self.spaces.append(Space(name, layer, self.operation, self.partition.size, count))
        self.reasons.append({})
        return self.partition.fresh(count)

    def pin(self, units: Tensor, reason: str) -> None:
        """Pin units, and remember why for the spaces they belong to."""
        units = compact(units).reshape(-1)
        free = units[self.partition.find(units) > PINNED]
        if len(free):
            for index in self._spaces_of(free):
                self.reasons[index].setdefault(reason)
            self.partition.tie(free, torch.tensor([PINNED]))

    def _spaces_of(self, units: Tensor) -> list[int]:
        starts = torch.tensor([space.start for space in self.spaces])
        return list(torch.unique(torch.searchsorted(starts, units, right=True) - 1).tolist())

    def tie(self, a: Tensor, b: Tensor, reason: str) -> None:
        """Two units share one scale (``streams="shared"``) or are both pinned."""
        if self.streams == "pinned":
            self.pin(a, reason)
            self.pin(b, reason)
            return
        self.merge(a, b, reason)

    def merge(self, a: Tensor, b: Tensor, reason: str) -> None:
        """Two units share one scale, whatever ``streams`` says (weights used twice)."""
        before = [self.partition.find(compact(x).reshape(-1)) > PINNED for x in (a, b)]
        self.partition.tie(compact(a), compact(b))
        for x, free in zip((a, b), before, strict=True):
            flat = compact(x).reshape(-1)
            now = flat[free & (self.partition.find(flat) == PINNED)]
            if len(now):
                for index in self._spaces_of(now):
                    self.reasons[index].setdefault(reason)

    def units(self, x: Any) -> Tensor:
        """The units of a value; a parameter used as data writes units of its own."""
        if isinstance(x, Value):
            if x.units is None:
                assert x.weight is not None
                name = x.weight.name
                own = self.emit(self.layer(x), self.parameters[name].numel())
                own = own.view(self.parameters[name].shape)
                self.connect(Value(None, x.dtype, weight=Weight(name)), own, PINNED)
                if x.weight.positions is not None:
                    own = own.reshape(-1)[x.weight.positions]
                x.units = own
            return x.units
        zero = isinstance(x, int | float | complex | bool) and x == 0
        return torch.tensor(ZERO if zero else PINNED)

    def is_pinned(self, units: Tensor) -> bool:
        """Whether all these units are pinned (or zero), so that the values carry no scale."""
        return bool((self.partition.find(compact(units)) <= PINNED).all())

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
        ends = [end[(None,) * (max(len(shape), weight.ndim) - end.dim())] for end in ends]
        space = self.spaces[-1].name
        if positions is None:
            if name in self.connections:
                _, *known = self.connections[name]
                for old, new in zip(known, ends, strict=True):
                    self.merge(old, new, f"weight `{name}` used more than once")
            else:
                self.connections[name] = (space, ends[0], ends[1])
            return
        # A view of the parameter: scatter the units back to the places in the parameter.
        full = [torch.zeros(shape.numel(), dtype=torch.long) for _ in ends]
        if name in self.connections:
            space, *known = self.connections[name]
            full = [old.expand(shape).reshape(-1).clone() for old in known]
        flat = positions.reshape(-1)
        for old, end in zip(full, ends, strict=True):
            new = end.expand(positions.shape).reshape(-1)
            self.merge(old[flat], new, f"weight `{name}` used more than once")
            once = torch.full_like(old, ZERO).scatter_reduce_(0, flat, new, "amax")
            self.merge(once[flat], new, f"weight `{name}` used more than once")
            old[:] = torch.where(old == ZERO, once, old)
        self.connections[name] = (space, full[0].view(shape), full[1].view(shape))

    def fix(self, weight: Value) -> None:
        """Record a parameter that no scale may touch."""
        if weight.weight is not None and weight.weight.name not in self.connections:
            name = weight.weight.name
            here = torch.full((1,) * len(self.parameters[name].shape), PINNED)
            self.connections[name] = (self.layer(weight), here, here)
        elif weight.weight is not None:
            _, target, source = self.connections[weight.weight.name]
            for end in (target, source):
                self.pin(end, f"weight `{weight.weight.name}` meets {self.where()}")

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
        a, b = torch.broadcast_tensors(*_aligned(compact(a), compact(b)))
        if torch.equal(a, b) or bool((b == ZERO).all()):
            return a.expand(shape)
        if bool((a == ZERO).all()):
            return b.expand(shape)
        constant = ((a == PINNED) | (b == PINNED)).any()
        differ = (a != b) & (a != ZERO) & (b != ZERO)
        self.tie(a[differ], b[differ], f"added to other units in {self.where()}")
        if constant:  # PINNED itself is a constant: nothing that a path could come from
            return torch.maximum(a, b).expand(shape)
        pairs, place = torch.unique(
            torch.stack([a[differ], b[differ]]), dim=1, return_inverse=True
        )
        total = self.emit(f"{self.module or 'sum'}", pairs.shape[1])
        self.partition.tie(total, pairs[0])
        if self.streams == "pinned":
            self.reasons[-1].setdefault(f"sum in {self.where()}")
        for part in pairs:
            self.joins.append((total, part))
        out = torch.maximum(a, b)
        out[differ] = total[place]
        return out.expand(shape)


def compact(units: Tensor) -> Tensor:
    """The same units with size 1 along the axes on which they are constant by construction."""
    for dim, (size, stride) in enumerate(zip(units.shape, units.stride(), strict=True)):
        if stride == 0 and size > 1:
            units = units.narrow(dim, 0, 1)
    return units


def _aligned(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    dims = max(a.dim(), b.dim())
    return a[(None,) * (dims - a.dim())], b[(None,) * (dims - b.dim())]


def _name(func: Callable[..., Any]) -> str:
    """The name of a torch function; a property getter has the name of the property."""
    name = getattr(func, "__name__", type(func).__name__)
    if name in ("__get__", "__set__"):
        name = getattr(getattr(func, "__self__", None), "__name__", name)
    return str(name)


_REGISTRIES = ("_parameters", "_buffers", "_modules")


@contextlib.contextmanager
def _unchanged(model: nn.Module) -> Iterator[None]:
    """Run in eval mode without autograd; afterwards everything in the model is as it was."""
    kept = []
    for module in model.modules():
        registered = {key: dict(module.__dict__[key]) for key in _REGISTRIES}
        kept.append((module, dict(module.__dict__), registered))
    compiled = "torch._dynamo" in sys.modules  # only then can a part of the model be compiled
    eager = torch.compiler.set_stance("force_eager") if compiled else contextlib.nullcontext()
    try:
        for module, _, _ in kept:
            module.__dict__["training"] = False
        with torch.no_grad(), torch.random.fork_rng(devices=[]), eager:
            yield
    finally:
        for module, attributes, registered in kept:
            for name in module.__dict__.keys() - attributes.keys():
                del module.__dict__[name]
            module.__dict__.update(attributes)
            for key, entries in registered.items():
                slots = module.__dict__[key]
                slots.clear()
                slots.update(entries)


@contextlib.contextmanager
def _module_paths(model: nn.Module, path: list[str]) -> Iterator[None]:
    """Keep the path of the module that is running on top of ``path``."""
    names = {id(module): name for name, module in model.named_modules()}
    thread = threading.get_ident()

    def enter(module: nn.Module, _: Any) -> None:
        if threading.get_ident() == thread:
            path.append(names.get(id(module), type(module).__name__))

    def leave(module: nn.Module, _: Any, __: Any) -> None:
        if threading.get_ident() == thread and path:
            path.pop()

    before = nn_module.register_module_forward_pre_hook(enter)
    after = nn_module.register_module_forward_hook(leave)
    try:
        yield
    finally:
        before.remove()
        after.remove()
