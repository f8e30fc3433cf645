r"""The weights of the graph: a network's parameters with its batch norms folded in.

In eval mode a batch norm is an affine map per channel: it multiplies by
:math:`\gamma/\sqrt{\sigma^2+\varepsilon}` and adds
:math:`\beta - \mu\gamma/\sqrt{\sigma^2+\varepsilon}`. Read as an edge from the unit in front of it
to the unit behind it, and a bias, it makes the network an ordinary one with biases. Its weights are
not merged into the layer before: the edge is the only one that leaves its unit, so it becomes a
free skeleton weight and every path value is that of the fused network. The bias of the layer
before, if that layer feeds the batch norm alone, does become part of the batch norm's bias: only
their sum :math:`\beta + (b - \mu)\gamma/\sqrt{\sigma^2+\varepsilon}` is a weight of the graph. A
batch norm that is used twice has one bias for both uses here, and biases in front of it stay what
they are: weights of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pathspace import native
from pathspace.absorption import Absorption
from pathspace.errors import PathspaceError
from pathspace.network import Edge, Network, Normalization

Weights = dict[str, Tensor]
MANY = 2**10  # entries of a tensor that are worth being gathered in C


class WeightGraph:
    """Edges and weights of a network; scalar weights are numbered 0..m-1.

    Batch norms are folded, as in eval mode. With ``folded=False`` the graph is that of training: a
    batch norm divides by what its batch gives, so its input is an end of paths (a unit that no
    weight leaves) and its weight and bias are where new ones start.

    Attributes:
        network: the traced network.
        edges: one per weight tensor; a folded batch norm's edge starts at the unit before it.
        absorbed: by batch norm, the bias in front of it that is part of its own bias.
        start: the number of the first scalar weight of each tensor, and m at the end.

    Args:
        network: the traced network.
        folded: whether batch norms are folded.
        relabel: (H+1,) the scale that each scale counts as here; 0 to count as pinned.
    """

    def __init__(
        self, network: Network, *, folded: bool = True, relabel: Tensor | None = None
    ) -> None:
        self.network = network
        self.norms: dict[str, Normalization] = {}
        for norm in network.normalizations if folded else ():
            if norm.mean is None or norm.variance is None:
                raise PathspaceError(
                    f"`{norm.layer}` is a batch norm without running statistics: in eval mode it "
                    "uses those of the batch, so it cannot be folded; use track_running_stats=True"
                )
            if norm.weight is not None and norm.bias is None:
                raise PathspaceError(
                    f"`{norm.layer}` is a batch norm with a weight but no bias, which what it "
                    "subtracts would be part of; give it a bias of zeros"
                )
            self.norms.setdefault(norm.weight or norm.variance, norm)
        biases = Absorption.of(network).alone
        self.absorbed = {
            key: biases[norm.place] for key, norm in self.norms.items() if norm.place in biases
        }
        self.edges = tuple(self._edges())
        if relabel is not None:
            self.edges = tuple(relabelled(edge, relabel) for edge in self.edges)
        counts = torch.tensor([0] + [edge.count for edge in self.edges])
        self.start = counts.cumsum(0)

    def _edges(self) -> list[Edge]:
        edges = []
        for edge in self.network.edges:
            if edge.parameter in self.absorbed.values():
                continue
            norm = self.norms.get(edge.parameter)
            if norm is not None:
                edge = replace(edge, source=norm.input, source_scale=norm.input_scale)
            edges.append(edge)
        for key, norm in self.norms.items():
            if norm.weight is None:  # the gain is no parameter: it ends at pinned units
                target_scale = self.network.scale[norm.output]
                edges.append(
                    Edge(
                        parameter=key,
                        shape=tuple(norm.input.shape),
                        space=norm.layer,
                        target=norm.output,
                        source=norm.input,
                        target_scale=target_scale,
                        source_scale=norm.input_scale,
                    )
                )
        return edges

    @property
    def m(self) -> int:
        """Number of scalar weights."""
        return int(self.start[-1])

    @property
    def H(self) -> int:
        """Number of free scales."""
        return self.network.H

    def weights(self, state: Mapping[str, Tensor] | None = None) -> Weights:
        """The weights of the graph for a state of the model (by default its own)."""
        state = self.network.state() if state is None else state
        weights = {}
        for edge in self.edges:
            norm = self.norms.get(edge.parameter)
            weights[edge.parameter] = (
                _entry(state, edge.parameter) if norm is None else gain(norm, state)
            )
        for key, norm in self.norms.items():
            if norm.bias is not None:
                weights[norm.bias] = weights[norm.bias] - self._mean(key, state) * gain(norm, state)
        return weights

    def finite_weights(self, state: Mapping[str, Tensor] | None = None) -> Weights:
        """The weights of the graph; refuses by name those that are not finite."""
        weights = self.weights(state)
        for name, weight in weights.items():
            if not bool(weight.isfinite().all()):
                raise PathspaceError(f"`{name}` holds values that are not finite")
        return weights

    def _mean(self, key: str, state: Mapping[str, Tensor]) -> Tensor:
        """What a batch norm subtracts, less the bias in front of it."""
        mean = self.norms[key].mean
        assert mean is not None
        bias = self.absorbed.get(key)
        return state[mean] if bias is None else state[mean] - state[bias]

    def state(self, weights: Weights, state: Mapping[str, Tensor] | None = None) -> Weights:
        """The state of the model that has these weights; statistics are those of ``state``."""
        state = self.network.state() if state is None else state
        result = dict(state)
        names = self.network.names()
        for edge in self.edges:
            norm = self.norms.get(edge.parameter)
            if norm is not None and norm.weight is None:
                _check_gain(norm, weights[edge.parameter], state)
                continue
            value = weights[edge.parameter]
            if norm is not None:
                value = value / _inverse_deviation(norm, state)
            for name in names.get(edge.parameter, [edge.parameter]):
                result[name] = value
        for key, norm in self.norms.items():
            if norm.bias is not None and norm.weight is not None:
                shift = self._mean(key, state) * weights[norm.weight]
                for name in names.get(norm.bias, [norm.bias]):
                    result[name] = weights[norm.bias] + shift
        return result

    def places(self, numbers: Tensor) -> Places:
        """Prepare reading and writing the scalar weights of these numbers."""
        return Places(self, numbers)

    def number(self, parameter: str, index: tuple[int, ...] | int) -> int:
        """The number of one scalar weight."""
        for k, edge in enumerate(self.edges):
            if edge.parameter == parameter:
                place = index if isinstance(index, tuple) else (index,)
                if len(place) != len(edge.shape) or any(
                    not 0 <= i < n for i, n in zip(place, edge.shape, strict=True)
                ):
                    raise IndexError(f"`{parameter}` has shape {edge.shape}, not index {index}")
                flat = 0
                for i, size in zip(place, edge.shape, strict=True):
                    flat = flat * size + i
                return int(self.start[k]) + flat
        known = ", ".join(edge.parameter for edge in self.edges)
        raise KeyError(f"no weight `{parameter}` in the graph; there are: {known}")

    def name(self, number: int) -> str:
        """The scalar weight of a number, as ``layer.weight[2, 0]``."""
        k = int(torch.searchsorted(self.start, number, right=True)) - 1
        flat = torch.tensor(number - int(self.start[k]))
        edge = self.edges[k]
        index = [int(i) for i in torch.unravel_index(flat, edge.shape)] if edge.shape else []
        return f"{edge.parameter}{index}" if index else edge.parameter

    def unit(self, scale: int) -> str:
        """The first unit that has a scale, as ``layer[3]``."""
        unit = int((self.network.scale == scale).nonzero()[0])
        for space in self.network.spaces:
            if space.start <= unit < space.start + space.size:
                return f"{space.name}[{unit - space.start}]"
        return f"unit {unit}"


@dataclass(frozen=True)
class _Block:
    edge: int
    rows: Tensor  # places in the vector of numbers
    index: tuple[Tensor, ...]  # places in the weight tensor
    flat: Tensor  # the same, counted in its order


class Places:
    """Some scalar weights, to be gathered into a vector or written back, tensor by tensor."""

    def __init__(self, graph: WeightGraph, numbers: Tensor) -> None:
        self.graph, self.numbers = graph, numbers
        given = (numbers >= 0).nonzero().squeeze(1)
        tensor = torch.searchsorted(graph.start, numbers[given], right=True) - 1
        tensor, order = tensor.sort(stable=True)
        ordered = given[order]  # those that have a weight, tensor by tensor
        found, counts = torch.unique_consecutive(tensor, return_counts=True)
        self.blocks = []
        for k, rows in zip(found.tolist(), ordered.split(counts.tolist()), strict=True):
            flat = numbers[rows] - graph.start[k]
            shape = graph.edges[k].shape
            index = torch.unravel_index(flat, shape) if shape else ()
            self.blocks.append(_Block(k, rows, tuple(index), flat))

    def take(self, weights: Mapping[str, Tensor], fill: float = 1.0) -> Tensor:
        """The weights as a float64 vector on the CPU; ``fill`` where the number is negative."""
        found = torch.full((len(self.numbers),), fill, dtype=torch.float64)
        picked, rows = [], []
        for block in self.blocks:
            tensor = weights[self.graph.edges[block.edge].parameter]
            if len(block.rows) >= MANY and not _is_followed(tensor) and native.fits(tensor):
                native.gather(tensor, block.flat, found, block.rows)
                continue
            whole = tensor.expand(len(block.rows)) if not block.index else tensor  # has no axes
            entries = whole[_on(block.index, tensor)] if block.index else whole
            picked.append(entries.to("cpu", torch.float64))
            rows.append(block.rows)
        return found.index_put((torch.cat(rows),), torch.cat(picked)) if picked else found

    def put_(self, weights: Mapping[str, Tensor], values: Tensor) -> None:
        """Write a vector into the weights, in place."""
        for block in self.blocks:
            tensor = weights[self.graph.edges[block.edge].parameter]
            new = values[block.rows].to(tensor)
            if block.index:
                tensor[_on(block.index, tensor)] = new
            else:
                tensor.copy_(new[0])

    def ends(self) -> tuple[Tensor, Tensor]:
        """The scales of the source and of the target of each weight; 0 where there is none."""
        ends = torch.zeros(2, len(self.numbers), dtype=torch.long)
        for block in self.blocks:
            edge = self.graph.edges[block.edge]
            for side, scales in enumerate((edge.source_scale, edge.target_scale)):
                ends[side, block.rows] = pick(scales, block.index)
        return ends[0], ends[1]


def _is_followed(tensor: Tensor) -> bool:
    """Whether autograd wants to know what becomes of a tensor."""
    return tensor.requires_grad and torch.is_grad_enabled()


def pick(table: Tensor, index: tuple[Tensor, ...]) -> Tensor:
    """Entries of a tensor that broadcasts (axes of size 1) at places of the full shape."""
    if not index:
        return table.reshape(-1)
    return table[
        tuple(
            i if size > 1 else torch.zeros_like(i)
            for i, size in zip(index, table.shape, strict=True)
        )
    ]


def relabelled(edge: Edge, relabel: Tensor) -> Edge:
    """The edge with other scales at its ends."""
    target, source = relabel[edge.target_scale], relabel[edge.source_scale]
    return replace(edge, target_scale=target, source_scale=source)


def sum_to(values: Tensor, shape: torch.Size) -> Tensor:
    """Sum a tensor over the axes on which ``shape`` has size 1."""
    dims = [d for d, size in enumerate(shape) if size == 1 and values.shape[d] > 1]
    return (values.sum(dims, keepdim=True) if dims else values).expand(shape)


def gain(norm: Normalization, state: Mapping[str, Tensor]) -> Tensor:
    """What a batch norm in eval mode multiplies by."""
    inverse = _inverse_deviation(norm, state)
    return inverse if norm.weight is None else state[norm.weight] * inverse


def _check_gain(norm: Normalization, wanted: Tensor, state: Mapping[str, Tensor]) -> None:
    """Refuse another gain than the one that follows from the statistics."""
    there = gain(norm, state)
    if not torch.allclose(wanted.detach().to(there), there.detach(), rtol=1e-3, atol=0.0):
        raise PathspaceError(
            f"`{norm.layer}` is a batch norm without weight: its gain follows from its running "
            "variance, so a path through it cannot be given another value; use affine=True"
        )


def _inverse_deviation(norm: Normalization, state: Mapping[str, Tensor]) -> Tensor:
    assert norm.variance is not None
    return (state[norm.variance] + norm.eps).rsqrt()


def _on(index: tuple[Tensor, ...], tensor: Tensor) -> tuple[Tensor, ...]:
    return tuple(i.to(tensor.device) for i in index)


def _entry(state: Mapping[str, Tensor], name: str) -> Tensor:
    if name not in state:
        raise PathspaceError(f"the state has no entry `{name}`; pass all parameters and buffers")
    return state[name]
