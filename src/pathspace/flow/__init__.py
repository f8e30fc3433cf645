r"""Sums over all paths by one pass through the recorded program.

With :math:`|w|^p` in place of every weight and all inputs equal to 1, a ReLU network computes at
each of its values the sum over all paths that end there of :math:`\prod |w_e|^p`: activations
become the identity, differences sums, and a maximum over a window the sum over it, since every
entry of the window is the end of a path. For p = ∞ sums become maxima. Values are carried as
(tensor, logarithm of a common factor), so that depth neither overflows nor underflows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from pathspace.flow.evaluator import Overflow
from pathspace.flow.maxima import Maxima
from pathspace.flow.sums import Sums
from pathspace.flow.values import Flow, NoPathSum
from pathspace.network import InputSpec, Network, Node
from pathspace.tracing import trace
from pathspace.tracing.values import leaves, map_leaves

__all__ = ["Flow", "NoPathSum", "path_flow"]


def path_flow(
    network: Network,
    weights: Mapping[str, Tensor],
    p: float,
    *,
    biases: bool = True,
    dtype: torch.dtype = torch.float64,
) -> list[Flow]:
    """The sums over all paths into every output of the network, for one exponent.

    Args:
        network: the traced network.
        weights: the state of the model, parameters and buffers by name.
        p: the exponent; ``math.inf`` for maxima.
        biases: whether paths may start at a bias.
        dtype: what to compute in.
    """
    program, outputs = _one_sample(network)
    kind = Maxima if math.isinf(p) else Sums
    try:
        flows = kind(network, weights, p, biases, dtype).run(program, outputs)
        if all(bool(flow.tensor.isfinite().all()) for flow in flows):
            return flows
    except Overflow:
        pass
    return kind(network, weights, p, biases, dtype, careful=True).run(program, outputs)


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
