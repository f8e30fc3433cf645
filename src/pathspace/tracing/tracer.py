"""The torch-function mode that sees every operation of a model and keeps the books."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakIdKeyDictionary

from pathspace.errors import TraceError
from pathspace.network import Node, Ref, StateRef, Streams
from pathspace.tracing import rules
from pathspace.tracing.constants import Constants
from pathspace.tracing.graph import Graph, OnUnknown
from pathspace.tracing.guards import module_paths, unchanged
from pathspace.tracing.table import TABLE, function_name, is_inspection, overwrites
from pathspace.tracing.values import Value, Weight, compact, leaves, map_leaves, opened
from pathspace.units import PINNED, ZERO


class Tracer(TorchFunctionMode):
    """Runs a model on tensors without data; the rules build the graph."""

    def __init__(self, model: nn.Module, streams: Streams, on_unknown: OnUnknown) -> None:
        super().__init__()
        self.graph = Graph(model, streams, on_unknown)
        self.values = WeakIdKeyDictionary()
        self.names: dict[int, str] = {}
        for name, tensor in [*self.graph.buffers.items(), *self.graph.parameters.items()]:
            self.names.setdefault(id(tensor), name)
        self.constants = Constants()
        self.learnable = {id(parameter) for parameter in self.graph.parameters.values()}
        self.device = torch.device("cpu")
        self.inputs: list[Tensor] = []  # alive while the model runs

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any], *, training: bool) -> Any:
        """Run the model on the shapes of the arguments; the graph is then complete.

        Returns:
            what the model returns, tensors as references to the program.
        """
        args, kwargs = map_leaves(self._enter, args), map_leaves(self._enter, kwargs)
        graph = self.graph
        with unchanged(graph.model, training), module_paths(graph.model, graph.path), self:
            try:
                result = graph.model(*args, **kwargs)
            except (TraceError, RecursionError):
                raise
            except Exception as error:
                shapes = ", ".join(str(tuple(tensor.shape)) for tensor in self.inputs)
                raise TraceError(
                    f"the model failed on an example input of shape {shapes} at {graph.where()}: "
                    f"{type(error).__name__}: {error}"
                ) from error
        graph.path.clear()
        return self._leave(result)

    def _enter(self, leaf: Any) -> Any:
        """An input: each of its features is a pinned unit, the same in every sample."""
        if not isinstance(leaf, Tensor):
            return leaf
        self.device = leaf.device
        features = leaf.shape[1:]
        self.graph.operation = "input"
        units = self.graph.emit("input", math.prod(features))
        self.graph.pin(units, "input")
        value = Value(units.view(features).expand(leaf.shape), leaf.dtype)
        value.ref = StateRef(f"input {len(self.inputs)}")
        self.inputs.append(self._wrap(value))
        return self.inputs[-1]

    def _leave(self, result: Any) -> Any:
        """The outputs: their units are pinned."""
        found = []
        seen: dict[int, Any] = {}  # objects may refer to each other in a circle

        def leave(leaf: Any) -> Any:
            if not isinstance(leaf, Tensor):
                inside = opened(leaf)
                if inside is leaf:
                    return leaf
                if id(leaf) in seen:
                    return None
                seen[id(leaf)] = leaf
                return map_leaves(leave, inside)
            value = self.value(leaf)
            self.graph.pin(self.graph.units(value), "output")
            found.append(value.ref)
            return value.ref

        self.graph.operation = "output"
        outputs = map_leaves(leave, result)
        if not found:
            raise TraceError(
                f"the model returned {type(result).__name__}, in which there is no tensor; "
                "return a tensor, or a tuple, list, dict or dataclass of tensors"
            )
        return outputs

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Apply the rule of an operation in place of the operation."""
        kwargs = kwargs or {}
        if func is Tensor.__iter__:
            return iter(self.__torch_function__(torch.unbind, types, args, kwargs))
        tensors = [leaf for leaf in leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        known = TABLE.get(func)
        inplace = known.is_inplace(args, kwargs) if known else overwrites(func)
        if not any(t in self.values or id(t) in self.learnable for t in tensors):
            for tensor in tensors:
                self._check_origin(tensor, func)
            return self.constants.compute(func, args, kwargs, inplace)
        if isinstance(out := kwargs.get("out"), Tensor):
            rest = {key: value for key, value in kwargs.items() if key != "out"}
            result = self.__torch_function__(func, types, args, rest)
            return self.__torch_function__(Tensor.copy_, types, (out, result))
        if known is None and is_inspection(func):
            return self.device if function_name(func) == "device" else func(*args, **kwargs)
        graph = self.graph
        graph.function = func
        graph.operation = known.name if known else function_name(func)
        rule = known.rule if known else rules.unknown
        if kwargs.get("out") is not None:
            graph.refuse("several tensors as `out=` are not followed; use the returned ones")
        result = rule(graph, *map_leaves(self._lift, args), **map_leaves(self._lift, kwargs))
        return self._record(known.spelling if known else func, args, kwargs, result, inplace)

    def _lift(self, leaf: Any) -> Any:
        return self.value(leaf) if isinstance(leaf, Tensor) else leaf

    def value(self, tensor: Tensor) -> Value:
        """What is known of a tensor; a parameter is a weight, anything else new is a constant."""
        value = self.values.get(tensor)
        if value is not None:
            return value
        name = self.names.get(id(tensor))
        if id(tensor) in self.learnable and name is not None:
            value = Value(None, tensor.dtype, weight=Weight(name), shape=tensor.shape)
            value.ref = StateRef(name)
            return value
        self._check_origin(tensor, None)
        current = self.constants.recorded(tensor)
        known = name is not None and current is tensor  # a buffer may hold anything later on
        zero = not known and not current.is_meta and not bool(current.any())
        value = Value(torch.tensor(ZERO if zero else PINNED).expand(tensor.shape), tensor.dtype)
        value.ref = StateRef(name) if name is not None and known else current
        return value

    def _check_origin(self, tensor: Tensor, func: Callable[..., Any] | None) -> None:
        """Refuse a constant that is none: something that we could not see has computed it."""
        unseen = tensor.is_meta and self.device.type != "meta"
        if not unseen and not self.constants.is_stale(tensor):
            return
        if func is not None:
            self.graph.operation = function_name(func)
        if unseen:
            self.graph.refuse(
                "it meets a tensor that no visible operation computed (TorchScript or a custom "
                "kernel?); replace that part by torch operations"
            )
        self.graph.refuse(
            "it reads memory that was written through another tensor (a view); "
            "use torch.cat or out-of-place operations"
        )

    def _record(
        self,
        func: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        result: Any,
        inplace: bool,
    ) -> Any:
        """Write the operation into the program and wrap its results as tensors."""

        def refer(leaf: Any) -> Any:
            return self.value(leaf).ref if isinstance(leaf, Tensor) else leaf

        graph, node = self.graph, len(self.graph.program)
        where = (map_leaves(refer, args), map_leaves(refer, kwargs), graph.module)
        graph.program.append(Node(graph.operation, func, *where, inplace))
        if inplace:
            return self._overwrite(args[0] if args else kwargs["input"], result, Ref(node))
        if isinstance(result, Value):
            result.ref = Ref(node)
            return self._wrap(result)
        wrapped: list[Any] = []
        for item, value in enumerate(result):
            if isinstance(value, Value):
                value.ref = Ref(node, item)
            wrapped.append(self._wrap(value) if isinstance(value, Value) else value)
        named = getattr(torch.return_types, graph.operation, None)
        return named(wrapped) if named else tuple(wrapped)

    def _overwrite(self, tensor: Tensor, result: Value, ref: Ref) -> Tensor:
        """An in-place operation: the tensor object stays, what it holds is the result."""
        value = self.value(tensor)
        if value.units is None or result.units is None:
            return self.graph.refuse(
                "a parameter (or a copy of one) is changed in place during the forward pass; "
                "use the out-of-place form"
            )
        if value.shape != result.shape:
            self.graph.refuse("it changes a tensor's shape in place; use the out-of-place form")
        if len(value.aliases) > 1 and not self._is_harmless(value.units, result.units):
            self.graph.refuse(
                "an in-place operation changes units that another tensor still shares; "
                "use the out-of-place form"
            )
        if tensor not in self.values:
            self.constants.overwritten(tensor)
            self.values[tensor] = value
        value.units, value.ref = result.units, ref
        return tensor

    def _is_harmless(self, old: Tensor, new: Tensor) -> bool:
        """Whether a tensor that keeps the old units is still right: same scales, no new units."""
        old, new = torch.broadcast_tensors(compact(old), compact(new))
        find = self.graph.partition.find
        kept = bool(((old == new) | (new == PINNED)).all())
        return kept and torch.equal(find(old), find(new))

    def _wrap(self, value: Value) -> Tensor:
        tensor = torch.empty(value.shape, dtype=value.dtype, device="meta")
        self.values[tensor] = value
        return tensor
