"""A measure, what it is applied to, and what it finds."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor

from pathspace.basis import BasisPaths
from pathspace.entries import Entry, power_of_ten
from pathspace.errors import PathspaceError
from pathspace.evaluation import Data, Loss
from pathspace.network import InputSpec, Network
from pathspace.norms import BasisPathNorm, basis_path_norm
from pathspace.performance import Performance
from pathspace.skeleton import Choice, Skeleton
from pathspace.spectral import spectral_norm
from pathspace.tracing.values import map_leaves


@dataclass(frozen=True)
class Subject:
    """What is measured: a network with some state of its weights, and what it does on data.

    Attributes:
        network: the traced network.
        state: its parameters and buffers, in float64.
        choice: the skeleton of the basis paths.
        result: loss, margins and so on, if there are data.
        samples: the number of training samples that bounds speak of.
        own: whether the state is that of the model itself.
        data: the data, if there are any.
        loss: the loss on them.
    """

    network: Network
    state: Mapping[str, Tensor]
    choice: Choice | Skeleton | BasisPaths = "modulo"
    result: Performance | None = None
    samples: int | None = None
    own: bool = True
    data: Data | None = None
    loss: Loss | None = None

    @property
    def on_data(self) -> Performance:
        """What the network does on the data; raises if there are none."""
        if self.result is None:
            raise PathspaceError("needs data")
        return self.result

    @property
    def n(self) -> int:
        """Number of training samples."""
        return self.on_data.samples if self.samples is None else self.samples

    def margin_over(self, log_norm: float) -> Reading:
        """The 10 % margin divided by a norm that is given by its logarithm."""
        margin = self.on_data.quantile(0.1)
        if log_norm == -math.inf:
            raise PathspaceError("the norm is 0, and nothing can be divided by it")
        if not margin > 0 or math.isinf(margin):
            return Reading.of(margin * math.exp(min(-log_norm, 709.0)))
        return Reading.of_log(math.log(margin) - log_norm)

    @cached_property
    def basis_path_norm(self) -> BasisPathNorm:
        """The basis-path norm, from which several measures are read."""
        return basis_path_norm(self.network, self.choice, state=self.state)

    @cached_property
    def log_spectral_norm(self) -> float:
        """The logarithm of the product of spectral norms, which two measures need."""
        return float(spectral_norm(self.network, log=True, state=self.state))

    @cached_property
    def holder(self) -> Network:
        """A network whose model holds the state itself, for functions that take no state."""
        return self.network if self.own else _holding(self.network, self.state)


@dataclass(frozen=True)
class Reading:
    """A number that was found: its value, decimal logarithm and notes."""

    value: float
    log10: float | None
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, value: float, *notes: str) -> Reading:
        """A number that a float can hold."""
        log10 = math.log10(value) if value > 0 else -math.inf if value == 0 else None
        return cls(value, log10, notes)

    @classmethod
    def of_log(cls, log: Tensor | float, *notes: str) -> Reading:
        """A positive number given by its natural logarithm."""
        log10 = float(log) / math.log(10)
        return cls(power_of_ten(log10), log10, notes)


@dataclass(frozen=True)
class Measure:
    """One line of the table.

    Attributes:
        name: this, ``title``, ``symbol``, ``group``, ``unit`` and ``invariant`` are those of its
            :class:`~pathspace.entries.Entry`.
        function: computes it.
        needs: whether weights are enough.
        applies: whether to measure it for a network when nobody asked for it by name: ``False``
            leaves it out, a text leaves it out with this reason, and ``None`` unless its group is
            asked for.
    """

    name: str
    title: str
    symbol: str
    group: str
    unit: str
    invariant: bool | str
    function: Callable[[Subject], Reading] = field(repr=False)
    needs: Literal["weights", "data"] = "weights"
    applies: Callable[[Network], bool | str | None] = field(default=lambda _: True, repr=False)

    def entry(self, subject: Subject) -> Entry:
        """The number for a subject, or the reason why there is none."""
        try:
            reading = self.function(subject)
        except PathspaceError as error:
            return self.refusal(str(error))
        notes = reading.notes
        if math.isnan(reading.value):
            notes = (*notes, "not a number: a weight, an input or an output is not finite")
        return self._entry(reading.value, reading.log10, notes)

    def refusal(self, reason: str) -> Entry:
        """The entry that has a reason in place of a number."""
        return self._entry(None, None, (), reason)

    def _entry(
        self,
        value: float | None,
        log10: float | None,
        notes: tuple[str, ...],
        reason: str | None = None,
    ) -> Entry:
        about = (self.name, self.title, self.symbol, self.group, self.unit, self.invariant)
        return Entry(*about, value, log10, notes, reason)


def _holding(network: Network, state: Mapping[str, Tensor]) -> Network:
    """The same network around a copy of its model, in float64 and with another state."""
    try:
        model = copy.deepcopy(network.model).double()
    except Exception as error:
        raise PathspaceError(
            f"the model cannot be copied ({type(error).__name__}: {error}), and this measure takes "
            "the weights from a model"
        ) from error
    held = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    with torch.no_grad():
        for name, tensor in held.items():
            tensor.copy_(state[name])

    def in_float64(leaf: Any) -> Any:
        floating = isinstance(leaf, InputSpec) and leaf.dtype.is_floating_point
        return InputSpec(leaf.shape, torch.float64) if floating else leaf

    return replace(network, model=model, inputs=map_leaves(in_float64, network.inputs))
