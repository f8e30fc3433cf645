"""Runs an evaluator on the program for one sample, more carefully if values leave their range."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

from pathspace.flow.evaluator import Evaluator, Overflow
from pathspace.flow.values import Flow
from pathspace.network import InputSpec, Network, Node
from pathspace.tracing import trace
from pathspace.tracing.values import leaves, map_leaves

E = TypeVar("E", bound=Evaluator)
T = TypeVar("T")


def evaluate(
    network: Network, make: Callable[[bool], E], finish: Callable[[E, list[Flow]], T | None]
) -> T:
    """Run the program and finish with the flows of the outputs.

    Args:
        network: the traced network.
        make: makes the evaluator; told whether to look at every value.
        finish: makes the result of evaluator and flows, or says by ``None`` that not all is finite.
    """
    program, outputs = _one_sample(network)
    try:
        evaluator = make(False)
        result = finish(evaluator, evaluator.run(program, outputs))
    except Overflow:
        result = None
    if result is None:
        evaluator = make(True)
        result = finish(evaluator, evaluator.run(program, outputs))
    if result is None:
        raise evaluator.out_of_range()
    return result


def _one_sample(network: Network) -> tuple[tuple[Node, ...], Any]:
    """The program for a single sample, however many the network was traced with."""
    cached = network.__dict__.get("_one_sample")
    if cached is not None:
        return cached
    specs = [leaf for leaf in leaves(network.inputs) if isinstance(leaf, InputSpec)]
    single = network
    if any(spec.shape[:1] != (1,) for spec in specs):
        device = next((p.device for p in network.model.parameters()), torch.device("cpu"))

        def example(leaf: Any) -> Any:
            if not isinstance(leaf, InputSpec):
                return leaf
            shape = (1, *leaf.shape[1:]) if leaf.shape else ()
            return torch.zeros(shape, dtype=leaf.dtype, device=device)

        args, kwargs = (map_leaves(example, part) for part in network.inputs)
        if not kwargs or not args:
            single = trace(network.model, kwargs or args, streams=network.streams)
    network.__dict__["_one_sample"] = (single.program, (single.inputs, single.outputs))
    return network.__dict__["_one_sample"]
