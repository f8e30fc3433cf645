"""The mean loss over data as a function of a model's state, the model itself left alone."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call

from pathspace.errors import PathspaceError
from pathspace.network import Network
from pathspace.tracing.guards import unchanged
from pathspace.tracing.values import leaves, map_leaves

Loss = Callable[[Any, Any], Any]  # outputs and targets to a scalar tensor
Data = Iterable[Any]


@dataclass(frozen=True)
class Batch:
    """Some samples: the arguments of the model, what it should say, and how many they are."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    target: Any
    size: int


class Objective:
    """The mean loss of a network over data, in eval mode, for any state of the model.

    Attributes:
        network: the traced network.
        loss: takes what the model returns and the targets, returns their mean loss.

    Args:
        network: the traced network.
        loss: such as :func:`torch.nn.functional.cross_entropy`; must average over the batch.
        data: a ``DataLoader`` or any iterable of (inputs, targets), or one such pair as a tuple.
            Inputs are a tensor, a tuple of positional or a mapping of keyword arguments. An
            iterator that can be read once only is kept as a list.
        dtype: what floating-point inputs are converted to; by default they stay as they are.

    Example:
        >>> import torch, pathspace as ps
        >>> model = torch.nn.Linear(3, 2)
        >>> network = ps.trace(model, torch.ones(1, 3))
        >>> data = [(torch.ones(4, 3), torch.zeros(4, 2)), (torch.ones(1, 3), torch.zeros(1, 2))]
        >>> objective = Objective(network, torch.nn.functional.mse_loss, data)
        >>> bool(objective() == objective({k: -w for k, w in network.state().items()}))
        True
    """

    def __init__(
        self, network: Network, loss: Loss, data: Data, *, dtype: torch.dtype | None = None
    ) -> None:
        self.network, self.loss, self.dtype = network, loss, dtype
        if isinstance(data, tuple):
            data = [data]
        self._data = list(data) if isinstance(data, Iterator) else data

    def batches(self) -> Iterator[Batch]:
        """The data, batch by batch, on the model's device."""
        device = next((t.device for t in self.network.state().values()), torch.device("cpu"))

        def moved(leaf: Any) -> Any:
            if not isinstance(leaf, Tensor):
                return leaf
            return leaf.to(device, self.dtype if leaf.is_floating_point() else None)

        empty = True
        for pair in self._data:
            if not isinstance(pair, tuple | list) or len(pair) != 2:
                raise PathspaceError(
                    f"data must give pairs (inputs, targets), not {type(pair).__name__}; "
                    "inputs may be a tensor, a tuple of arguments or a dict of keyword arguments"
                )
            inputs, target = (map_leaves(moved, part) for part in pair)
            kwargs = dict(inputs) if isinstance(inputs, Mapping) else {}
            args = (
                () if kwargs else tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,)
            )
            sizes = [len(x) for x in leaves((inputs, target)) if isinstance(x, Tensor) and x.dim()]
            size = sizes[0] if sizes else 1
            if not size:
                continue  # a mean over no samples is no number, and would make that of all none
            empty = False
            yield Batch(args, kwargs, target, size)
        if empty:
            raise PathspaceError("the data is empty: there is no batch to measure on")

    @contextlib.contextmanager
    def evaluating(self) -> Iterator[None]:
        """Eval mode for as long as this lasts, with autograd as it is outside.

        Inside, :meth:`outputs` and :meth:`on` may be called many times at no further cost.
        """
        autograd = torch.is_grad_enabled()
        with unchanged(self.network.model, training=False), torch.set_grad_enabled(autograd):
            yield

    def outputs(self, batch: Batch, state: Mapping[str, Tensor]) -> Any:
        """What the model returns; call it inside :meth:`evaluating`."""
        return functional_call(self.network.model, dict(state), batch.args, batch.kwargs)

    def on(self, batch: Batch, state: Mapping[str, Tensor]) -> Tensor:
        """The mean loss on one batch; call it inside :meth:`evaluating`."""
        value = self.loss(self.outputs(batch, state), batch.target)
        if not isinstance(value, Tensor) or value.dim():
            shape = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise PathspaceError(f"the loss must be the mean over the batch, a scalar, not {shape}")
        return value

    def __call__(self, state: Mapping[str, Tensor] | None = None) -> Tensor:
        """The mean loss over all data as a float64 scalar, differentiable with respect to state."""
        state = _detached(self.network) if state is None else state
        total, count = torch.zeros((), dtype=torch.float64), 0
        with self.evaluating():
            for batch in self.batches():
                total = total + self.on(batch, state).to("cpu", torch.float64) * batch.size
                count += batch.size
        return total / count


def _detached(network: Network) -> dict[str, Tensor]:
    """The model's state without gradient; what is one tensor under two names stays one."""
    by_tensor: dict[int, Tensor] = {}
    return {
        name: by_tensor.setdefault(id(tensor), tensor.detach())
        for name, tensor in network.state().items()
    }
