r"""Chains of fully connected ReLU layers: the networks that the bounds are proved for.

Biases are no exception to these theorems: with a unit that always has the value 1 in every layer,
the weights :math:`\begin{pmatrix} W & b \\ 0 & 1 \end{pmatrix}` and one more input that is 1, the
same function has no biases.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor

from pathspace.errors import PathspaceError
from pathspace.network import InputSpec, Network, Node, Ref, StateRef
from pathspace.tracing.values import leaves
from pathspace.weightnorms import State, double, own_state

_KEEPING = frozenset(
    "flatten view reshape ravel unflatten squeeze unsqueeze contiguous clone dropout".split()
)


@dataclass(frozen=True)
class Chain:
    """The layers of a fully connected ReLU network with a linear output layer.

    Attributes:
        weights: the matrices (outputs, inputs) in the order of computation, in float64.
        biases: the bias of each layer, or ``None``.
    """

    weights: tuple[Tensor, ...]
    biases: tuple[Tensor | None, ...]

    @property
    def widths(self) -> list[int]:
        """Numbers of inputs, hidden units and outputs."""
        return [self.weights[0].shape[1], *(len(weight) for weight in self.weights)]

    @property
    def has_biases(self) -> bool:
        """Whether any layer has a bias."""
        return any(bias is not None for bias in self.biases)

    def matrices(self) -> list[Tensor]:
        """Matrices without biases that compute the same from (x, 1), or from x if none has one."""
        if not self.has_biases:
            return list(self.weights)
        columns = [
            weight.new_zeros(len(weight)) if bias is None else bias
            for weight, bias in zip(self.weights, self.biases, strict=True)
        ]
        wide = [torch.cat([w, b[:, None]], 1) for w, b in zip(self.weights, columns, strict=True)]
        for k, matrix in enumerate(wide[:-1]):
            one = matrix.new_zeros(1, matrix.shape[1])
            one[0, -1] = 1.0
            wide[k] = torch.cat([matrix, one])
        return wide


def fully_connected(network: Network, state: State | None = None) -> Chain:
    """The layers of a network, if it is a chain of fully connected ReLU layers.

    Raises:
        PathspaceError: for any other network, naming what does not belong there.
    """
    for edge in network.edges:
        if len(edge.shape) > 2:
            raise PathspaceError(
                f"`{edge.parameter}` is a convolution; this bound is for fully connected networks"
            )
    if network.joins or network.normalizations:
        raise PathspaceError(
            "this bound is for chains of fully connected layers without sums or batch norms"
        )
    entries = {name: double(tensor) for name, tensor in own_state(network, state).items()}
    current: Ref | StateRef = StateRef("input 0")
    weights, biases = [], []
    active = False  # whether an activation follows the last layer
    for place, node in enumerate(network.program):
        if [leaf for leaf in leaves((node.args, node.kwargs)) if _is_data(leaf)] != [current]:
            _refuse(network, node, "does not read the layer before it alone")
        current = Ref(place)
        if node.operation == "linear":
            given = dict(zip(["input", "weight", "bias"], node.args, strict=False)) | node.kwargs
            weight, bias = given["weight"], given.get("bias")
            weights.append(entries[weight.name])
            biases.append(None if bias is None else entries[bias.name])
        elif node.operation not in _KEEPING and node.operation != "relu":
            _refuse(network, node, "is neither a fully connected layer nor ReLU")
        active = node.operation == "relu" or (active and node.operation != "linear")
    if not weights or network.outputs != current:
        raise PathspaceError("this bound is for chains of fully connected layers with one output")
    if active:
        raise PathspaceError("this bound is for a linear output layer; here ReLU follows it")
    for name, tensor in entries.items():
        if not bool(tensor.isfinite().all()):
            raise PathspaceError(f"`{name}` holds values that are not finite")
    chain = Chain(tuple(weights), tuple(biases))
    entering = [spec for spec in leaves(network.inputs) if isinstance(spec, InputSpec)]
    features = torch.Size(entering[0].shape[1:]).numel()
    if [features, *(len(w) for w in weights[:-1])] != [w.shape[1] for w in weights]:
        raise PathspaceError(
            f"this bound is for chains of fully connected layers; here layers of widths "
            f"{chain.widths} are applied to parts of {features} inputs"
        )
    return chain


def _is_data(leaf: Any) -> bool:
    return isinstance(leaf, Ref) or (isinstance(leaf, StateRef) and leaf.name.startswith("input "))


def _refuse(network: Network, node: Node, why: str) -> NoReturn:
    name = node.module or type(network.model).__name__
    raise PathspaceError(
        f"`{name}` ({node.operation}) {why}; this bound is for chains of fully connected ReLU "
        "layers"
    )
