r"""How to step: first-order rules on lists of gradients, wherever these gradients come from.

A rule turns gradients into updates u, so that the step is :math:`x \leftarrow x - \eta\,u` in the
coordinates the gradients belong to. It knows nothing of networks. State tensors belong to
parameters, have their shape, and carry the names that torch's optimizers give them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from pathspace.optim.lists import (
    Group,
    Tensors,
    add_products_,
    approach_,
    increase_,
    is_on,
    multiply_,
    plus,
)

State = dict[str, Any]


class Rule(Protocol):
    """A first-order rule: hyper-parameters, state per parameter, and the update.

    ``settings`` are the hyper-parameters and their defaults, in the order of torch's constructors.
    """

    settings: ClassVar[dict[str, Any]]

    def check(self, group: Group) -> None:
        """Refuse hyper-parameters that make no sense."""

    def buffers(self, group: Group) -> tuple[Buffer, ...]:
        """The state that a parameter of this group has."""

    def update(self, gradients: Tensors, states: Sequence[State], group: Group) -> Tensors:
        """Advance the states and return the updates; gradients may be overwritten.

        ``state["step"]`` counts this step; a number, or a tensor while a step is compiled.
        """


@dataclass(frozen=True)
class Buffer:
    """A state tensor of a parameter.

    Attributes:
        name: as in ``state_dict``.
        initial: what it is filled with.
        power: its degree in the gradient: 1 for an average of gradients, 2 for one of squares.
    """

    name: str
    initial: float = 0.0
    power: int = 1


def is_linear(rule: Rule, group: Group) -> bool:
    """Whether the update is the gradient itself: without state, for a rule that says so.

    A rule says so with the attribute ``is_plain``. Its ``update`` is then not called.
    """
    return bool(getattr(rule, "is_plain", False)) and not rule.buffers(group)


class Momentum:
    r"""SGD with momentum: :math:`m \leftarrow \mu m + (1-d)\,g`, :math:`u = m`.

    With Nesterov's, :math:`u = g + \mu m`. As in :class:`torch.optim.SGD`, the first gradient
    enters the average undampened.
    """

    is_plain: ClassVar = True  # without momentum
    settings: ClassVar = {
        "lr": 1e-3,
        "momentum": 0.0,
        "dampening": 0.0,
        "weight_decay": 0.0,
        "nesterov": False,
    }

    def check(self, group: Group) -> None:
        """Refuse negative rates and Nesterov's momentum without momentum."""
        for name in ("lr", "momentum", "weight_decay"):
            _not_negative(name, group[name])
        if group["nesterov"] and (group["momentum"] <= 0 or group["dampening"] != 0):
            raise ValueError("nesterov needs a momentum above 0 and no dampening")

    def buffers(self, group: Group) -> tuple[Buffer, ...]:
        """One average of gradients, if there is momentum."""
        return (Buffer("momentum_buffer"),) if is_on(group["momentum"]) else ()

    def update(self, gradients: Tensors, states: Sequence[State], group: Group) -> Tensors:
        """Advance the averages."""
        if not is_on(group["momentum"]):
            return gradients
        averages = [state["momentum_buffer"] for state in states]
        multiply_(averages, group["momentum"])
        if not is_on(group["dampening"]):
            torch._foreach_add_(averages, gradients)
        else:
            kept = 1 - group["dampening"]
            is_first = [1 / state["step"] // 1 for state in states]  # 1 at the first step, then 0
            weights = [kept + (1 - kept) * first for first in is_first]
            torch._foreach_add_(averages, torch._foreach_mul(gradients, weights))
        if group["nesterov"]:
            return plus(gradients, averages, group["momentum"])
        return averages


class Adagrad:
    r"""AdaGrad: :math:`s \leftarrow s + g^2`, :math:`u = g/(\sqrt{s} + \epsilon)`."""

    settings: ClassVar = {
        "lr": 1e-2,
        "lr_decay": 0.0,
        "weight_decay": 0.0,
        "initial_accumulator_value": 0.0,
        "eps": 1e-10,
    }

    def check(self, group: Group) -> None:
        """Refuse negative settings."""
        for name in self.settings:
            _not_negative(name, group[name])

    def buffers(self, group: Group) -> tuple[Buffer, ...]:
        """The sum of squared gradients."""
        return (Buffer("sum", group["initial_accumulator_value"], power=2),)

    def update(self, gradients: Tensors, states: Sequence[State], group: Group) -> Tensors:
        """Advance the sums."""
        sums = [state["sum"] for state in states]
        torch._foreach_addcmul_(sums, gradients, gradients)
        sizes = torch._foreach_sqrt(sums)
        increase_(sizes, group["eps"])
        if is_on(group["lr_decay"]):
            later = [1 + (state["step"] - 1) * group["lr_decay"] for state in states]
            torch._foreach_mul_(sizes, later)
        return torch._foreach_div(gradients, sizes)


class Adam:
    r"""Adam: :math:`u = \hat m/(\sqrt{\hat s} + \epsilon)` from corrected averages of g and g²."""

    settings: ClassVar = {
        "lr": 1e-3,
        "betas": (0.9, 0.999),
        "eps": 1e-8,
        "weight_decay": 0.0,
        "amsgrad": False,
    }

    def check(self, group: Group) -> None:
        """Refuse negative settings and averages that do not forget."""
        for name in ("lr", "eps", "weight_decay"):
            _not_negative(name, group[name])
        for place, beta in enumerate(group["betas"]):
            if not 0 <= beta < 1:
                raise ValueError(f"betas[{place}] must be at least 0 and below 1, not {beta}")

    def buffers(self, group: Group) -> tuple[Buffer, ...]:
        """The two averages, and the largest second one for AMSGrad."""
        names = [("exp_avg", 1), ("exp_avg_sq", 2)]
        names += [("max_exp_avg_sq", 2)] if group["amsgrad"] else []
        return tuple(Buffer(name, power=power) for name, power in names)

    def update(self, gradients: Tensors, states: Sequence[State], group: Group) -> Tensors:
        """Advance both averages."""
        beta1, beta2 = group["betas"]
        first = [state["exp_avg"] for state in states]
        second = [state["exp_avg_sq"] for state in states]
        approach_(first, gradients, 1 - beta1)
        multiply_(second, beta2)
        add_products_(second, gradients, gradients, 1 - beta2)
        if group["amsgrad"]:
            largest = [state["max_exp_avg_sq"] for state in states]
            torch._foreach_maximum_(largest, second)
            second = largest
        steps = [state["step"] for state in states]
        sizes = torch._foreach_sqrt(second)
        torch._foreach_div_(sizes, [(1 - _power(beta2, step)) ** 0.5 for step in steps])
        increase_(sizes, group["eps"])
        torch._foreach_mul_(sizes, [1 - _power(beta1, step) for step in steps])
        return torch._foreach_div(first, sizes)


def _power(base: Any, step: Any) -> Any:
    """A power; a compiler would round the base of a tensor's power to float32."""
    return step.new_full((), base) ** step if isinstance(step, Tensor) else base**step


def _not_negative(name: str, value: Any) -> None:
    if not value >= 0:
        raise ValueError(f"{name} must not be negative, not {value}")
