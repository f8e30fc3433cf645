r"""`balance`: the representative of a network's class whose units all have equal incoming norms.

With :math:`z_v = c_v^{-p}`, the incoming norm of unit v after rescaling is t if and only if
:math:`t^p z_v = \sum_{u \to v} |w_{uv}|^p z_u` (z = 1 for everything pinned): one forward pass
through the graph with weights :math:`|w|^p`. The weights that leave the free units for pinned ones
form one more group; its norm falls as t rises, so there is exactly one t at which it equals t. That
t is the smallest possible maximum, because a smaller bound on all units would make every z larger.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pathspace.network import Network
from pathspace.rescaling import Rescaling, rescale_
from pathspace.units import Partition


def balance(network: Network, p: float = 2.0) -> Rescaling:
    r"""The rescaling that minimises the largest incoming norm :math:`\mu_{p,\infty}`.

    After it, the incoming weights (biases and batch-norm weights included) of every free unit have
    the same :math:`\ell_p` norm t, and so have the weights from these units into pinned ones taken
    together. For a layered network of depth d without biases, :math:`t^d` is the path norm
    :math:`\phi_p`. The result depends on the class of the network alone, not on its scaling. Parts
    of a network that are separated by pinned units have a t each. Cost: a few passes over the
    weights, in float64 and in logarithms.

    Scales that a batch norm with ``eps > 0`` divides out stay as they are, because moving them
    would change the function in train mode.

    Args:
        network: the traced network.
        p: the exponent of the norm, 1 ≤ p < ∞.

    Example:
        >>> import torch, pathspace as ps
        >>> model = torch.nn.Sequential(
        ...     torch.nn.Linear(2, 3, bias=False),
        ...     torch.nn.ReLU(),
        ...     torch.nn.Linear(3, 1, bias=False),
        ... )
        >>> network = ps.balance_(ps.trace(model, torch.ones(1, 2)))
        >>> incoming = model[0].weight.norm(dim=1)
        >>> torch.allclose(incoming, model[2].weight.norm().expand(3))
        True

    Reference: Neyshabur et al. 2017, Lemma 4.1.
    """
    if not 1 <= p < math.inf:
        raise ValueError(f"p must be at least 1 and finite, not {p}")
    return _Balance(network, p).solve()


def balance_(network: Network, p: float = 2.0) -> Network:
    """Balance the model's own weights in place; the function is kept. See :func:`balance`."""
    return rescale_(network, balance(network, p))


class _Balance:
    """Finds log z for given log t by sweeps over the edges, and log t by the secant rule."""

    def __init__(self, network: Network, p: float) -> None:
        self.network, self.p = network, p
        state = network.parameters()
        self.movable = torch.cat([torch.tensor([False]), network.exact])
        self.powers = []
        for edge in network.edges:
            targets, sources = self.movable[edge.target_scale], self.movable[edge.source_scale]
            if bool(targets.any()) or bool(sources.any()):
                weight = state[edge.parameter].detach().to("cpu", torch.float64).abs() ** p
                self.powers.append((edge, weight))
        self.part = self._parts()
        self.acyclic = self._acyclic()

    def _parts(self) -> Tensor:
        """The part (connected component) of every scale; pinned scales separate parts."""
        partition = Partition()
        first = int(partition.fresh(self.network.H + 1)[0])
        for edge, _ in self.powers:
            target, source = torch.broadcast_tensors(edge.target_scale, edge.source_scale)
            both = self.movable[target] & self.movable[source]
            pairs = torch.stack([target[both], source[both]]) + first
            partition.tie(*torch.unique(pairs, dim=1))
        scale, _ = partition.scales()
        return scale[first:] - 1

    def _acyclic(self) -> bool:
        """Whether every scale is written completely before it is read."""
        read = torch.zeros(self.network.H + 1, dtype=torch.bool)
        for edge, _ in self.powers:
            read[edge.source_scale.reshape(-1)] = True
            read[0] = False
            if bool(read[edge.target_scale].any()):
                return False
        return True

    def sweep(self, log_z: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
        """One pass: new log z, and log of the p-th power of what leaves each part."""
        size = self.network.H + 1
        fresh = torch.full((size,), -math.inf, dtype=torch.float64)
        left = torch.full((size,), -math.inf, dtype=torch.float64)
        current = log_z.clone()
        for edge, power in self.powers:
            source = current[edge.source_scale]
            top = source.amax().clamp_min(-1e300)
            flow = power * (source - top).exp()
            into = torch.zeros(size, dtype=torch.float64)
            target = edge.target_scale
            into.index_add_(0, target.reshape(-1), _sum_to(flow, target.shape).reshape(-1))
            fresh = torch.logaddexp(fresh, into.log() + top)
            written = self.movable & (into > 0)
            current[written] = (fresh - shift)[written]
            exits = (~self.movable[target]).expand_as(flow) & self.movable[edge.source_scale]
            if bool(exits.any()):
                out = torch.zeros(size, dtype=torch.float64)
                leaving = _sum_to(torch.where(exits, flow, 0.0), edge.source_scale.shape)
                out.index_add_(0, self.part[edge.source_scale].reshape(-1), leaving.reshape(-1))
                left = torch.logaddexp(left, out.log() + top)
        return current, left

    def settle(self, log_t: Tensor) -> tuple[Tensor, Tensor]:
        """Find log z and log outflow for given log t by part; infinite outflow if t is too small."""
        shift = self.p * log_t[self.part]
        log_z = torch.zeros(self.network.H + 1, dtype=torch.float64)
        log_z, left = self.sweep(log_z, shift)
        for _ in range(0 if self.acyclic else 10_000):
            previous = log_z
            log_z, left = self.sweep(log_z, shift)
            change = (log_z - previous).abs().nan_to_num(0.0)
            if float(change.max()) < 1e-13:
                break
            if float(log_z.nan_to_num(0.0, neginf=0.0).max()) > 1e4:
                left = torch.where(left > -math.inf, math.inf, left)
                break
        return log_z, left

    def solve(self) -> Rescaling:
        """Secant steps on log outflow - p log t, kept inside a bracket."""
        size = self.network.H + 1
        low = torch.full((size,), -math.inf, dtype=torch.float64)
        high = torch.full((size,), math.inf, dtype=torch.float64)
        log_t = torch.zeros(size, dtype=torch.float64)
        log_z, left = self.settle(log_t)
        open_part = left > -math.inf  # parts with no outflow have no t
        excess = torch.where(open_part, left - self.p * log_t, 0.0)
        slope = torch.full((size,), -2 * self.p, dtype=torch.float64)
        for _ in range(200):
            if float(excess.abs().max()) < 1e-12:
                break
            low = torch.where(excess > 0, torch.maximum(low, log_t), low)
            high = torch.where(excess < 0, torch.minimum(high, log_t), high)
            step = torch.where(excess.isinf(), 1.0, -excess / slope)
            new_t = log_t + step
            outside = (new_t <= low) | (new_t >= high)
            middle = torch.where(low.isfinite() & high.isfinite(), (low + high) / 2, new_t)
            new_t = torch.where(outside, middle, new_t)
            new_t = torch.where(excess == 0, log_t, new_t)
            log_z, left = self.settle(new_t)
            new_excess = torch.where(open_part, left - self.p * new_t, 0.0)
            measured = (new_excess - excess) / (new_t - log_t)
            usable = measured.isfinite() & (measured < -1e-3)
            slope = torch.where(usable, measured, slope)
            log_t, excess = new_t, new_excess
        usable = self.movable & open_part[self.part] & log_z.isfinite()
        log_c = torch.where(usable, -log_z / self.p, 0.0)
        return Rescaling(self.network, log_c[1:])


def _sum_to(values: Tensor, shape: torch.Size) -> Tensor:
    """Sum a tensor over the axes on which ``shape`` has size 1."""
    dims = [d for d, size in enumerate(shape) if size == 1 and values.shape[d] > 1]
    return values.sum(dims, keepdim=True).expand(shape) if dims else values.expand(shape)
