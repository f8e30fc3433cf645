"""`are_equivalent`: do two sets of weights differ by a rescaling only?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from pathspace.basis import BasisPaths
from pathspace.network import Network
from pathspace.rescalings import Rescaling


@dataclass(frozen=True)
class Verdict:
    """Whether two states are equivalent, with the evidence; true or false as a condition.

    Attributes:
        equivalent: the answer.
        rescaling: the rescaling that takes the first state to the second, if they are equivalent.
        difference: the first thing that differs, in words, if they are not.
        error: the largest relative difference between basis-path values.
    """

    equivalent: bool
    rescaling: Rescaling | None
    difference: str | None
    error: float

    def __bool__(self) -> bool:
        return self.equivalent

    def __str__(self) -> str:
        if self.equivalent:
            return f"equivalent up to rescaling (largest relative difference {self.error:.2g})"
        return f"not equivalent: {self.difference}"


def are_equivalent(
    network: Network,
    a: Mapping[str, Tensor],
    b: Mapping[str, Tensor],
    *,
    rtol: float | None = None,
) -> Verdict:
    r"""Test whether two states of a network differ by a positive rescaling only.

    They do if and only if all basis-path values and the signs of the free skeleton weights agree.
    The skeleton is that of the largest weights of ``a``. Cost O(m). A batch norm is compared as it
    acts in eval mode; parameters that no scale touches must agree themselves.

    Args:
        network: the traced network.
        a: parameters and buffers by name (a ``state_dict``).
        b: the other ones.
        rtol: largest relative difference of a basis-path value; by default 1e-9 for float64
            states, 1e-4 for float32, 5e-2 for 16-bit ones.

    Example:
        >>> import torch, pathspace as ps
        >>> model = torch.nn.Sequential(
        ...     torch.nn.Linear(2, 3), torch.nn.ReLU(), torch.nn.Linear(3, 1)
        ... )
        >>> network = ps.trace(model, torch.ones(1, 2))
        >>> scaled = ps.rescale(network, {"0": 10.0})
        >>> verdict = ps.are_equivalent(network, model.state_dict(), scaled)
        >>> bool(verdict), verdict.rescaling.of("0").round(decimals=3)
        (True, tensor([10., 10., 10.], dtype=torch.float64))

    Reference: Meng et al. 2019, Theorems 3.3 and 3.6.
    """
    if rtol is None:
        kinds = [t.dtype for s in (a, b) for t in s.values() if t.is_floating_point()]
        rtol = max(_TOLERANCE.get(kind, 1e-4) for kind in kinds)
    a, b = (_completed(network, state) for state in (a, b))
    basis = BasisPaths(network, "largest", state=a)
    free = torch.stack([basis.free(a), basis.free(b)])
    odd = (free[0].sign() != free[1].sign()).nonzero()
    if len(odd):
        scale = int(odd[0]) + 1
        name = basis.graph.name(int(basis.skeleton.outgoing[scale]))
        pair = tuple(f"{float(value):.6g}" for value in free[:, scale - 1])
        return Verdict(False, None, f"the sign of `{name}`: {pair[0]} and {pair[1]}", float("inf"))
    values = [basis.values(state) for state in (a, b)]
    worst = 0.0
    for edge in basis.graph.edges:
        first, second = (v[edge.parameter].double() for v in values)
        size = torch.maximum(first.abs(), second.abs())
        relative = torch.where(size > 0, (first - second).abs() / size, 0.0)
        relative = torch.where(first.isnan() | second.isnan(), float("inf"), relative)
        if not relative.numel():
            continue
        worst = max(worst, float(relative.max()))
        if worst > rtol:
            place = int((relative.reshape(-1) > rtol).nonzero()[0])
            index = [int(i) for i in torch.unravel_index(torch.tensor(place), edge.shape)]
            pair = tuple(f"{float(v.reshape(-1)[place]):.6g}" for v in (first, second))
            return Verdict(
                False,
                None,
                f"the basis path of `{edge.parameter}`{index} has the values {pair[0]} and "
                f"{pair[1]}",
                worst,
            )
    log = basis.gauge(a, normalized=True).log - basis.gauge(b, normalized=True).log
    return Verdict(True, Rescaling(network, log), None, worst)


_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 5e-2, torch.bfloat16: 5e-2}


def _completed(network: Network, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The state with what it does not mention (e.g. buffers) from the model."""
    return {name: state.get(name, own).detach() for name, own in network.state().items()}
