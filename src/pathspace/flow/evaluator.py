"""Runs a recorded program on path sums; the rules of the operations are in its subclass."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from pathspace.errors import OutOfRange
from pathspace.flow.layers import Linear
from pathspace.flow.powers import Scratch, power
from pathspace.flow.program import Program
from pathspace.flow.runs import Run
from pathspace.flow.values import Flow, NoPathSum
from pathspace.network import InputSpec, Network, Node, Ref, StateRef
from pathspace.tracing.values import map_leaves


class Overflow(Exception):
    """A value between two checks left the range of its dtype."""


class Evaluator:
    """Evaluates a program with :math:`|w|^p` in place of w."""

    RULES: ClassVar[dict[str, str]] = {}  # operation: name of the method that follows it
    LAYERS: ClassVar[frozenset[str]] = frozenset()  # those that take their weight's power in pieces
    WITH_RUNS: ClassVar[frozenset[str]] = frozenset()  # methods that need not see equal values

    def __init__(
        self,
        network: Network,
        weights: Mapping[str, Tensor],
        p: float,
        biases: bool,
        dtype: torch.dtype,
        careful: bool = False,
    ) -> None:
        self.careful = careful
        self.network, self.weights, self.p, self.biases = network, weights, p, biases
        self.dtype = dtype
        self.power = 1.0 if math.isinf(p) else p
        self.results: dict[Ref, Any] = {}
        self.powers: dict[str, Flow] = {}
        self.program: Program
        self.place, self.node = 0, Node("", torch.relu, (), {}, "", False)
        self.inputs: list[InputSpec] = []
        self.largest = torch.finfo(dtype).max ** (1 / 8)
        self.scratch = Scratch(dtype)
        self.nothing = Flow(torch.zeros((), dtype=dtype))

    def run(self, program: Program) -> list[Flow]:
        """Evaluate all operations and return the flows of the outputs."""
        self.inputs = program.inputs
        return self.run_on(program, 0, len(program.nodes))

    def run_on(self, program: Program, start: int, stop: int) -> list[Flow]:
        """Evaluate some operations, with the results of those before; outputs, if these are all."""
        self.program = program
        for place in range(start, stop):
            self.place, self.node = place, program.nodes[place]
            node = self.node
            rule = self.RULES.get(node.operation, "refuse")
            args, kwargs = self.arguments(node, self.lift if rule in self.WITH_RUNS else self.whole)
            result = getattr(self, rule)(*args, **kwargs)
            if isinstance(result, Flow):
                self.results[Ref(place)] = self.normalized(result)
            else:
                for item, part in enumerate(result):
                    self.results[Ref(place, item)] = part
            for ref in program.unused[place]:
                self.results.pop(ref, None)
        return [self.whole(ref) for ref in program.outputs] if stop == len(program.nodes) else []

    def arguments(self, node: Node, lift: Callable[[Any], Any]) -> tuple[Any, Any]:
        """The flows behind a node's arguments; a weight that a layer reads stays a reference."""
        if node.operation == "batch_norm":  # which folds the others, not their powers
            return (lift(node.args[0] if node.args else node.kwargs["input"]),), {}
        kwargs = map_leaves(lift, node.kwargs)
        weight = node.args[1] if len(node.args) > 1 else None
        if node.operation in self.LAYERS and isinstance(weight, StateRef):
            x, _, *others = node.args
            return (lift(x), weight, *map_leaves(lift, others)), kwargs
        return map_leaves(lift, node.args), kwargs

    def layer(self, kind: type[Linear], x: Tensor, weight: StateRef, *options: Any) -> Tensor:
        """Apply a linear map or a convolution with the power of its weight."""
        return kind(self.power, self.scratch, None, None, None, None, *options)(
            x, self.weights[weight.name]
        )

    def lift(self, leaf: Any) -> Any:
        """The flow behind a reference; numbers and other arguments as they are."""
        if isinstance(leaf, Ref):
            return self.results[leaf]
        if isinstance(leaf, StateRef):
            return self.entry(leaf.name)
        if isinstance(leaf, Tensor):
            return Flow(self.raised(leaf))
        return leaf

    def whole(self, leaf: Any) -> Any:
        """The same, with all values written down."""
        lifted = self.lift(leaf)
        return lifted.whole() if isinstance(lifted, Flow) else lifted

    def entry(self, name: str) -> Flow:
        """An input (all ones), or a parameter or buffer raised to the p-th power of its size."""
        if name.startswith("input "):
            spec = self.inputs[int(name.removeprefix("input "))]
            device = next(iter(self.weights.values())).device if self.weights else None
            space = spec.shape[2:]
            one = torch.ones(
                (*spec.shape[:2], *(1 for _ in space)), dtype=self.dtype, device=device
            )
            return Flow(one, 0.0, True, tuple(Run(0, length - 1) for length in space))
        if (self.place, name) in self.program.absorption.uses:
            return self.nothing  # part of the batch norm behind it
        if name not in self.powers:
            self.powers[name] = Flow(self.raised(self.weights[name], name))
        return self.powers[name]

    def raised(self, tensor: Tensor, name: str | None = None) -> Tensor:
        """:math:`|w|^p`, of a parameter of that name."""
        return power(tensor.to(self.dtype), self.power)

    def normalized(self, flow: Flow) -> Flow:
        """Move a factor into the logarithm when the tensor leaves the middle of its range."""
        if not flow.data or not flow.tensor.numel() or self.node.operation not in _GROWING:
            return flow
        values = flow.tensor.detach()
        if not self.careful and self.is_moderate(float(values.reshape(-1)[values.numel() // 2])):
            return flow  # one entry tells; should another overflow, we come back more careful
        top = float(values.amax())
        if top == 0 or self.is_moderate(top):
            return flow
        if not math.isfinite(top):
            if not self.careful:
                raise Overflow
            raise self.out_of_range()
        return replace(flow, tensor=flow.tensor / top, log=flow.log + math.log(top))

    def out_of_range(self) -> OutOfRange:
        """What to raise where care does not help."""
        return OutOfRange(
            f"{self.where()} leaves the range of {self.dtype}: are all weights finite? If so, use "
            "a dtype with a larger range, or a smaller p"
        )

    def is_moderate(self, value: float) -> bool:
        """Whether a value is far from overflow and underflow."""
        return 1 / self.largest < value < self.largest

    def where(self) -> str:
        """The operation and its module, with the class of the module where that tells more."""
        name, operation = self.node.module, self.node.operation
        if not name:
            return f"`{type(self.network.model).__name__}` ({operation})"
        kind = type(dict(self.network.model.named_modules()).get(name)).__name__
        same = kind == "NoneType" or kind.lower() == operation.replace("_", "")
        return f"`{name}` ({operation})" if same else f"`{name}` ({kind}, {operation})"

    def refuse(self, *args: Any, **kwargs: Any) -> Any:
        """Refuse an operation that no path sum goes through."""
        raise NoPathSum(
            f"{self.where()} is not positively homogeneous (or not linear between activations), "
            "so the network's output is no sum over paths; measure the part of the model before "
            "or behind it"
        )


# After these a value may have become much larger or smaller.
_GROWING = frozenset(
    """
    linear conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d matmul mm bmm mv
    einsum addmm mul multiply div divide batch_norm sum mean embedding
    """.split()
)
