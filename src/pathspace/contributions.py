r"""Which outputs, layers and units carry the path norm.

The share of :math:`\phi_p^p` on the paths through a weight is its logarithmic derivative,

.. math:: s_e = \frac{1}{\phi_p^p} \sum_{\text{paths} \ni e} \prod_{e'} |w_{e'}|^p
    = \frac{|w_e|^p}{\phi_p^p} \frac{\partial \phi_p^p}{\partial |w_e|^p}
    = w_e \frac{\partial \log \phi_p}{\partial w_e} .

Every path through a unit enters it by one weight (or one operand of a sum) and leaves it by one, so
the share of the unit is the sum over its incoming weights. All shares of all weights together cost
one forward and one backward pass. They do not change under rescaling.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from pathspace.errors import PathspaceError
from pathspace.network import Network
from pathspace.norms import path_norm
from pathspace.tables import Column, Row, Table
from pathspace.weightgraph import WeightGraph, Weights, sum_to
from pathspace.weightnorms import State, double, own_state

_ROUNDING = 1e-7  # shares are at most 1; what flows into a unit and out of it agrees far better


@dataclass(frozen=True)
class PathContributions:
    """Shares of the path norm's p-th power, between 0 and 1; made by :func:`path_contributions`.

    Attributes:
        p: the exponent.
        log_norm: the natural logarithm of the path norm.
        units: by layer (space of the network), the share of every unit of it, in float64.
        parameters: by weight tensor, the share of the paths that run along one of its weights.
        outputs: the share of every output value, flattened; they sum to 1.
        biases: the share of the paths that start at a bias.
        path: for p = ∞ the weights of the largest path (of all such paths, if there are several).
        ranked: the layers whose units :meth:`top` compares: not those that write the outputs, and
            not those that a batch norm reads, whose units come once more behind it.
        undetermined: layers whose units' shares do not follow from those of the weights, and why.
    """

    p: float
    log_norm: float
    units: Mapping[str, Tensor]
    parameters: Mapping[str, float]
    outputs: Tensor
    biases: float
    path: tuple[str, ...] = ()
    ranked: tuple[str, ...] = ()
    undetermined: Mapping[str, str] = field(default_factory=dict)

    @property
    def layers(self) -> dict[str, float]:
        """The share of the paths through each layer; 1 if all of them cross it."""
        return {name: float(shares.sum()) for name, shares in self.units.items()}

    def rows(self) -> Iterator[tuple[str, int, float]]:
        """Layer, number and share of every unit, in the order of computation."""
        for name, shares in self.units.items():
            for unit, share in enumerate(shares.tolist()):
                yield name, unit, share

    def top(self, count: int = 10) -> list[tuple[str, int, float]]:
        """The units with the largest shares, among those of the layers that are ranked."""
        hidden = (row for row in self.rows() if row[0] in self.ranked)
        return heapq.nlargest(count, hidden, key=lambda row: row[2])

    def table(self, count: int = 10) -> Table:
        """The layers, and the largest units and outputs, as a table."""
        rows = [Row((name, _percent(share)), "layers") for name, share in self.layers.items()]
        if self.biases:
            rows.append(Row(("paths that start at a bias", _percent(self.biases)), "layers"))
        rows += [
            Row((f"{name}[{unit}]", _percent(share)), "largest units")
            for name, unit, share in self.top(count)
            if share > 0
        ]
        largest = self.outputs.topk(min(count, len(self.outputs)))
        rows += [
            Row((f"output {place}", _percent(share)), "largest outputs")
            for share, place in zip(largest.values.tolist(), largest.indices.tolist(), strict=True)
        ]
        remarks = [f"{name}: {why}" for name, why in self.undetermined.items()]
        if self.path:
            remarks.insert(0, "attained by " + " → ".join(self.path))
        title = f"Who carries the {self.p:g}-path norm, 10^{self.log_norm / math.log(10):.3f}"
        columns = (Column("paths through"), Column("share", number=True))
        return Table(title, columns, tuple(rows), tuple(remarks))

    def __str__(self) -> str:
        return self.table().text()

    def _repr_html_(self) -> str:
        return self.table().html()

    def to_frame(self) -> Any:
        """A pandas data frame with the columns layer, unit and share."""
        try:
            import pandas as pd
        except ImportError as error:
            raise ImportError("a data frame needs pandas: pip install pandas") from error
        return pd.DataFrame(list(self.rows()), columns=["layer", "unit", "share"])

    def plot(self, top: int = 20, ax: Any = None) -> Any:
        """Draw the largest units: :func:`~pathspace.plot.contributions.draw_contributions`."""
        from pathspace.plot.contributions import draw_contributions

        return draw_contributions(self, top, ax)


def path_contributions(
    network: Network, p: float = 2.0, *, biases: bool = True, state: State | None = None
) -> PathContributions:
    r"""Find which outputs, layers and units carry the path norm. Rescaling-invariant.

    One forward and backward pass through :func:`path_norm` gives
    :math:`s_e = w_e\, \partial \log\phi_p / \partial w_e` for all weights of the graph, batch norms
    folded; a unit's share is the sum over its incoming weights. For units of a sum it follows from
    what flows into them and out of them; a layer of which it does not is listed as undetermined.
    For p = ∞ the shares are 1 along the largest path; equal paths divide it between them.

    Args:
        network: the traced network.
        p: exponent ≥ 1, also ``math.inf``.
        biases: count paths that start at a bias.
        state: parameters and buffers by name; by default the model's.

    Raises:
        NoPathSum: where an operation is not positively homogeneous, naming the layer.
        PathspaceError: if all paths are zero, or for a batch norm without weight and bias.

    Example:
        >>> import torch, pathspace as ps
        >>> model = torch.nn.Sequential(
        ...     torch.nn.Linear(2, 2, bias=False),
        ...     torch.nn.ReLU(),
        ...     torch.nn.Linear(2, 1, bias=False),
        ... )
        >>> with torch.no_grad():
        ...     _ = model[0].weight.copy_(torch.tensor([[1.0, 2.0], [0.0, -3.0]]))
        ...     _ = model[2].weight.copy_(torch.tensor([[2.0, -1.0]]))
        >>> found = path_contributions(ps.trace(model, torch.ones(1, 2)), p=1)
        >>> found.units["0"] * 9  # |1·2| + |2·2| through the first unit, |0·1| + |3·1| the second
        tensor([6., 3.], dtype=torch.float64)

    Reference: Neyshabur et al. 2017, Eq. (5); the derivative is that of their Path-SGD.
    """
    for norm in network.normalizations:
        if norm.weight is None:
            raise PathspaceError(
                f"`{norm.layer}` is a batch norm without weight and bias: its shift is no weight "
                "of the graph; use affine=True (with weight 1 and bias 0 it is the same function)"
            )
    graph = WeightGraph(network)
    own = own_state(network, state)
    own = {n: double(t).detach() if t.is_floating_point() else t for n, t in own.items()}
    weights = {name: w.detach().requires_grad_() for name, w in graph.weights(own).items()}
    with torch.enable_grad():
        logs = path_norm(
            network, p, log=True, biases=biases, per_output=True,
            state=graph.state(weights, own),
        )  # fmt: skip
        total = logs.amax() if math.isinf(p) else (p * logs).logsumexp(0) / p
    if total.isneginf():
        raise PathspaceError("the path norm is 0: no path carries anything")
    found: tuple[Tensor | None, ...] = torch.autograd.grad(
        total, list(weights.values()), allow_unused=True
    )
    shares = {
        name: torch.zeros_like(w) if gradient is None else w.detach() * gradient
        for (name, w), gradient in zip(weights.items(), found, strict=True)
    }
    logs = logs.detach()
    attained = (logs == logs.amax()).double()
    outputs = attained / attained.sum() if math.isinf(p) else (p * logs).softmax(0)
    edges = [edge for edge in graph.edges if not edge.is_fixed]
    units, undetermined = _unit_shares(graph, shares)
    return PathContributions(
        p=p,
        log_norm=float(total.detach()),
        units=units,
        parameters={edge.parameter: float(shares[edge.parameter].sum()) for edge in edges},
        outputs=outputs.cpu(),
        biases=sum(float(shares[e.parameter].sum()) for e in edges if e.from_constant),
        path=_support(graph, shares) if math.isinf(p) else (),
        ranked=_ranked(network),
        undetermined=undetermined,
    )


# Helpers -----------------------------------------------------------------------------------------


def _unit_shares(graph: WeightGraph, shares: Weights) -> tuple[dict[str, Tensor], dict[str, str]]:
    """By layer the shares of its units; and the layers where they are not known, with the reason.

    A unit's share is what flows into it along weights and sums. What flows along a sum is what has
    entered the operand's unit and does not leave it along weights.
    """
    network = graph.network
    if network.coarse is not None:
        return {}, {"units": f"they cannot be told apart: {network.coarse}"}
    count = len(network.scale)
    flows = torch.zeros(2, count, dtype=torch.float64)  # into units and out of them, along weights
    entered = torch.zeros(count, dtype=torch.bool)
    for edge in graph.edges:
        if edge.is_fixed:
            continue
        values = shares[edge.parameter].cpu()
        for flow, ends in zip(flows, (edge.target, edge.source), strict=True):
            flow.index_add_(0, ends.reshape(-1), sum_to(values, ends.shape).reshape(-1))
        entered[edge.target.reshape(-1)] = True
    share, out = flows
    ends = torch.zeros(count, dtype=torch.bool)
    for space in network.spaces:
        ends[space.units] = "output" in space.reasons
    exits = torch.zeros(count, dtype=torch.long)  # sums that read a unit
    for _, part in network.joins:
        exits.index_add_(0, part, torch.ones_like(part))
    known = entered.clone()
    for total, _ in network.joins:
        known[total] = True
    for total, part in network.joins:  # in the order of computation
        share.index_add_(0, total, share[part] - out[part])
        clear = known[part] & (exits[part] == 1) & ~ends[part]
        known[total[~clear]] = False
    inner = (exits == 0) & ~ends  # all that enters leaves along weights
    agree = (share - out).abs() <= _ROUNDING
    conflict = inner & known & ~agree
    share = torch.where(inner & ~known, out, share)
    known = known | inner
    units, undetermined = {}, {}
    for space in network.spaces:
        if space.operation == "input":
            continue
        if bool(conflict[space.units].any()):
            undetermined[space.name] = "paths start or end here otherwise than by a weight"
        elif not bool(known[space.units].all()):
            undetermined[space.name] = "sums, inputs or outputs divide what flows through it"
        else:
            units[space.name] = share[space.units].clone()
    return units, undetermined


def _ranked(network: Network) -> tuple[str, ...]:
    normalized = {int(norm.input[0]) for norm in network.normalizations}
    return tuple(
        space.name
        for space in network.spaces
        if "output" not in space.reasons and space.start not in normalized
    )


def _support(graph: WeightGraph, shares: Weights) -> tuple[str, ...]:
    """The names of the weights that have a share, in the order of computation."""
    numbers = [
        int(start) + place
        for start, edge in zip(graph.start, graph.edges, strict=False)
        if not edge.is_fixed
        for place in shares[edge.parameter].reshape(-1).nonzero().squeeze(1).tolist()
    ]
    return tuple(graph.name(number) for number in numbers)


def _percent(share: float) -> str:
    return f"{100 * share:.2f} %"
