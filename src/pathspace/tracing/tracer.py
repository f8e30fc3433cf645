"""The torch-function mode that sees every operation of a model and keeps the books."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakIdKeyDictionary

from pathspace.errors import TraceError
from pathspace.network import Network, Node, Ref, StateRef, Streams
from pathspace.tracing import rules
from pathspace.tracing.graph import Graph, OnUnknown
from pathspace.tracing.guards import module_paths, unchanged
from pathspace.tracing.table import TABLE, function_name, is_inspection, overwrites
from pathspace.tracing.values import Value, Weight, compact, leaves, map_leaves
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
        self.learnable = {id(parameter) for parameter in self.graph.parameters.values()}
        self.device = torch.device("cpu")
        self.inputs: list[Tensor] = []  # alive while the model runs

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Network:
        """Run the model on the shapes of the arguments and return the finished network."""
        args, kwargs = map_leaves(self._enter, args), map_leaves(self._enter, kwargs)
        graph = self.graph
        with unchanged(graph.model), module_paths(graph.model, graph.path), self:
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
        return graph.finish(len(self.inputs), self._leave(result))

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
        if not isinstance(result, Tensor | tuple | list | Mapping) and hasattr(result, "__dict__"):
            result = vars(result)  # a dataclass or the like
        found = []

        def leave(leaf: Any) -> Any:
            if not isinstance(leaf, Tensor):
                return leaf
            value = self.value(leaf)
            self.graph.pin(self.graph.units(value), "output")
            found.append(value.ref)
            return value.ref

        self.graph.operation = "output"
        outputs = map_leaves(leave, result)
        if not found:
            raise TraceError(
                f"the model returned {type(result).__name__}, in which there is no tensor; "
                "return a tensor, or a tuple, list or dict of tensors"
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
        tensors = [leaf for leaf in leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        known = TABLE.get(func)
        if not any(t in self.values or id(t) in self.learnable for t in tensors):
            for tensor in tensors:
                self._check_origin(tensor, func)
            return self._constant(func, args, kwargs)
        if known is None and is_inspection(func):
            return self.device if function_name(func) == "device" else func(*args, **kwargs)
        graph = self.graph
        graph.function = func
        graph.operation = known.name if known else function_name(func)
        rule = known.rule if known else rules.unknown
        if kwargs.get("out") is not None:
            graph.refuse("the argument `out=` is not followed; use the returned tensor")
        result = rule(graph, *map_leaves(self._lift, args), **map_leaves(self._lift, kwargs))
        inplace = known.is_inplace(args, kwargs) if known else overwrites(func)
        return self._record(func, args, kwargs, result, inplace)

    def _constant(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Compute what involves no activation and no parameter; never write to a buffer."""
        if overwrites(func):
            args = tuple(
                a.clone() if isinstance(a, Tensor) and id(a) in self.names else a for a in args
            )
        return func(*args, **kwargs)

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
        else:
            self._check_origin(tensor, None)
            zero = name is None and not tensor.is_meta and not bool(tensor.any())
            units = torch.tensor(ZERO if zero else PINNED)
            value = Value(units.expand(tensor.shape), tensor.dtype)
        value.ref = StateRef(name) if name else tensor
        return value

    def _check_origin(self, tensor: Tensor, func: Callable[..., Any] | None) -> None:
        """A tensor without data that we did not make came from something we could not see."""
        if tensor.is_meta and self.device.type != "meta":
            if func is not None:
                self.graph.operation = function_name(func)
            self.graph.refuse(
                "it meets a tensor that no visible operation computed (TorchScript or a custom "
                "kernel?); replace that part by torch operations"
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
        for item, value in enumerate(result):
            value.ref = Ref(node, item)
        wrapped = [self._wrap(value) for value in result]
        named = getattr(torch.return_types, graph.operation, None)
        return named(wrapped) if named else tuple(wrapped)

    def _overwrite(self, tensor: Tensor, result: Value, ref: Ref) -> Tensor:
        """An in-place operation: the tensor object stays, what it holds is the result."""
        value = self.value(tensor)
        if value.units is None or result.units is None:
            return self.graph.refuse("a parameter is changed in place during the forward pass")
        if value.shape != result.shape:
            self.graph.refuse("it changes a tensor's shape in place; use the out-of-place form")
        if len(value.aliases) > 1 and not self._same_scales(value.units, result.units):
            self.graph.refuse(
                "an in-place operation changes units that another tensor still shares; "
                "use the out-of-place form"
            )
        value.units, value.ref = result.units, ref
        return tensor

    def _same_scales(self, a: Tensor, b: Tensor) -> bool:
        find = self.graph.partition.find
        return torch.equal(*torch.broadcast_tensors(find(compact(a)), find(compact(b))))

    def _wrap(self, value: Value) -> Tensor:
        tensor = torch.empty(value.shape, dtype=value.dtype, device="meta")
        self.values[tensor] = value
        return tensor
