r"""Basis paths: coordinates of a ReLU network that do not change under rescaling.

Every weight e = u → v that is not a free skeleton weight names one basis path: down the in-forest
to u, along e, down the out-forest from v. Its value is :math:`v_e = I(u)\, w_e\, O(v)`, with I(u)
the product of the in-edges up to u and O(v) that of the out-edges from v. Walking from unit u along
the in-forest, the first in-edge that is not free is the *root* a(u), and
:math:`I(u) = v_{a(u)} / O(u)`; so every weight is a ratio of two values,

.. math:: w_e = \frac{v_e \, O(u)}{v_{a(u)} \, O(v)},

which is a bijection once the free weights are given. All maps below multiply each weight tensor by
a vector along its source axis and one along its target axis: O(m) time, no matrix.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from pathspace.errors import PathspaceError
from pathspace.network import Network
from pathspace.rescalings import Rescaling
from pathspace.signedlogs import (
    inverse,
    log_product,
    plain,
    product,
    quotient,
    scaled,
    signed_log,
)
from pathspace.skeleton import Choice, Skeleton, WeightIndex, choose_skeleton
from pathspace.weightgraph import Weights, sum_to

Values = Mapping[str, Tensor] | Tensor


class BasisPaths:
    r"""The basis paths of a network for one skeleton.

    Values, updates and gradients are dicts of tensors shaped like the weights (names are those of
    the model's state; a batch norm is folded in eval mode), or flat vectors of length m − H
    (:meth:`flat`, :meth:`unflat`). In the dicts the H places of the free weights are no
    coordinates: values hold there the value of the unit's root path, gradients and updates 0.

    Attributes:
        is_root: (H+1,) the scales whose in-edge is a root; that root's value is I(u) O(u).

    Args:
        network: the traced network.
        choice: the skeleton: ``"modulo"`` (the papers'), ``"largest"``, an explicit mapping, or a
            :class:`~pathspace.skeleton.Skeleton`; see :func:`pathspace.choose_skeleton`.
        state: the state to choose the skeleton for; by default the model's.

    Example:
        >>> import torch, pathspace as ps
        >>> model = torch.nn.Sequential(
        ...     torch.nn.Linear(2, 3), torch.nn.ReLU(), torch.nn.Linear(3, 1)
        ... )
        >>> network = ps.trace(model, torch.ones(1, 2))
        >>> basis = ps.BasisPaths(network)
        >>> basis.flat(basis.values()).shape  # m - H = 13 - 3
        torch.Size([10])
        >>> before = basis.flat(basis.values())
        >>> _ = ps.rescale_(network, ps.random_rescaling(network))
        >>> torch.allclose(basis.flat(basis.values()), before, rtol=1e-4)
        True

    Reference: Meng et al. 2019, sections 3.2 and 4; Zheng et al. 2019, Proposition 1.
    """

    def __init__(
        self,
        network: Network,
        choice: Choice | Skeleton | Mapping[str, Sequence[WeightIndex]] = "modulo",
        *,
        state: Mapping[str, Tensor] | None = None,
    ) -> None:
        self.network = network
        chosen = (
            choice
            if isinstance(choice, Skeleton)
            else choose_skeleton(network, choice, state=state)
        )
        if chosen.graph.network is not network:
            raise PathspaceError("the skeleton belongs to another network")
        self.skeleton, self.graph = chosen, chosen.graph
        self._free = self.graph.places(chosen.outgoing)
        free = torch.isin(chosen.incoming, chosen.outgoing)  # in-edges that are out-edges too
        free[0] = False
        self._owner = fixed_points(torch.where(free, chosen.parent, torch.arange(self.graph.H + 1)))
        self._root = self.graph.places(chosen.incoming[self._owner])
        self.is_root = ~free
        self.is_root[0] = False
        self._incoming = self.graph.places(chosen.incoming)
        self._rooted = self.graph.places(torch.where(self.is_root, chosen.incoming, -1))
        self._sorted_free = chosen.outgoing[1:].sort().values

    # Counting and naming -----------------------------------------------------------------------

    def __len__(self) -> int:
        """Number of basis paths, m − H."""
        return self.graph.m - self.graph.H

    def __repr__(self) -> str:
        roots = int(self.is_root.sum())
        return f"<BasisPaths: {len(self):,} = m − H paths, {roots:,} of them roots>"

    @property
    def roots(self) -> Tensor:
        """Coordinates of the roots, the *negative* basis paths of Zheng et al. (2019), sorted."""
        return self.coordinate(self.skeleton.incoming[self.is_root]).sort().values

    @property
    def positive(self) -> Tensor:
        """Coordinates of all basis paths that are not roots, sorted."""
        others = torch.ones(len(self), dtype=torch.bool)
        others[self.roots] = False
        return others.nonzero().squeeze(1)

    def coordinate(self, numbers: Tensor) -> Tensor:
        """The place in the flat vector of weights that are not free, given by number."""
        return numbers - torch.searchsorted(self._sorted_free, numbers)

    def number(self, coordinates: Tensor) -> Tensor:
        """The number of the weight that names a basis path; inverse of :meth:`coordinate`."""
        shifted = self._sorted_free - torch.arange(self.graph.H)
        return coordinates + torch.searchsorted(shifted, coordinates, right=True)

    def path(self, coordinate: int) -> list[str]:
        """The weights along one basis path, from its start to its end, by name."""
        number = self.number(torch.tensor([coordinate]))
        source, target = (int(end) for end in self.graph.places(number).ends())
        upward, downward = [], []
        while source:
            upward.append(int(self.skeleton.incoming[source]))
            source = int(self.skeleton.parent[source])
        while target:
            downward.append(int(self.skeleton.outgoing[target]))
            target = int(self.skeleton.child[target])
        return [self.graph.name(n) for n in (*reversed(upward), int(number), *downward)]

    def exponents(self, path: Sequence[WeightIndex | int]) -> dict[int, int]:
        """Write the value of any path as a product of powers of basis-path values.

        Args:
            path: its weights from a pinned unit to a pinned unit, as (parameter, index) or numbers.

        Returns:
            exponent by coordinate; positive and negative ones of the same root cancel.

        Reference: Zheng et al. 2019, Proposition 1; Yi et al. 2019, Lemma 5.1.
        """
        numbers = torch.tensor(
            [w if isinstance(w, int) else self.graph.number(*w) for w in path], dtype=torch.long
        )
        source, target = self.graph.places(numbers).ends()
        if int(source[0]) or int(target[-1]) or bool((source[1:] != target[:-1]).any()):
            raise PathspaceError("these weights do not form a path between pinned units")
        kept = ~torch.isin(numbers, self._sorted_free)
        powers: dict[int, int] = {}
        for coordinate in self.coordinate(numbers[kept]).tolist():
            powers[coordinate] = powers.get(coordinate, 0) + 1
        hidden = source[kept & (source > 0)]
        for coordinate in self.coordinate(self._root.numbers[hidden]).tolist():
            powers[coordinate] = powers.get(coordinate, 0) - 1
        return {coordinate: power for coordinate, power in powers.items() if power}

    def flat(self, values: Mapping[str, Tensor]) -> Tensor:
        """The m − H coordinates of values, gradients or updates as one vector."""
        parts = [values[edge.parameter].reshape(-1) for edge in self.graph.edges]
        whole = torch.cat(parts) if parts else torch.zeros(0)  # a network without weights
        keep = torch.ones(self.graph.m, dtype=torch.bool, device=whole.device)
        keep[self._sorted_free.to(whole.device)] = False
        return whole[keep]

    def unflat(self, vector: Tensor, like: Mapping[str, Tensor] | None = None) -> Weights:
        """The dict of a flat vector; 0 at the free weights."""
        if vector.shape != (len(self),):
            raise PathspaceError(f"expected a vector of length {len(self)}, got {vector.shape}")
        whole = vector.new_zeros(self.graph.m)
        keep = torch.ones(self.graph.m, dtype=torch.bool, device=vector.device)
        keep[self._sorted_free.to(vector.device)] = False
        whole = whole.masked_scatter(keep, vector)
        parts = whole.split([edge.count for edge in self.graph.edges])
        return {
            edge.parameter: part.view(edge.shape)
            for edge, part in zip(self.graph.edges, parts, strict=True)
        }

    # Values and weights ------------------------------------------------------------------------

    def values(self, state: Mapping[str, Tensor] | None = None) -> Weights:
        r"""The values :math:`v_e = I(u)\,w_e\,O(v)`; differentiable with respect to ``state``."""
        weights = self.graph.weights(_detached(self.network) if state is None else state)
        into, out = self.products(weights)
        return {
            edge.parameter: scaled(edge, weights[edge.parameter], out, into)
            for edge in self.graph.edges
        }

    def weights(
        self,
        values: Values,
        *,
        free: Tensor | None = None,
        state: Mapping[str, Tensor] | None = None,
    ) -> Weights:
        """The state of the model that has these values: the inverse of :meth:`values`.

        Args:
            values: dict or flat vector.
            free: (H,) the free weights; by default those of ``state``.
            state: where everything that values do not determine comes from (free weights, batch
                norm statistics, parameters outside the graph); by default the model's state.
        """
        state = _detached(self.network) if state is None else state
        given = self.unflat(values) if isinstance(values, Tensor) else values
        kept = self._free.take(self.graph.weights(state))
        if free is not None:
            kept = torch.cat([kept.new_ones(1), free.to(kept)])
        roots = self._root.take(given)
        if not bool((roots != 0).all()):
            scale = int((roots == 0).nonzero()[0])
            name = self.graph.name(int(self._root.numbers[scale]))
            raise PathspaceError(
                f"the value of the root `{name}` of unit {self.graph.unit(scale)} is 0 (or too "
                "small for its dtype), so the weights do not follow from the values; choose "
                "another skeleton, or use float64"
            )
        out = log_product(kept, self.skeleton.child)
        into = quotient(signed_log(roots), out)
        by_out, by_into = inverse(out), inverse(into)
        weights = {
            edge.parameter: scaled(edge, given[edge.parameter], by_out, by_into)
            for edge in self.graph.edges
        }
        weights = self._with_free(weights, kept)
        return self.graph.state(weights, state)

    def _with_free(self, weights: Weights, free: Tensor) -> Weights:
        """Write the free weights into new tensors (out of place where autograd needs it)."""
        weights = {k: w.clone() if w.requires_grad else w for k, w in weights.items()}
        self._free.put_(weights, free)
        return weights

    def off_skeleton(self, weights: Weights) -> Weights:
        """The weights with 0 at all skeleton weights: those whose basis paths are positive."""
        skeleton = torch.unique(torch.cat([self.skeleton.incoming, self.skeleton.outgoing])[1:])
        kept = dict(weights)
        for block in self.graph.places(skeleton).blocks:
            name = self.graph.edges[block.edge].parameter
            zero = weights[name].new_zeros(())
            place = tuple(i.to(zero.device) for i in block.index)
            kept[name] = weights[name].index_put(place, zero) if place else zero
        return kept

    def products(self, weights: Weights) -> tuple[Tensor, Tensor]:
        """I and O of every scale, each as (2, H+1): sign and logarithm of the size."""
        out = log_product(self._free.take(weights), self.skeleton.child)
        return log_product(self._incoming.take(weights), self.skeleton.parent), out

    # Gradients and steps -----------------------------------------------------------------------

    def pull(
        self, gradients: Mapping[str, Tensor], state: Mapping[str, Tensor] | None = None
    ) -> Weights:
        r"""Gradients with respect to the values from gradients with respect to the weights.

        The inverse chain rule: with :math:`\delta_e = \partial l/\partial w_e`,

        .. math:: \frac{\partial l}{\partial v_e} = \frac{\delta_e}{I(u)O(v)}, \quad
            \text{for a root } a \text{ minus } \frac{1}{v_a}\sum_{e:\,a(u)=a} \delta_e w_e,

        the sum over weights that are not free. Also the vector-Jacobian product of
        :meth:`weights`. Weights here are those of the graph (batch norm folded).

        Reference: Meng et al. 2019, section 4.2 (inverse chain rule).
        """
        weights = self.graph.weights(_detached(self.network) if state is None else state)
        into, out = self.products(weights)
        by_into, by_out = inverse(into), inverse(out)
        result = {}
        used = torch.zeros(self.graph.H + 1, dtype=torch.float64)
        for edge in self.graph.edges:
            gradient = gradients[edge.parameter]
            result[edge.parameter] = scaled(edge, gradient, by_out, by_into)
            if edge.from_free:
                flow = sum_to(gradient * weights[edge.parameter], edge.source_scale.shape)
                used.index_add_(0, edge.source_scale.reshape(-1), flow.reshape(-1).to(used))
        used -= self._free.take(gradients, 0.0) * self._free.take(weights)
        used[0] = 0.0
        by_owner = torch.zeros_like(used).index_add_(0, self._owner, used)
        value = plain(product(into, out))
        self._rooted.put_(result, self._rooted.take(result, 0.0) - by_owner / value)
        self._free.put_(result, torch.zeros_like(used))
        return result

    vjp = pull

    def jvp(self, tangent: Values, state: Mapping[str, Tensor] | None = None) -> Weights:
        r"""Change of the weights for a change of the values, the free weights fixed.

        .. math:: \dot w_e = w_e \Big(\frac{\dot v_e}{v_e} - \frac{\dot v_{a(u)}}{v_{a(u)}}\Big)
        """
        weights = self.graph.weights(_detached(self.network) if state is None else state)
        given = self.unflat(tangent) if isinstance(tangent, Tensor) else tangent
        into, out = self.products(weights)
        relative = self._root.take(given, 0.0) / plain(product(into, out))
        relative[0] = 0.0
        by_into, by_out = inverse(into), inverse(out)
        result = {}
        for edge in self.graph.edges:
            own = scaled(edge, given[edge.parameter], by_out, by_into)
            back = relative[edge.source_scale].to(own)
            result[edge.parameter] = own - weights[edge.parameter] * back
        self._free.put_(result, torch.zeros_like(relative))
        return result

    def push(self, update: Values, state: Mapping[str, Tensor] | None = None) -> Weights:
        r"""The state after the step :math:`v \leftarrow v + u` (weight allocation).

        .. math:: w_e \leftarrow \frac{w_e + u_e/(I(u)O(v))}{R_{a(u)}}, \qquad
            R_a = 1 + u_a/v_a,

        free weights unchanged: the form that is right for :math:`w_e = 0` too.

        Raises:
            PathspaceError: if a root would become 0 or change its sign (R ≤ 0), where the basis
                ends: choose another skeleton first, or take a smaller step.

        Reference: Meng et al. 2019, sections 4.3 and 11.1 (with the numerator corrected).
        """
        state = _detached(self.network) if state is None else state
        weights = self.graph.weights(state)
        given = self.unflat(update) if isinstance(update, Tensor) else update
        into, out = self.products(weights)
        ratio = 1 + self._root.take(given, 0.0) / plain(product(into, out))
        ratio[0] = 1.0
        if bool((ratio <= 0).any()):
            scale = int((ratio <= 0).nonzero()[0])
            root = self.graph.name(int(self._root.numbers[scale]))
            raise PathspaceError(
                f"the step takes the root `{root}` of unit {self.graph.unit(scale)} through zero; "
                "take a smaller step or choose another skeleton"
            )
        by_into, by_out = inverse(into), inverse(out)
        result = {}
        for edge in self.graph.edges:
            step = scaled(edge, given[edge.parameter], by_out, by_into)
            back = ratio[edge.source_scale].to(step)
            result[edge.parameter] = (weights[edge.parameter] + step) / back
        self._free.put_(result, self._free.take(weights))
        return self.graph.state(result, state)

    # Free weights ------------------------------------------------------------------------------

    def free(self, state: Mapping[str, Tensor] | None = None) -> Tensor:
        """(H,) the free skeleton weights."""
        state = _detached(self.network) if state is None else state
        return self._free.take(self.graph.weights(state))[1:]

    def gauge(
        self, state: Mapping[str, Tensor] | None = None, *, normalized: bool = False
    ) -> Rescaling:
        """The rescaling that makes the free skeleton weights +1 or −1.

        The free weight of a unit that a batch norm with ``eps > 0`` reads is the batch norm's own
        gain; it stays as it is unless ``normalized``, because the unit's scale is exact in eval
        mode only.
        """
        state = _detached(self.network) if state is None else state
        free, step = self._free.take(self.graph.weights(state)), self.skeleton.child
        if not normalized:
            kept = torch.cat([torch.tensor([True]), self.network.exact])
            free, step = torch.where(kept, free, 1.0), torch.where(kept, step, 0)
        return Rescaling(self.network, log_product(free, step)[1, 1:])


def fixed_points(step: Tensor) -> Tensor:
    """The fixed point that each node reaches by following ``step``."""
    while True:
        further = step[step]
        if torch.equal(further, step):
            return step
        step = further


def _detached(network: Network) -> dict[str, Any]:
    return {name: tensor.detach() for name, tensor in network.state().items()}
