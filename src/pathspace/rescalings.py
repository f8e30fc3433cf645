r"""The group of positive rescalings and its action on weights, statistics and optimizer state.

A rescaling has one factor :math:`c > 0` per free scale of a network. It acts by
:math:`w_e \leftarrow w_e \, c_v / c_u` on the weight of an edge from u to v, with c = 1 for
everything pinned, and leaves the function unchanged. A batch norm divides the scale of its input
out; there the running mean is multiplied by c, and the running variance becomes
:math:`c^2(\sigma^2 + \varepsilon) - \varepsilon`, so that eval mode is exact for every scale.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pathspace.errors import RescalingError
from pathspace.network import Network, Normalization


@dataclass(frozen=True, eq=False)
class Rescaling:
    """An element of the group: one positive factor per free scale, kept as logarithms.

    Products and inverses are those of the group, so ``rescale(network, a * b)`` acts like ``b``
    first and ``a`` second (the group is commutative: either order).
    """

    network: Network
    log: Tensor  # (H,) float64

    def __post_init__(self) -> None:
        if self.log.shape != (self.network.H,):
            raise RescalingError(
                f"expected {self.network.H} factors, one per free scale, got shape "
                f"{tuple(self.log.shape)}"
            )
        if not bool(self.log.isfinite().all()):
            raise RescalingError("the factors of a rescaling must be positive and finite")

    @property
    def factors(self) -> Tensor:
        """(H,) the factors themselves."""
        return self.log.exp()

    def of(self, space: str) -> Tensor:
        """The factor of every unit of a space; 1 where a unit is pinned."""
        return self._padded()[self.network.scale[self.network.space(space).units]].exp()

    def __mul__(self, other: Rescaling) -> Rescaling:
        _same_network(self, other)
        return Rescaling(self.network, self.log + other.log)

    def inverse(self) -> Rescaling:
        """The rescaling that undoes this one."""
        return Rescaling(self.network, -self.log)

    def __repr__(self) -> str:
        if not len(self.log):
            return "<Rescaling of 0 scales>"
        low, high = self.log.min().exp(), self.log.max().exp()
        return f"<Rescaling of {len(self.log):,} scales, factors {low:.3g} to {high:.3g}>"

    def _padded(self) -> Tensor:
        """Logarithms by scale, with the pinned scale 0 in front."""
        return torch.cat([self.log.new_zeros(1), self.log])


Factors = Rescaling | Tensor | Sequence[float] | Mapping[str, Any]


def identity(network: Network) -> Rescaling:
    """The rescaling that changes nothing."""
    return Rescaling(network, torch.zeros(network.H, dtype=torch.float64))


def compose(first: Rescaling, *others: Rescaling) -> Rescaling:
    """The product of rescalings: acting by it is acting by all of them."""
    for other in others:
        first = first * other
    return first


def inverse(c: Rescaling) -> Rescaling:
    """The rescaling that undoes ``c``."""
    return c.inverse()


def rescaling(network: Network, c: Factors) -> Rescaling:
    """Make a rescaling from factors.

    Args:
        network: the traced network.
        c: a :class:`Rescaling`; a tensor of H positive factors; or a mapping from the name of a
            space to one factor or to one factor per unit (spaces that are not named keep 1).

    Example:
        >>> import torch, pathspace as ps
        >>> model = torch.nn.Sequential(
        ...     torch.nn.Linear(2, 3), torch.nn.ReLU(), torch.nn.Linear(3, 1)
        ... )
        >>> network = ps.trace(model, torch.ones(1, 2))
        >>> ps.rescaling(network, {"0": 2.0}).of("0")
        tensor([2., 2., 2.], dtype=torch.float64)
    """
    if isinstance(c, Rescaling):
        if c.network is not network and len(c.log) != network.H:
            raise RescalingError(
                f"the rescaling belongs to a network with {len(c.log)} free scales, this one has "
                f"{network.H}"
            )
        return c
    if isinstance(c, Mapping):
        return _from_spaces(network, c)
    if not isinstance(c, Tensor | list | tuple):
        raise RescalingError(
            f"{type(c).__name__} does not say which units to scale; pass a tensor of H factors or "
            'a mapping such as {"fc1": 10.0}'
        )
    return Rescaling(network, torch.as_tensor(c, dtype=torch.float64, device="cpu").detach().log())


def rescale(
    network: Network, c: Factors, state: Mapping[str, Tensor] | None = None
) -> dict[str, Tensor]:
    r"""The rescaled weights, as a new state; the model is not touched.

    .. math:: \tilde w_e = w_e \, c_v / c_u \quad\text{for } e = u \to v

    Args:
        network: the traced network.
        c: the rescaling, see :func:`rescaling`.
        state: parameters and buffers by name; by default those of the model.

    Returns:
        all entries of ``state``; those that the rescaling does not change are the same tensors.
        Use it with ``torch.func.functional_call`` or ``load_state_dict``.

    Example:
        >>> import torch, pathspace as ps
        >>> model = torch.nn.Sequential(
        ...     torch.nn.Linear(2, 3), torch.nn.ReLU(), torch.nn.Linear(3, 1)
        ... )
        >>> x = torch.randn(4, 2)
        >>> network = ps.trace(model, x)
        >>> state = ps.rescale(network, ps.random_rescaling(network))
        >>> torch.allclose(torch.func.functional_call(model, state, x), model(x), atol=1e-5)
        True

    Reference: Neyshabur et al. 2017, Eq. (1); Meng et al. 2019, Definition 3.1.
    """
    log = rescaling(network, c)._padded()
    old = dict(network.state() if state is None else state)
    new = dict(old)
    names = network.names()
    for edge in network.edges:
        ratio = edge.ratio(log)
        if bool(ratio.any()):
            moved = _scaled(_entry(old, edge.parameter), ratio, edge.parameter)
            for name in names[edge.parameter]:
                if name in new:
                    new[name] = moved
    for norm in network.normalizations:
        shift = log[norm.input_scale]
        if norm.mean is not None and norm.mean in old and bool(shift.any()):
            new[norm.mean] = _scaled(old[norm.mean], shift, norm.mean)
        if norm.variance is not None and norm.variance in old and bool(shift.any()):
            new[norm.variance] = _scaled_variance(old[norm.variance], shift, norm)
    return new


def rescale_(
    network: Network, c: Factors, *, optimizer: torch.optim.Optimizer | None = None
) -> Network:
    """Rescale the model's own weights (and batch-norm statistics) in place.

    Nothing is written unless everything is finite.

    Args:
        network: the traced network.
        c: the rescaling, see :func:`rescaling`.
        optimizer: a torch optimizer whose state is carried along. Gradients transform inversely to
            weights, so momentum buffers are divided by the factor and second moments by its
            square; the gradients that the parameters hold are carried along too.
    """
    c = rescaling(network, c)
    state = network.state()
    changed = {n: t for n, t in rescale(network, c, state).items() if t is not state[n]}
    carried = _carried(network, c, optimizer) if optimizer is not None else []
    with torch.no_grad():
        for name, tensor in changed.items():
            state[name].copy_(tensor)
        for buffer, value in carried:
            buffer.copy_(value)
    return network


def random_rescaling(
    network: Network,
    spread: float = 1.0,
    *,
    generator: torch.Generator | None = None,
    normalized: bool = False,
) -> Rescaling:
    r"""Independent log-normal factors, :math:`\log c \sim N(0, \text{spread}^2)`.

    Args:
        network: the traced network.
        spread: standard deviation of the logarithms.
        generator: source of randomness; torch's default otherwise.
        normalized: also move scales that a batch norm with ``eps > 0`` divides out. In train mode
            these change the function by a relative amount of about eps/variance, because eps does
            not scale; so they stay 1 unless asked for. In eval mode they are exact (but a batch
            norm without running statistics is always in train mode).
    """
    log = spread * torch.randn(network.H, dtype=torch.float64, generator=generator)
    return Rescaling(network, log if normalized else log * network.exact)


def unbalanced_rescaling(
    network: Network,
    picks: int = 2000,
    factor: float = 10.0,
    spread: float = 1.0,
    *,
    generator: torch.Generator | None = None,
) -> Rescaling:
    r"""The recipe of Neyshabur et al. (2017) that unbalances a network.

    ``picks`` units are drawn with replacement; each draw multiplies the unit's scale by
    :math:`\text{factor}\cdot c` with :math:`\log c \sim N(0, \text{spread}^2)`.

    Reference: Neyshabur et al. 2017, caption of Figure 3 (2000 units, factor 10).
    """
    log = torch.zeros(network.H, dtype=torch.float64)
    candidates = network.exact.nonzero().squeeze(1)
    if len(candidates):
        drawn = torch.randint(len(candidates), (picks,), generator=generator)
        noise = torch.randn(picks, dtype=torch.float64, generator=generator)
        amount = spread * noise + torch.tensor(factor, dtype=torch.float64).log()
        log.index_add_(0, candidates[drawn], amount)
    return Rescaling(network, log)


def carry_gradients(
    network: Network, c: Factors, gradients: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Gradients at the rescaled weights: they transform inversely to the weights."""
    log = rescaling(network, c)._padded()
    names = network.names()
    ratios = {name: edge.ratio(log) for edge in network.edges for name in names[edge.parameter]}
    return {
        name: _scaled(gradient, -ratios[name], name) if name in ratios else gradient
        for name, gradient in gradients.items()
    }


# Helpers ---------------------------------------------------------------------------------------

# How an entry of a torch optimizer's state transforms: the power of the gradient that it is.
_POWERS = {
    "step": 0,
    "mu_product": 0,
    "momentum_buffer": 1,
    "exp_avg": 1,
    "exp_inf": 1,
    "grad_avg": 1,
    "exp_avg_sq": 2,
    "max_exp_avg_sq": 2,
    "square_avg": 2,
    "sum": 2,
}


def _carried(
    network: Network, c: Rescaling, optimizer: torch.optim.Optimizer
) -> list[tuple[Tensor, Tensor]]:
    """Pairs (tensor of the optimizer or gradient, its value after the rescaling)."""
    log = c._padded()
    powers = _powers(optimizer) if bool(log.any()) else {}
    parameters = network.parameters()
    pairs = []
    for edge in network.edges:
        ratio = edge.ratio(log)
        if not bool(ratio.any()):
            continue
        parameter = parameters[edge.parameter]
        for key, entry in optimizer.state.get(parameter, {}).items():
            if (power := powers.get(key)) and isinstance(entry, Tensor):
                name = f"{key}` of `{edge.parameter}"
                pairs.append((entry, _scaled(entry, -power * ratio, name)))
        if parameter.grad is not None:
            gradient = _scaled(parameter.grad, -ratio, f"grad` of `{edge.parameter}")
            pairs.append((parameter.grad, gradient))
    return pairs


def _powers(optimizer: torch.optim.Optimizer) -> dict[str, int]:
    """The powers of all the state that an optimizer holds; state of another kind is refused."""
    powers = {}
    for state in optimizer.state.values():
        for key, entry in state.items():
            if entry is None or isinstance(entry, int | float):
                continue
            quotients = key == "momentum_buffer" and isinstance(optimizer, torch.optim.RMSprop)
            if key not in _POWERS or quotients:
                raise RescalingError(
                    f"do not know how the state {key!r} of {type(optimizer).__name__} transforms; "
                    "rescale before training starts, or without optimizer="
                )
            powers[key] = _POWERS[key]
    return powers


def _scaled(tensor: Tensor, log_factor: Tensor, name: str) -> Tensor:
    """``tensor * exp(log_factor)``; no entry may overflow, or vanish unless it was subnormal."""
    tensor = tensor.detach()
    wide = tensor.dtype if tensor.dtype == torch.float64 else torch.float32
    factor = log_factor.exp().to(tensor.device, wide)
    scaled = (tensor.to(wide) * factor).to(tensor.dtype)
    vanished = (scaled == 0) & (tensor.abs() >= torch.finfo(tensor.dtype).tiny)
    if bool(((~scaled.isfinite() & tensor.isfinite()) | vanished).any()):
        raise _out_of_range(name, tensor.dtype)
    return scaled


def _scaled_variance(variance: Tensor, log_factor: Tensor, norm: Normalization) -> Tensor:
    """The running variance whose sum with eps is scaled; that sum must keep half its digits."""
    wanted = (variance.detach().to("cpu", torch.float64) + norm.eps) * (2 * log_factor).exp()
    scaled = (wanted - norm.eps).to(variance.dtype)
    error = (scaled.double() + norm.eps - wanted).abs()
    if not bool((error <= torch.finfo(variance.dtype).eps ** 0.5 * wanted).all()):
        raise _out_of_range(str(norm.variance), variance.dtype)
    return scaled.to(variance.device)


def _out_of_range(name: str, dtype: torch.dtype) -> RescalingError:
    return RescalingError(
        f"`{name}` leaves the range of {str(dtype).removeprefix('torch.')} under this rescaling; "
        "use smaller factors or a wider dtype"
    )


def _entry(state: Mapping[str, Tensor], name: str) -> Tensor:
    if name not in state:
        raise RescalingError(f"the state has no entry `{name}`; pass all parameters and buffers")
    return state[name]


def _from_spaces(network: Network, factors: Mapping[str, Any]) -> Rescaling:
    log = torch.zeros(network.H + 1, dtype=torch.float64)
    given = torch.zeros(network.H + 1, dtype=torch.bool)
    for name, value in factors.items():
        try:
            space = network.space(name)
        except KeyError as error:
            raise RescalingError(str(error.args[0])) from None
        scales = network.scale[space.units]
        values = torch.as_tensor(value, dtype=torch.float64, device="cpu").detach()
        if values.dim() and values.shape != (space.size,):
            raise RescalingError(
                f"space {name!r} has {space.size} units, got {tuple(values.shape)} factors"
            )
        if not bool(((values > 0) & values.isfinite()).all()):
            raise RescalingError(f"the factors of {name!r} must be positive and finite")
        one_for_all = values.dim() == 0
        values = values.log().expand(space.size)
        pinned = scales == 0
        if bool(values[pinned].any()) and (bool(pinned.all()) or not one_for_all):
            reasons = "; ".join(space.reasons) or "tied to pinned units"
            raise RescalingError(f"units of {name!r} are pinned ({reasons}); their factor is 1")
        free = scales[scales > 0]
        wanted = values[scales > 0]
        clash = given[free] & ((log[free] - wanted).abs() > 1e-12)
        log[free] = wanted
        if bool(clash.any()) or bool(((log[free] - wanted).abs() > 1e-12).any()):
            raise RescalingError(f"units of {name!r} share a scale but were given two factors")
        given[free] = True
    return Rescaling(network, log[1:])


def _same_network(a: Rescaling, b: Rescaling) -> None:
    if len(a.log) != len(b.log):
        raise RescalingError(
            f"rescalings of {len(a.log)} and {len(b.log)} scales belong to different networks"
        )
